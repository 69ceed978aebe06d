// Package pubsub delivers tasks by PUBLISH on Redis channels, also in the form of Redis'
// own expiry events. It is the way of delivery of kind "pubsub".
//
// A topic says where its tasks go, and in which form:
//
//	{"delivery": {"kind": "pubsub", "channel": "orders:expired", "format": "envelope"}}
//	{"delivery": {"kind": "pubsub", "compat": "keyevent", "db": 0}}
//
//	channel        by default the prefix, "channel:" and the topic's name, as in
//	               lapse:channel:orders
//	format         what is published: "payload" (the default), byte for byte, or
//	               "envelope", a JSON object
//	               {"id","topic","due","attempt","group","headers","payload"},
//	               with due in Unix milliseconds and without what a task does not have;
//	               a payload that is not JSON is in "payload_base64"
//	compat         "keyevent": the message goes to __keyevent@<db>__:expired and is the
//	               task's header "key" if it has one, else its id, as if a key of this
//	               name had expired. A subscriber of Redis' expiry events needs no change.
//	               Neither channel nor format goes with it
//	db             the number in that channel's name, 0 to 1,000,000; default 0. Channels
//	               belong to no database: it need not be the one of the connection
//	min_receivers  how many subscribers must get the message, 0 to 1000; default 0.
//	               With fewer the attempt has failed, and is repeated. Not on Redis
//	               Cluster, which counts only those of one of its masters
//
// # What is promised
//
// A channel is fire and forget. An attempt is acknowledged when Redis has answered: it has
// then passed the message on to the present subscribers, which do not confirm that they have
// received or handled it. A subscriber that is away, slow, or dies never learns of it.
// min_receivers: 1 only keeps a task until there is a subscriber. Of several subscribers
// each gets every message, and a repeated attempt repeats it to all. A receiver that must
// not miss a task needs package stream, or package webhook.
//
// Tasks that are ready together are published by one pipeline (task.BatchDeliverer).
// The client is the caller's; it should neither repeat commands by itself
// (MaxRetries -1) nor wait for long: 1 s is a good timeout.
package pubsub
