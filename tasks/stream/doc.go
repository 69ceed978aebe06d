// Package stream delivers tasks into Redis streams, from where consumer groups in any
// language take them. It is the way of delivery of kind "stream".
//
// A topic says where its tasks go:
//
//	{"delivery": {"kind": "stream", "stream": "orders:expired", "max_len": 1000000}}
//
//	stream   key of the stream; by default the prefix, "stream:" and the topic's
//	         name, as in lapse:stream:orders
//	max_len  about how many entries are kept (XADD MAXLEN ~), 0 to 10^12; 0 keeps all.
//	         Default 1,000,000. The oldest ones are removed, read or unread: it must be
//	         more than receivers may ever lag behind
//
// An entry has these fields, in this order:
//
//	id       of the task: what receivers tell repeated entries by
//	topic
//	due      the deadline, Unix milliseconds
//	attempt  1 at first
//	group    if the task has one
//	payload  byte for byte
//	h:NAME   a header, for each that the task has
//
// # What is promised
//
// An attempt is acknowledged when Redis has answered with the entry's ID; until then
// it is repeated by the topic's backoff. So a task is in the stream at least once, and
// twice if Redis has added it and the answer was lost, or if the process ended before
// the acknowledgement was recorded. Lapse neither waits for the XACK of consumer groups nor
// knows of it. The configuration of Redis decides what survives a crash of Redis.
//
// # How
//
// Tasks that are ready together are added by one pipeline (task.BatchDeliverer). The
// client is the caller's; it should neither repeat commands by itself (MaxRetries -1)
// nor wait for long: 1 s is a good timeout.
package stream
