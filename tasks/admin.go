package tasks

// An Admin is a Scheduler with what operators and servers need besides: figures and acts over all
// nodes, nodes, export, backups, messages between nodes. Applications rarely do.
type Admin struct{ *Scheduler }

// Admin returns the rest of the scheduler.
func (s *Scheduler) Admin() Admin { return Admin{s} }
