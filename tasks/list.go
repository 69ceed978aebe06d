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
)

// List returns one page of the tasks that a query selects, soonest first. It
// visits every task in memory once, or every task of the group that is asked for, a
// few thousand under one lock, so its cost grows with the number of tasks and does not
// hold others up. While replay runs, what was not read yet is missing.
//
// Errors: ErrInvalid, ErrUnavailable (dead tasks only), ErrClosed.
func (s *Scheduler) List(ctx context.Context, q Query) (Page, error) {
	var f faults
	if q.State > Dead {
		f.add("state", "must be pending, ready, delivering or dead")
	}
	if q.Topic != "" && !validName(q.Topic) {
		f.add("topic", nameProblem)
	}
	if q.Group != "" && !validName(q.Group) {
		f.add("group", nameProblem)
	}
	if err := f.err(); err != nil {
		return Page{}, err
	}
	if q.State == Dead {
		return s.listDead(ctx, q)
	}
	limit, after, err := pageBounds(q.Limit, q.Cursor)
	if err != nil {
		return Page{}, err
	}
	first, err := s.selectSoonest(ctx, q, limit+1, after)
	if err != nil {
		return Page{}, err
	}
	slices.SortFunc(first, compareRefs)
	page := Page{Tasks: make([]Task, 0, min(limit, len(first)))}
	if len(first) > limit {
		first = first[:limit]
		page.Cursor = encodeCursor(first[limit-1])
	}
	for _, ref := range first {
		s.mu.Lock()
		if n, ok := s.book.find([]byte(ref.ID)); ok && s.book.slot(n).state.shown() != 0 {
			page.Tasks = append(page.Tasks, s.taskLocked(n))
		}
		s.unlock()
	}
	return page, nil
}

func (s *Scheduler) listDead(ctx context.Context, q Query) (Page, error) {
	switch {
	case q.Group != "": // the ledger orders the dead by topic only
		return Page{}, &InvalidError{Fields: []FieldError{{"group", "must not stand beside the state dead"}}}
	case q.Topic == "":
		return Page{}, &InvalidError{Fields: []FieldError{{"topic", "must be given with the state dead"}}}
	}
	return s.DeadTasks(ctx, q.Topic, q.Limit, q.Cursor)
}

// selectSoonest looks for the soonest tasks after a cursor.
func (s *Scheduler) selectSoonest(ctx context.Context, q Query, limit int, after recovery.Ref) (first soonest, err error) {
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
			w = s.walkLocked(q.Topic, q.Group)
			defer w.leave()
		}
		for _, sl := range w.pieceLocked() {
			if sl.next < after.Next || len(first) == limit && sl.next > first[0].Next {
				continue
			}
			if shown := sl.state.shown(); shown != 0 && (q.State == 0 || shown == q.State) {
				s.considerLocked(&first, limit, sl, after)
			}
		}
		s.unlock()
	}
	return first, nil
}

// considerLocked keeps a task if it is among the soonest so far.
func (s *Scheduler) considerLocked(first *soonest, limit int, sl *slot, after recovery.Ref) {
	ref := recovery.Ref{Next: sl.next, ID: string(s.book.id(sl))}
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

func (h soonest) Len() int           { return len(h) }
func (h soonest) Less(i, j int) bool { return compareRefs(h[i], h[j]) > 0 }
func (h soonest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *soonest) Push(x any)        { *h = append(*h, x.(recovery.Ref)) }
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
	var f faults
	if limit == 0 {
		limit = 100
	}
	if limit < 1 || limit > 1000 {
		f.add("limit", "must be from 1 to 1000")
	}
	after, ok := decodeCursor(cursor)
	if !ok {
		f.add("cursor", "must be the next_cursor of the page before")
	}
	return limit, after, f.err()
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
	if err != nil || len(b) < 9 || !validName(string(b[8:])) || strings.ContainsAny(cursor, "\r\n") {
		return recovery.Ref{}, false
	}
	return recovery.Ref{Next: int64(binary.BigEndian.Uint64(b)), ID: string(b[8:])}, true
}
