// Package client calls the HTTP API of a Lapse server.
//
//	c, err := client.New(client.Options{URL: "http://127.0.0.1:7480"})
//	...
//	task, err := c.Schedule(ctx, client.Request{
//		ID: "order-42", Topic: "order.unpaid", Delay: 30 * time.Minute,
//		Payload: []byte(`{"order":42}`),
//	})
//
// There is one method for each route. A Client may be used by many goroutines at
// once, and needs no more of this repository than itself.
//
// # Receiving
//
// A Worker is the receiver of a topic: it reserves what is ready, runs a handler for each
// delivery, several at once, keeps the leases meanwhile, and settles what comes of it.
//
//	cancel := func(ctx context.Context, d *client.Delivery) error {
//		return cancelOrder(ctx, d.Payload) // nil acknowledges; an error repeats the delivery
//	}
//	w, err := client.NewWorker(c, "order.unpaid", cancel, client.WorkerOptions{Concurrency: 16})
//	...
//	err = w.Run(ctx) // until ctx ends and what is under way is done
//
// A handler may see a task twice: after a crash of either side, or when its lease was
// lost. Whatever it does should bear that, by the task's id.
//
// # Scheduling in bulk
//
// ScheduleBatch schedules the tasks that one caller has at hand. A Batcher does so for
// those of many goroutines: each calls Schedule, and calls of all of them go together.
//
// # Failure
//
// Whatever the server refuses comes back as a *Problem, which names the fields that
// are wrong. The kinds that a program may want to tell apart are sentinels for
// errors.Is: ErrNotFound, ErrDelivering, ErrDead and so on. Two further ones are about
// the way to the server: ErrUnreachable says that nothing has happened, ErrUnknown that
// the request may have been carried out although its answer never came.
//
// # Repetition
//
// A call is repeated, up to Options.Retries times and for as long as its context
// lasts, when that cannot do harm:
//
//   - after 429, and after a 503 that says that nothing has happened, always;
//   - when no connection came about, always;
//   - when the outcome is unknown (the connection broke, the answer did not come in
//     time, or the server says so), only for calls that have the same effect twice as
//     once: whatever reads, Schedule, ScheduleBatch, Replace, Reschedule, Cancel, Ack, Extend,
//     PauseTopic, ResumeTopic, SetTopic without a revision, DeleteDead. Others return
//     ErrUnknown: repeating a Fire or a RequeueDead could start a second attempt, a Purge,
//     a CancelGroup or a DeleteAllDead could reach tasks that came later, a Release or
//     Bury would find its receipt stale.
//
// That holds for opening a stream of Events, too; one that breaks off later is not opened
// again, for what happened meanwhile would be missing.
//
// A 503 that does not come from Lapse counts as an unknown outcome: a proxy may have
// passed the request on.
//
// A Schedule can be repeated because its task has an id: the server answers the same
// request with the task that is there. To a task without one the client gives one, a
// UUIDv7, before the first attempt, unless Options.Retries is negative. What cannot be
// excluded: a task that is due at once, and is delivered and finished before the
// repetition arrives, is created again. Deliveries are at least once anyway.
package client
