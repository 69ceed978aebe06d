// Package redisrig is for tests of ways of delivery into Redis. It opens schedulers with a way, and
// puts the faults of delivertest between a way and a real Redis.
//
// It owns the schedulers that it opens, which end with their test. It calls packages tasks,
// delivertest, memledger, redisledger and redistest, and knows no particular way. What can fail is
// the test. No program may import it.
package redisrig
