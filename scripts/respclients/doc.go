// Package respclients tests the port for clients of Redis with the clients that people use.
//
// No line of the programs in testdata knows Lapse: each does the same to a Redis, up to the streams
// of expired keys, which a Redis does not fill.
//
// [TestTour] (build tag clients, `make clients`) has one program for each client, up to redis-cli:
// keys, counters, SCAN, transactions, subscriptions, streams with acknowledgement, and a server
// that is killed and comes back at the same address. The other tests (build tag fault, `make
// fault`) are the main job: writers in three languages, a subscriber and workers against a fleet of
// three nodes, or against one server with its tasks on disk, while nodes, clients and Redis are
// killed or stand still. In [TestNeighbours] they have a token each, beside sessions, locks, a
// limiter and HTTP callers, and one of the tokens is hostile.
//
// scripts/need-redis-clients installs the clients. Those that are not there are named and passed
// over.
package respclients
