// Package redissuite runs the tests of Redis itself against the port for its clients.
//
// scripts/need-redis-tests fetches them; none of them is in this repository. They are run as they
// are against a server of the program: their units of strings, TTLs, keys, SCAN, keyspace events,
// transactions and the protocol. testdata/known.txt has the tests that fail, and why.
// [TestRedisSuite] (build tag clients, `make clients`) fails for any other test that fails, and for
// any of the list that passes.
package redissuite
