// Package bench measures Lapse: how fast it accepts tasks, how late it delivers them, what they
// cost while they wait, how long a restart takes. `lapse bench` and scripts/compare, which also
// measures other systems, run it.
//
// A System schedules and delivers: Lapse in this process (embedded), Lapse over HTTP, or a peer. A
// workload drives a System and returns a Result:
//
//	single   callers schedule one task a request, far ahead
//	batch    senders schedule many tasks a request, far ahead
//	burst    all tasks are due at one instant, and are handled and forgotten
//	steady   tasks are due at an even rate, and are handled and forgotten
//	memory   tasks wait far ahead: what they cost in memory, and in CPU while idle
//	restart  the process is opened again with tasks on record, a tenth overdue
//
// Speed counts only if the promises hold. Every payload carries a number. A tally has for each
// number how often it came and how late. A Result says how many tasks were early, lost, or
// delivered again without a reason that the System gives (a lease that ran out, an acknowledgement
// that was not recorded). Report.Err is not nil if there was any.
//
// Lateness is the start of the first delivery minus the deadline, by the clock of this machine. It
// is measured where the receiver gets the task: in the handler, or when the answer to a pull has
// been read.
//
// A run removes what it makes, also when it is interrupted: temporary directories, keys of Redis
// under a prefix made for this run and no others, tasks of a topic made for this run on a server
// that was running before.
//
// Absolute figures depend on the machine and the moment. Compare only within one run.
package bench
