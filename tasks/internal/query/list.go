package query

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// A List asks for the first tasks behind a position: soonest first, or the longest
// dead first with the state Dead.
type List struct {
	Topic, Group string
	State        task.State
	Limit        int
	After        recovery.Ref
	Bytes        int      // about how much of tasks is wanted at most; 0: MaxPageBytes
	Patterns     []string // of the topics that the caller may use; empty: all
	Node         string   // that has them; empty: any
	Retrying     bool     // only those that are retrying; State is Pending
	Brief        bool     // without payload, headers and attempts
	Filter       Filter
}

// IsBuried reports whether the ledger has the tasks of a state in lists, by topic.
func IsBuried(state task.State) bool { return state == task.Dead || state == task.Finished }

// Buried reports whether a list is one of the ledger.
func (q *List) Buried() bool { return IsBuried(q.State) }

// A Listed is a task on a page, with its position.
type Listed struct {
	Task task.Task
	At   int64 // where it stands in the list
}

// Ref is where a task stands in the list.
func (t *Listed) Ref() recovery.Ref { return recovery.Ref{ID: t.Task.ID, Next: t.At} }

// Merge puts what the nodes have listed in order, each task once, and drops what is behind end.
func Merge(all []Listed, end *recovery.Ref) []Listed {
	slices.SortFunc(all, func(a, b Listed) int { return CompareRefs(a.Ref(), b.Ref()) })
	// A task appears twice if its shard moved, or if its node was called again.
	all = once(all, func(t Listed) string { return t.Task.ID })
	if end != nil {
		n, _ := slices.BinarySearchFunc(all, *end, func(t Listed, end recovery.Ref) int { return cmp.Or(CompareRefs(t.Ref(), end), -1) })
		all = all[:n]
	}
	return all
}

// Fitting returns how many of the first tasks make a page. A node whose budget is small
// answers one task all the same, and one that was asked again answers twice: so together
// they may be more than a page.
func Fitting(all []Listed, limit int) int {
	size := 0
	for i := range all {
		if i == limit || size >= task.MaxPageBytes {
			return i
		}
		size += SizeOf(&all[i].Task)
	}
	return len(all)
}

// sizeOfAttempt is what the fields of an attempt count for, without its texts.
const sizeOfAttempt = 100

// SizeOf returns the bytes of MaxPageBytes that a task takes up.
func SizeOf(t *task.Task) int {
	n := len(t.ID) + len(t.Topic) + len(t.Group) + len(t.Payload) + len(t.LastError)
	if t.Target != nil {
		n += sizeOfAttempt + len(t.Target.Settings)
	}
	for i := range t.Attempts {
		n += sizeOfAttempt + len(t.Attempts[i].By) + len(t.Attempts[i].Error)
	}
	for name, value := range t.Headers {
		n += len(name) + len(value)
	}
	return n
}

// CompareRefs orders positions by their time, then by their id.
func CompareRefs(a, b recovery.Ref) int {
	if c := cmp.Compare(a.Next, b.Next); c != 0 {
		return c
	}
	return strings.Compare(a.ID, b.ID)
}

// PageBounds reads the limit and the cursor of a listing.
func PageBounds(limit int, cursor string) (int, recovery.Ref, error) {
	var f task.Faults
	if limit == 0 {
		limit = 100
	}
	if limit < 1 || limit > 1000 {
		f.Add("limit", "must be from 1 to 1000")
	}
	after, ok := DecodeCursor(cursor)
	if !ok {
		f.Add("cursor", "must be the next_cursor of the page before")
	}
	return limit, after, f.Err()
}

// EncodeCursor returns the cursor behind a page's last task: its time and its id.
func EncodeCursor(ref recovery.Ref) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(ref.Next))
	return base64.RawURLEncoding.EncodeToString(append(b, ref.ID...))
}

// DecodeCursor is the reverse of EncodeCursor. It reports false for any other text.
func DecodeCursor(cursor string) (recovery.Ref, bool) {
	if cursor == "" {
		return recovery.Ref{}, true
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) < 9 || !task.ValidName(string(b[8:])) || strings.ContainsAny(cursor, "\r\n") {
		return recovery.Ref{}, false
	}
	return recovery.Ref{Next: int64(binary.BigEndian.Uint64(b)), ID: string(b[8:])}, true
}
