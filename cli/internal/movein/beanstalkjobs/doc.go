// Package beanstalkjobs moves the jobs of a beanstalkd to Lapse, over its protocol.
//
// A ready job is reserved, its task is created, and the job is deleted. If the import ends in
// between, beanstalkd gives the job back to its workers, and a repeated import finds the task by
// its id.
//
// A delayed job cannot be reserved without making it ready. So it is looked at (peek-delayed), its
// task is created, and the job is deleted, one job after the other: beanstalkd shows only the
// delayed job that is next. beanstalkd counts in whole seconds, and what is left of a second
// counts as a whole one. So a task is due up to a second after its job would have been, and never
// before.
//
// A worker may take a job while its task is created. Then the job cannot be deleted, and the task
// is cancelled. If it has been delivered by then, both have had it.
//
// Jobs that are buried, or that a worker has reserved, stay where they are.
package beanstalkjobs
