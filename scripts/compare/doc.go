// Command compare runs Lapse beside its peers, in one run and on one machine. It writes its part of
// bench/comparison.md, and docs/comparison.svg. It is started by `make bench-compare` through
// scripts/bench-compare, which says which peers are missing.
//
// It is a Go module of its own, so that programs that use Lapse do not link a peer. Peers implement
// bench.System, and the workloads are those of `lapse bench`: all systems are sent, counted and
// timed by the same code.
//
//	asynq       github.com/hibiken/asynq, as a library on Redis
//	beanstalkd  a real server with binlog, called over its protocol
//	expiry      keys of Redis that expire, and their events
//	timers      time.AfterFunc: the floor for lateness; survives nothing
//	deletes     the bare deletes of Lapse's Redis ledger: the floor for a burst
//
// A comparison is a row: some entrants and one workload (matrix.go). Its rounds alternate, entrant
// by entrant, so that a machine that is busy for a while is so for all. A figure is the median of
// its rounds, and a ratio the median of the ratios within rounds. Only ratios can be compared with
// another run.
//
// Peers differ in their promises. Where that matters it is decided in the peer's favour, and stated
// in the peer's file and on the page.
package main
