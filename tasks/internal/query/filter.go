package query

import (
	"math"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// LooksAtOnce is at how many tasks one call with a Filter looks, at each node.
const LooksAtOnce = 20_000

// A Filter selects tasks of a list by more than their topic, group and state. The zero value
// selects all of them.
//
// A list is ordered by the time of the next attempt, of dead tasks by that of their death. The
// window is of the same time. So a list begins at the start of the window and ends at its end. All
// else has to be looked up in the records, which are far apart in memory, or in the ledger: one
// call looks at LooksAtOnce of them at most. Its page may be short, or empty, although there is
// more.
type Filter struct {
	IDPrefix string
	Error    string      // in small letters; a part of the last error, whose letters may be capital
	Like     string      // a pattern of task.LikeError, that of the last error
	Group    string      // of tasks that the ledger lists; those in memory are found by their group
	Reason   task.Reason // of a death
	From, To int64       // Unix milliseconds: the window, without To; To 0: it has no end
}

// NewFilter returns the filter of a query. It adds to the faults what is wrong with it.
func NewFilter(q *task.Query, f *task.Faults) Filter {
	filter := Filter{IDPrefix: q.IDPrefix, Error: strings.ToLower(q.Error), Reason: q.Reason}
	if q.ErrorLike != "" {
		filter.Like = task.LikeError(q.ErrorLike)
	}
	if IsBuried(q.State) {
		filter.Group = q.Group
	}
	if q.IDPrefix != "" && !task.ValidName(q.IDPrefix) {
		f.Add("id_prefix", task.NameProblem)
	}
	if len(q.Error) > task.MaxErrorPart {
		f.Add("error", "must be at most 256 bytes")
	}
	if len(q.ErrorLike) > task.MaxReason {
		f.Add("error_like", "must be at most 1024 bytes")
	}
	const withDead, withoutDead = "needs the state dead", "must not stand beside the state dead: give died_from and died_to"
	const withoutFinished = "must not stand beside the state finished"
	switch q.Reason {
	case "", task.Exhausted, task.Buried, task.TopicDeleted:
	default:
		f.Add("reason", "must be exhausted, buried or deleted")
	}
	if q.Reason != "" && q.State != task.Dead {
		f.Add("reason", withDead)
	}
	due, died := "", withDead
	switch q.State {
	case task.Dead:
		due, died = withoutDead, ""
	case task.Finished:
		due = withoutFinished
	}
	filter.window(f, "due", q.DueFrom, q.DueTo, due)
	filter.window(f, "died", q.DiedFrom, q.DiedTo, died)
	return filter
}

// window reads one of the two windows of a query. refused says why it must not be given.
func (f *Filter) window(faults *task.Faults, name string, from, to time.Time, refused string) {
	if !from.IsZero() {
		if refused != "" {
			faults.Add(name+"_from", refused)
		}
		f.From = max(record.Millis(from), 0)
	}
	if !to.IsZero() {
		f.To = record.Millis(to)
		switch {
		case refused != "":
			faults.Add(name+"_to", refused)
		case !to.After(from) || f.To <= 0:
			faults.Add(name+"_to", "must be after "+name+"_from, and after 1970-01-01T00:00:00Z")
		}
	}
}

// Start is the position behind which a list begins that would begin behind after without the
// window.
func (f *Filter) Start(after recovery.Ref) recovery.Ref {
	if after.Next < f.From {
		return recovery.Ref{Next: f.From} // every id comes behind the empty one
	}
	return after
}

// Passed reports whether a position is behind the window: nothing follows. A held task has no next
// attempt, and is in no window.
func (f *Filter) Passed(at int64) bool {
	return at > f.Latest()
}

// Latest is the last time that has not passed.
func (f *Filter) Latest() int64 {
	last := int64(math.MaxInt64)
	if f.To != 0 {
		last = f.To - 1
	}
	if f.From != 0 {
		last = min(last, record.HeldUntil-1)
	}
	return last
}

// HasPosition reports whether a task at a position of the list may be selected.
func (f *Filter) HasPosition(at recovery.Ref) bool {
	return at.Next >= f.From && !f.Passed(at.Next) && strings.HasPrefix(at.ID, f.IDPrefix)
}

// hasError reports whether the last error of a task is selected.
func (f *Filter) hasError(text string) bool {
	return (f.Error == "" || strings.Contains(strings.ToLower(text), f.Error)) && (f.Like == "" || task.LikeError(text) == f.Like)
}

// ReadsRecords reports whether what is selected depends on more of a record than HasPosition sees.
func (f *Filter) ReadsRecords() bool { return f.Error != "" || f.Like != "" }

// HasRecord reports whether the task of a record is selected, which is dead for a reason; empty: it
// is not dead, or the reason is not known.
func (f *Filter) HasRecord(at recovery.Ref, r *record.Fields, reason task.Reason) bool {
	return f.HasPosition(at) && (f.Reason == "" || reason == f.Reason) && (f.Group == "" || string(r.Group) == f.Group) &&
		(!f.ReadsRecords() || f.hasError(string(r.LastError)))
}

// Searches reports whether tasks have to be looked at one by one to find those that are selected.
func (f *Filter) Searches() bool {
	return f.IDPrefix != "" || f.ReadsRecords() || f.Reason != "" || f.Group != ""
}
