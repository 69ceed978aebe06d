// Package kafka delivers tasks into topics of Kafka. It is the way of delivery of kind
// "kafka", and a Go module of its own: a program links it by handing it to the scheduler,
// or to cli.Main as the program in example does.
//
// A topic of Lapse says into which topic of Kafka its tasks go. The operator of the cluster
// creates that topic (or the brokers do, if Config.Options has kgo.AllowAutoTopicCreation):
//
//	{"delivery": {"kind": "kafka", "topic": "orders.expired", "key": "group"}}
//
//	topic  required
//	key    what a record's key is, and so which records are in one partition: id (the
//	       default), group, header:NAME or none. A task that has no group, or no such
//	       header, has no key, and goes into any partition
//
// A record's value is the payload byte for byte, never null. Its headers are
//
//	lapse-id       of the task: what receivers tell repeated records by
//	lapse-topic
//	lapse-due      the deadline, RFC 3339 in UTC with milliseconds
//	lapse-attempt  1 at first
//	lapse-group    if the task has one
//
// and those of the task under their own names, which are in lower case. The ones that
// begin with lapse- are left out.
//
// # What is promised
//
// An attempt is acknowledged when all replicas in sync have the record (acks=all). The
// producer is idempotent: what it sends again by itself is stored once. An attempt that
// has failed is repeated by the topic's backoff, so receivers may see a record more than
// once, if it was stored and the acknowledgement was lost.
//
// # What can fail
//
// The brokers are gone, do not answer, or have too few replicas in sync: attempts fail
// after Config.Timeout, or when their lease ends. There is no such topic, the producer may
// not write to it, or the record is too large: attempts fail with what the broker said.
// [Way.Tally] counts each.
package kafka
