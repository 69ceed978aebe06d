// Package delivertest tests ways of delivery.
//
// [Run] is the conformance suite that every way of delivery passes, those of other
// modules too: a scheduler on a memory ledger delivers by the way, in real time, and
// what its receiver has seen is judged task by task against what was asked for:
// nothing lost, nothing early, nothing again without a reason, every attempt as the
// topic's settings say.
//
// Whoever has a way writes a [Rig] for it: the way, the settings of a topic that use
// it, and a receiver at the other end. There are two sorts of them.
//
//   - A receiver that answers (a function, a pulling loop, a web server) calls
//     [Receiver.Receive] with each arrival and does as the [Answer] says. It succeeds,
//     fails, hangs or breaks down as the test wants it to.
//   - A broker only stores. Its rig is a [Breaker] too: it puts a [Fault] between the
//     way and the broker, such as a proxy that refuses, holds back or cuts. What has
//     reached the broker is read from it, past the fault, and handed to
//     [Receiver.Receive], whose answer is of no consequence.
//
// Each case runs with both sorts, in the form that makes sense for it. What a way
// cannot do it says in Rig.Cannot, with the reason; a case that needs it is skipped
// by that name, and tells the reason.
//
// What can fail is told in terms of tasks: each fault of a task has its whole history
// with it, as its receiver and the scheduler's observer saw it.
package delivertest
