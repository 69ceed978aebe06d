// Package redistest starts real Redis servers for tests: a single one, one with a replica
// behind sentinels, or a cluster. Each listens on free ports of the loopback interface, keeps
// its files in a temporary directory of the test, and is stopped with it. A test is skipped
// where redis-server is not installed.
//
// A [Proxy] is between a client and a server. It loses, delays or repeats what passes, or
// separates the two.
package redistest
