// Package relay asks questions of other nodes over a bus that may lose, repeat, delay
// and reorder what it carries. It knows neither what is asked nor what carries it.
//
// [Relay.Ask] sends a question and waits for the answer. Until it has come, the question
// is sent again, with growing pauses, until the asker's time is over. The other side
// executes it at most once: it recognises a repeat by its id, and then says that it is
// still at it, or gives the same answer again. So an error of Ask tells whether the
// question was executed:
//
//   - ErrUnheard: it was not, and never will be. The bus says that nobody got it.
//   - ErrOverloaded: it was not, and never will be. The other side, or this one, has
//     too much to do.
//   - ErrNoAnswer: nobody knows. It may have been, may be now, or may still be, until
//     its time to live is over.
//
// The asker waits no longer than Config.Silence without a sign of the other side.
//
// [Relay.Tell] sends a question once that nobody answers.
//
// # What can go wrong, and what happens then
//
//   - A copy of a question arrives late, after its time to live: it is not executed.
//     Each message tells the time on its sender's clock. What is more than it was for the
//     quickest message from there, of the last two minutes in which there were any, is a
//     delay, and counts against the time to live. So no two clocks need to agree. A clock
//     that stood still, as that of a suspended machine, makes all messages look late; the
//     other side then asks for a copy that repeats a stamp of its own, and believes that one.
//   - The other process is replaced by another one of the same name: the new one cannot
//     know what the old one has executed. A question that may have been heard before it
//     began to listen ends with ErrNoAnswer.
//   - An asker is replaced by another one of the same name: answers name the incarnation
//     that they are for, and the new one ignores those for the old.
//   - An answer comes when its asker has gone: it is handed to Config.Late, once.
//   - Memory: all that is kept has a bound, see Limits. What is too much is refused when
//     that can be said, and otherwise dropped like a message that the bus has lost. An
//     answer that can no longer be kept is forgotten, but not that it was given: a repeat
//     of its question ends with ErrNoAnswer.
//
// # Bodies of any size
//
// What gathers for a node while a message is on its way there goes as one message, up to
// 256 KiB. A body larger than 192 KiB is not sent: its length is, and whoever wants it
// asks for it piece by piece, at most eight pieces of all bodies at a time. So what is on
// its way to a node is bounded by the node itself, however many others write to it, and
// a server between them needs no large buffers.
//
// # The wire, version 1
//
// A message is a header and one or more frames. Numbers without a width are unsigned
// varints (encoding/binary), times are milliseconds, and a text is a byte that tells its
// length, and its bytes.
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
//	1 question   number  id: the asker counts its questions from 1
//	             number  age: since it may first have been heard; 0 if not before this copy
//	             number  time to live that remains
//	             number  echo: the stamp of the last answer 'late', or 0
//	             text    verb
//	             number  length of the body
//	             ...     the body, or nothing if it has to be fetched
//	2 answer     text    incarnation of the asker
//	             number  id
//	             1 byte  status: 0 answered, 1 still at it, 2 overloaded, 3 late,
//	                     4 executed perhaps, without an answer that could be given
//	             number  length of the body
//	             ...     the body, or nothing if it has to be fetched. With status 3 the
//	                     body is a number: the clock of who answers
//	3 telling    text    verb
//	             ...     the body
//	4 withdrawal number  id of a question that its asker no longer wants answered
//	5 fetch      1 byte  0: from the body of a question, 1: of an answer
//	             text    incarnation of the asker
//	             number  id
//	             number  position in the body from which a piece is wanted
//	6 piece      as a fetch, and then the bytes: at most 192 KiB
package relay
