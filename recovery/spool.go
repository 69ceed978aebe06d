package recovery

import "context"

// A Mark stands beside a creation whose record comes from a spool: another ledger that
// took it in while this one did not answer, and that forgets it when this one has it.
// A spool numbers its records, and a shard gets them in the order of their numbers; so
// the highest one that it got tells, after a crash in between, which of them the spool
// should have forgotten. Without it, what was delivered and deleted since would come back.
//
// The order is the caller's affair: a Committer may put changes with marks into several batches,
// and a ledger that has no room for one of them may have room for the next. When Done reports
// ErrFull, Keep must refuse what was submitted behind it, until all of it is submitted again.
type Mark struct {
	Spool  string // names the spool, in letters and digits
	Number int64  // of the record, from 1; 0 means that it comes from no spool
}

// A Heir is implemented by ledgers that take records over from a spool, each once. Apply
// writes a batch's Mark together with its records. If the shard has that mark, or a
// higher one, already, Apply writes none of them: it got them before.
type Heir interface {
	// Inherited returns the highest number that was written from a spool into the shard
	// where a new record with this id belongs, whoever holds that shard; 0 if none was.
	Inherited(ctx context.Context, spool, id string) (int64, error)
}
