// Package delivertest tests ways of delivery.
//
// [Run] is the conformance suite that every way of delivery passes, those of other modules too. A
// scheduler on a memory ledger delivers by the way, in real time. The suite judges task by task
// what the receiver has seen: nothing lost, nothing early, nothing again without a reason, every
// attempt as the topic's settings say.
//
// The author of a way writes a [Rig] for it: the way, the settings of a topic that use it, and a
// receiver at the other end. There are two sorts of receivers.
//
//   - A receiver that answers (a function, a pulling loop, a web server) calls
//     [Receiver.Receive] with each arrival and does as the [Answer] says. It succeeds,
//     fails, hangs or breaks down as the test wants it to.
//   - A broker only stores. Its rig is a [Breaker] too: it puts a [Fault] between the
//     way and the broker, such as a proxy that refuses, holds back or cuts. The rig reads
//     the arrivals from the broker, past the fault, and hands them to [Receiver.Receive],
//     whose answer has no effect.
//
// Each case runs with both sorts, in the form that makes sense for it. Rig.Cannot names what a way
// cannot do, with the reason. A case that needs it is skipped by that name, with the reason.
//
// A failure is reported by task: each fault of a task has its whole history with it, as its
// receiver and the scheduler's observer saw it.
//
// It owns the schedulers that it opens and the history of each task. It calls packages tasks and
// memledger, and knows no way of delivery. What can fail is the test. No program may import it.
package delivertest
