package recovery

import "context"

// A Mark belongs to a creation whose record comes from a spool: another ledger that stored the
// record while this one did not answer, and that deletes it once this one has it. A spool
// numbers its records, and a shard gets them in the order of their numbers. So the highest
// number that the shard has tells, after a crash in between, which records the spool should
// have deleted. Without it, records that were delivered and deleted since would come back.
//
// The caller keeps the order: a Committer may put changes with marks into several batches,
// and a ledger that has no room for one of them may have room for the next. When Done reports
// ErrFull, Keep must refuse what was submitted after it, until all of it is submitted again.
type Mark struct {
	Spool  string // names the spool, in letters and digits
	Number int64  // of the record, from 1; 0 means that it comes from no spool
}

// A SpoolMarks is implemented by ledgers that take over records from a spool, each once. Apply
// writes a batch's Mark together with its records. If the shard already has that mark or a
// higher one, Apply writes none of them: the shard got them before.
type SpoolMarks interface {
	// SpoolMark returns the highest number that was written from a spool into the shard where a
	// new record with this id belongs, whichever node holds that shard; 0 if none was.
	SpoolMark(ctx context.Context, spool, id string) (int64, error)
}
