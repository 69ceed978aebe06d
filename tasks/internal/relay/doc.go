// Package relay calls other nodes over a bus that may lose, repeat, delay and reorder
// messages. It knows neither the meaning of the calls nor the kind of bus.
//
// It owns the calls under way, the answers that may have to be repeated, and the queues of messages
// to each node, under one mutex. It calls the [Bus], never with the mutex held, and no package of
// Lapse.
//
// [Relay.Call] sends a call and waits for the answer. Until it arrives, Call sends the call
// again, with growing pauses, until its context ends. The other side executes the call at most
// once: it recognises a repeat by its id, and then reports that it is still working, or gives the
// same answer again. So an error of Call says whether the call was executed:
//
//   - ErrUnheard: it was not, and never will be. The bus reports that no node received it.
//   - ErrOverloaded: it was not, and never will be. The other side, or this one, has
//     too much to do.
//   - ErrNoAnswer: unknown. It may have been, may be now, or may still be, until its time
//     to live is over.
//
// Call waits no longer than Config.Silence without a message of the other side about the call.
//
// [Relay.Send] sends a notification: once, without an answer.
//
// # What can go wrong, and what happens then
//
//   - A copy of a call arrives late, after its time to live: it is not executed. Each
//     message carries the time on its sender's clock. If that time lags further behind than in
//     the quickest message from there within the last two minutes of traffic, the difference is
//     a delay, and counts against the time to live. So no two clocks need to agree. A clock that
//     stood still, as that of a suspended machine, makes all messages look late. The other side
//     then requests a copy that repeats a stamp of its own, and trusts that one.
//   - The other process is replaced by another one of the same name: the new one cannot know
//     what the old one has executed. A call that may have arrived before the new one began
//     to listen ends with ErrNoAnswer.
//   - A calling process is replaced by another one of the same name: answers name the
//     incarnation that they are for, and the new one ignores those for the old.
//   - A process closes its relay: it answers the calls that the bus has taken until then, and
//     refuses those whose bodies it would have to fetch. Later ones are unheard, where the bus can
//     tell. An answer that has to be fetched may be lost.
//   - An answer arrives after its caller has left: it is passed to Config.Late, once.
//   - Memory: all that is kept has a bound, see Limits. What exceeds it is refused if the other
//     side can be told, and otherwise dropped like a message that the bus has lost. The relay
//     drops an answer that it can no longer keep, but remembers that it was given: a repeat of
//     its call ends with ErrNoAnswer.
//
// # Bodies of any size
//
// All frames that gather for a node while a message is in flight to it go as one message, up to 256
// KiB. A body larger than 192 KiB is not part of its message, which carries only its length. The
// receiver fetches the body piece by piece, at most eight pieces of all bodies at a time. So each
// node bounds the data in flight to it, however many others write to it, and a server between them
// needs no large buffers.
//
// # The wire, version 1
//
// A message is a header and one or more frames. Numbers without a width are unsigned varints
// (encoding/binary), times are milliseconds, and a text is a byte with its length, and its bytes.
//
//	2 bytes   'L', 1: the version. A message of another version is ignored
//	text      node: name of the sender
//	text      its incarnation
//	number    clock of the sender, since it began
//	...       frames
//
// A frame is
//
//	1 byte    kind. A frame of an unknown kind is ignored
//	number    length of the rest
//	...       the rest, according to its kind
//
// and its rest, for each kind:
//
//	1 call       number  id: the calling process counts its calls from 1
//	             number  age: since it may first have arrived; 0 if not before this copy
//	             number  time to live that remains
//	             number  echo: the stamp of the last answer 'late', or 0
//	             text    method
//	             number  length of the body
//	             ...     the body, or nothing if it has to be fetched
//	2 answer     text    incarnation of the calling process
//	             number  id
//	             1 byte  status: 0 answered, 1 still working, 2 overloaded, 3 late,
//	                     4 executed perhaps, without an answer that could be given
//	             number  length of the body
//	             ...     the body, or nothing if it has to be fetched. With status 3 the
//	                     body is a number: the clock of the answering process
//	3 notification text  method
//	             ...     the body
//	4 withdrawal number  id of a call whose caller no longer wants an answer
//	5 fetch      1 byte  0: from the body of a call, 1: of an answer
//	             text    incarnation of the calling process
//	             number  id
//	             number  position in the body from which a piece is wanted
//	6 piece      as a fetch, and then the bytes: at most 192 KiB
package relay
