// Package nats delivers tasks into streams of NATS JetStream. It is the way of delivery of
// kind "nats", and a Go module of its own: a program links it by handing it to the
// scheduler, or to cli.Main as the program in example does.
//
// A topic says on which subject its tasks are published. A stream of the server must
// listen there:
//
//	{"delivery": {"kind": "nats", "subject": "orders.expired"}}
//
// A message has the payload byte for byte, and these headers:
//
//	lapse-id       of the task: what receivers tell repeated messages by
//	lapse-topic
//	lapse-due      the deadline, RFC 3339 in UTC with milliseconds
//	lapse-attempt  1 at first
//	lapse-group    if the task has one
//	Nats-Msg-Id    what the stream tells repeated messages by
//
// and those of the task under their own names, which are in lower case. The ones that
// begin with lapse- or nats- are left out. Spaces at either end of a value are not kept.
//
// # What is promised
//
// An attempt is acknowledged when the stream has stored the message and said so; until
// then it is repeated by the topic's backoff. The message of a repeated attempt is known
// by its Nats-Msg-Id, so that the stream stores it once if both come within its duplicate
// window, 2 minutes by default; with longer pauses between them receivers may see it
// twice. A task that is asked for anew under an id that was in use before is another
// message.
//
// # What can fail
//
// The server is gone: attempts fail at once while the connection is made anew in the
// background, for ever. It does not answer: attempts fail after Config.Timeout, or when
// their lease ends. No stream listens on the subject, or the stream refuses the message,
// because it is full or the message too large: attempts fail with what the server said.
// [Way.Tally] counts each.
package nats
