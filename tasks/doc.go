// Package tasks takes tasks in, remembers them through crashes, and delivers each one when it is
// due and never before. Applications embed this package with one ledger:
//
//	var unpaid = tasks.NewTopic[Order]("order.unpaid")
//
//	ledger, err := diskledger.Open("./lapse-data", diskledger.Options{})
//	s, err := tasks.Open(ctx, ledger, tasks.Config{})
//	err = unpaid.Handle(s, func(ctx context.Context, o Order, d *tasks.Delivery) error {
//		return orders.Cancel(ctx, o.Number)
//	})
//	_, err = unpaid.Schedule(ctx, s, "order-42", 30*time.Minute, Order{Number: 42})
//
// [Run] does the first steps and the last ones of a program in one call.
//
// It owns the [Scheduler], which checks the arguments of each call and then calls the engine, which
// is one node, or the cluster, which deals with the other nodes. Scheduler has what applications
// need, and [Admin] what operators and servers need besides. The words are aliases of those of
// package task. Their comments show the fields, which go doc would not.
//
// It may call packages task, recovery, internal/engine, internal/cluster and internal/record. It
// knows no particular ledger, no way of delivery and no HTTP: the caller passes a ledger and the
// ways of delivery in.
//
// What can fail: each method names its errors. [ErrUnavailable] means that nothing was done and the
// call may be repeated, [ErrUnknown] that it may have been done. A lost ledger, or a lost name of
// the node, ends the scheduler ([Scheduler.Done], [Scheduler.Err]). With a ledger that several
// nodes share, a node that was cut off may deliver a task that another node delivers as well
// (Config.OnOutage; Stats.UnsureDeliveries, ShardsLost, LostDeliveries).
//
//	Schedule -> engine: store + committer -> ledger    accepted: on record
//	committed -> wheel -> fired -> a topic's ready queue
//	ready -> deliver (handler) or Reserve (pull) -> the receiver
//	receiver -> settle -> committer -> ledger          finished: off the record
//	sweep: finds what should have moved on and has not
//
// Config.Observer gets every event of the tasks for as long as the scheduler runs. A [Subscription]
// gets the events of some topics, or of all, in order. It loses events rather than keep a task
// waiting. A [FleetSubscription] gets those of all nodes that share the ledger.
//
// docs/internals/protocol.md has the states of a task, the stages of a shard and the rules of
// several nodes. docs/internals/architecture.md has the packages below this one, the locks, and the
// way of one task through them.
package tasks
