// Package crash tests the built binary under faults, and judges afterwards.
//
// Clients and receivers work over HTTP while the server is killed, stopped, starved of disk or fed
// with garbage, and while the Redis with its tasks is killed, stopped, absent or full. Each records
// its requests and the answers in a [History]. [Judge] knows only the history, no code of Lapse,
// and compares it with the promises to users:
//
//   - what was accepted and not cancelled is delivered and acknowledged;
//   - nothing is delivered before a deadline that was in force;
//   - nothing is delivered after its cancellation was answered with 204;
//   - a second delivery has a reason: the attempt was given back, its lease
//     ran out, or its acknowledgement was not recorded.
//
// A request is an interval, not an instant: it took effect somewhere between its start and its
// answer, and one without an answer may or may not have taken effect. The judge accepts every
// history that some order of the instants explains.
//
// Among several nodes a task may be anywhere, and a request may have been passed on, so that a
// [Bench] uses instants and the recorded faults: which node was killed, stopped, cut off from Redis
// or restarted, and when. With `on_outage: deliver`, a node that is out of touch may deliver tasks
// that other nodes have finished. Each such delivery is listed with the fault that explains it, and
// any other one is a broken promise. It also demands that
//
//   - no node calls a task unknown, makes it a second time or leaves it out of a whole list
//     if the task was accepted and no request may have finished it;
//   - a task is delivered under the id that its creation was answered;
//   - a cancelled task is not shown, and a buried one waits until it is requeued;
//   - a hand-over is no reason for a second delivery;
//   - an answer of 503 that does not say otherwise has done nothing;
//   - a Redis that has lost writes changes none of this, as long as the nodes live.
//
// [github.com/lapsehq/lapse/scripts/campaign] has the same judge for faults and calls that follow
// from a seed.
//
// The judge is tested by `make test`. The suite itself needs the build tag `fault` and is run by
// `make fault`; `make mainjob` and `make fleet` run the largest of its tests at full size. Client,
// server and judge share one machine, hence one clock.
package crash
