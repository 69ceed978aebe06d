package tasks

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// visitPage hands out the first tasks here, in their order, each with the time under which
// it stands in the list, and its shard, until visit returns false. It returns the position
// behind which there are more, or nil.
func (s *engine) visitPage(ctx context.Context, q *listQuery, visit func(t Task, at int64, shard int) bool) (last *recovery.Ref, err error) {
	if q.State == Dead {
		return s.visitDead(ctx, q, visit)
	}
	first, err := s.selectSoonest(ctx, q, q.Limit+1)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(first, compareRefs)
	for i, ref := range first {
		if i == q.Limit {
			return &first[i-1], nil
		}
		var t Task
		shard := 0
		s.mu.Lock()
		n, ok := s.store.Find([]byte(ref.ID))
		if ok = ok && s.store.Slot(n).State.Shown() != 0; ok {
			t, shard = s.taskLocked(n), int(s.store.Slot(n).Shard)
		}
		s.unlock()
		if ok && !visit(t, ref.Next, shard) && i+1 < len(first) {
			return &first[i], nil
		}
	}
	return nil, nil
}

// MaxPageBytes bounds the tasks of one page of a list, and of one Reserve, in bytes of
// payloads, headers and names: both end with the task that reaches it. What is left comes
// with the next page, or with the next Reserve.
const MaxPageBytes = 4 << 20

// sizeOf is what a task counts for against MaxPageBytes.
func sizeOf(t *Task) int {
	n := len(t.ID) + len(t.Topic) + len(t.Group) + len(t.Payload) + len(t.LastError)
	for name, value := range t.Headers {
		n += len(name) + len(value)
	}
	return n
}

// ref is where a task stands in the list.
func (t *listed) ref() recovery.Ref { return recovery.Ref{ID: t.Task.ID, Next: t.At} }

// selectSoonest looks for the soonest tasks after a cursor.
func (s *engine) selectSoonest(ctx context.Context, q *listQuery, limit int) (first soonest, err error) {
	after := q.After
	var w *walk
	for w == nil || !w.over {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if s.ended {
			s.unlock()
			return nil, ErrClosed
		}
		if w == nil {
			w = s.walkLocked(pick{q.Topic, q.Patterns}, q.Group)
			defer w.leave()
		}
		for _, sl := range w.pieceLocked() {
			if sl.Next < after.Next || len(first) == limit && sl.Next > first[0].Next {
				continue
			}
			if shown := sl.State.Shown(); shown != 0 && (q.State == 0 || shown == q.State) {
				s.considerLocked(&first, limit, sl, after)
			}
		}
		s.unlock()
	}
	return first, nil
}

// considerLocked keeps a task if it is among the soonest so far.
func (s *engine) considerLocked(first *soonest, limit int, sl *store.Slot, after recovery.Ref) {
	ref := recovery.Ref{Next: sl.Next, ID: string(s.store.ID(sl))}
	if compareRefs(ref, after) <= 0 {
		return
	}
	if len(*first) < limit {
		heap.Push(first, ref)
	} else if compareRefs(ref, (*first)[0]) < 0 {
		(*first)[0] = ref
		heap.Fix(first, 0)
	}
}

// soonest keeps the soonest tasks seen so far, the last of them on top.
type soonest []recovery.Ref

func (h soonest) Len() int { return len(h) }

func (h soonest) Less(i, j int) bool { return compareRefs(h[i], h[j]) > 0 }

func (h soonest) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *soonest) Push(x any) { *h = append(*h, x.(recovery.Ref)) }

func (h *soonest) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

func compareRefs(a, b recovery.Ref) int {
	if c := cmp.Compare(a.Next, b.Next); c != 0 {
		return c
	}
	return strings.Compare(a.ID, b.ID)
}

// pageBounds reads the limit and the cursor of a listing.
func pageBounds(limit int, cursor string) (int, recovery.Ref, error) {
	var f task.Faults
	if limit == 0 {
		limit = 100
	}
	if limit < 1 || limit > 1000 {
		f.Add("limit", "must be from 1 to 1000")
	}
	after, ok := decodeCursor(cursor)
	if !ok {
		f.Add("cursor", "must be the next_cursor of the page before")
	}
	return limit, after, f.Err()
}

// A cursor is the time and the id of a page's last task.
func encodeCursor(ref recovery.Ref) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(ref.Next))
	return base64.RawURLEncoding.EncodeToString(append(b, ref.ID...))
}

func decodeCursor(cursor string) (recovery.Ref, bool) {
	if cursor == "" {
		return recovery.Ref{}, true
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) < 9 || !task.ValidName(string(b[8:])) || strings.ContainsAny(cursor, "\r\n") {
		return recovery.Ref{}, false
	}
	return recovery.Ref{Next: int64(binary.BigEndian.Uint64(b)), ID: string(b[8:])}, true
}

// A listQuery asks for the first tasks behind a position: soonest first, or the longest
// dead first with the state Dead.
type listQuery struct {
	Topic, Group string
	State        State
	Limit        int
	After        recovery.Ref
	Bytes        int      `json:",omitempty"` // about how much of tasks is wanted at most; 0: MaxPageBytes
	Patterns     []string `json:",omitempty"` // of the topics that the caller may use; empty: all
}

type listed struct {
	Task Task
	At   int64 // where it stands in the list
}
