// Package movein brings what another system has scheduled into a running Lapse.
//
// Each source has a package of its own below this one: rediskeys, asynqtasks, beanstalkjobs. A
// source reads what is there, in pages, and makes a task of each thing. This package has what they
// share: the ids of such tasks, their payloads, the calls that create and move them, and the
// counts.
//
// An import may be interrupted at any moment and repeated. The id of a task follows from what it
// stands for, so a repeated request finds the task of the first one. The header "imported" names
// the source. A task without it, or of another source, belongs to a caller of Lapse: an import
// never changes such a task. While a topic keeps its finished tasks (keep_finished), a repeated
// request finds those, too.
//
// What can fail: Lapse or the source cannot be reached for longer than Patience; Lapse refuses a
// task. Everything that was accepted before stays accepted.
package movein
