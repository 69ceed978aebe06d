// Command pair says whether this work tree costs more processor time a task than another commit. It
// is started by `make pair BASE=<commit>`, and in a short form by `make ci` against the commit in
// bench/base.
//
// It builds the server and the harness of both, and starts a process of each. The two do short
// rounds in turn, so that a machine that is busy for a while is so for both, and that both are in
// the same phase of the collector. They measure some paths: what callers do with Lapse, such as a
// single schedule on disk. The cost of a path is the processor
// time of the process of Lapse for one task, by the system's clock of that process; what Redis and
// the load have used is shown apart. The ratio of a path is the median of the ratios of its pairs,
// with an interval that holds 95 % of the medians of resampled pairs.
//
//	bout     the harness: Lapse embedded in a process; compiled within either work tree
//	measure  clocks of processes, and what a run prints
//	http.go, port.go  load for a server, the same for both
//
// The harness is copied into the other commit's tree, and not a module of its own: so each commit
// is built with its own versions of what it depends on. What does not compile there, or does not
// run there, is left out by name.
//
// A path that looks slower is measured twice more, with as many pairs each time, before it counts
// as slower.
// The command ends with status 1 if there is such a path.
package main
