// Package rediskeys makes tasks of the keys of a Redis that have a TTL.
//
// It only reads: SCAN in pages, PEXPIRETIME of their keys (before Redis 7.0 PTTL and TIME), and
// GETRANGE where values are wanted. It rests for as long as Redis was busy with a page, and asks
// for smaller pages when an answer takes long. A task has the absolute time at which its key
// expires, so an import that is repeated makes the same request again.
//
// A key without a TTL is passed over, also one that is gone meanwhile. If a task has the id
// already and another deadline, the key is read again, and what it says then counts.
//
// With Watch the importer follows the source. The notifications of Redis say which keys have
// changed; those keys are read again. What was read decides, not the kind of the notification:
//
//	a TTL                            the task is created, or moved
//	no TTL, or the key is gone       before its deadline: the task is cancelled
//	the key is gone                  at its deadline: nothing, for Lapse delivers the task
//
// Notifications can be lost. So the keys are scanned again from time to time and after each lost
// connection. A scan sees no key that was deleted, and an empty Redis may as well have lost its
// keys. So only with CancelGone the tasks of the topic are compared with their keys after a scan.
//
// At any time one goroutine changes the task of a key: what a notification is about waits while a
// scan has the key in its hands.
package rediskeys
