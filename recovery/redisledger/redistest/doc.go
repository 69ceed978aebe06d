// Package redistest starts real Redis servers for tests: one alone, one with a
// replica behind sentinels, or a cluster. Each listens on free ports of the
// loopback interface, keeps its files in a temporary directory of the test, and
// is stopped with it. A test is skipped where redis-server is not installed.
//
// A [Proxy] stands between a client and a server, and loses, delays or repeats
// what passes, or keeps them apart.
package redistest
