// Package rabbitmq delivers tasks to exchanges of RabbitMQ. It is the way of delivery of
// kind "rabbitmq", and a Go module of its own: a program links it by handing it to the
// scheduler, or to cli.Main as the program in example does.
//
// A topic says where its tasks are published. The operator of the broker creates exchanges,
// queues and bindings:
//
//	{"delivery": {"kind": "rabbitmq", "exchange": "shop", "routing_key": "orders.expired"}}
//
//	exchange     default "": the exchange that leads to every queue by its name
//	routing_key  the queue's name if there is no exchange, and required then; else default ""
//
// A message is persistent and has the payload byte for byte. Its properties are message_id,
// the id of the task, by which receivers tell repeated messages, and content_type, that of
// the task's header content-type, or application/json. Its headers are
//
//	lapse-id
//	lapse-topic
//	lapse-due      the deadline, RFC 3339 in UTC with milliseconds
//	lapse-attempt  1 at first
//	lapse-group    if the task has one
//
// and those of the task under their own names, which are in lower case. The ones that
// begin with lapse- or x- are left out: the latter are instructions to the broker.
//
// # What is promised
//
// An attempt is acknowledged when the broker has confirmed the message: when every queue
// that it was routed to has it, on disk if the queue is durable, on most of its members if
// it is a quorum queue. A message that is routed to no queue is a failed attempt. Until it
// is confirmed it is published again by the topic's backoff, so receivers may see it more
// than once, if a confirmation was lost.
//
// # What can fail
//
// The broker is gone: attempts fail while the next connection cannot be made, which is
// tried twice a second at most. It does not answer, or takes nothing because its memory
// or disk is short: attempts fail after Config.Timeout, or when their lease ends, or at
// once if it has said so. It refuses the message, or there is no such exchange or queue:
// attempts fail with what it said. [Way.Tally] counts each.
package rabbitmq
