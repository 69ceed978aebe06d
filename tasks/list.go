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
// visits every task in memory once, a few thousand under one lock, so its cost
// grows with the number of tasks and does not hold others up. While replay runs,
// what was not read yet is missing.
//
// Errors: ErrInvalid, ErrUnavailable (dead tasks only), ErrClosed.
func (s *Scheduler) List(ctx context.Context, q Query) (Page, error) {
	if q.State > Dead {
		return Page{}, &InvalidError{Fields: []FieldError{{"state", "must be pending, ready, delivering or dead"}}}
	}
	if q.Topic != "" && !validName(q.Topic) {
		return Page{}, &InvalidError{Fields: []FieldError{{"topic", nameProblem}}}
	}
	if q.State == Dead {
		return s.listDead(ctx, q)
	}
	limit, after, err := pageBounds(q.Limit, q.Cursor)
	if err != nil {
		return Page{}, err
	}
	var first soonest
	for from := uint32(0); ; from += chunkSlots {
		if err := ctx.Err(); err != nil {
			return Page{}, err
		}
		s.mu.Lock()
		if s.ended {
			s.unlock()
			return Page{}, ErrClosed
		}
		if int(from) >= len(s.book.chunks)*chunkSlots {
			s.unlock()
			break
		}
		s.selectLocked(&first, from, limit+1, after, q)
		s.unlock()
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
	if q.Topic != "" {
		return s.DeadTasks(ctx, q.Topic, q.Limit, q.Cursor)
	}
	return Page{}, &InvalidError{Fields: []FieldError{{"topic", "must be given with the state dead"}}}
}

// selectLocked looks through one chunk of slots for the soonest tasks after a cursor.
func (s *Scheduler) selectLocked(first *soonest, from uint32, limit int, after recovery.Ref, q Query) {
	var only uint32 // number of the topic; 0 for all
	if q.Topic != "" {
		t, ok := s.topics[q.Topic]
		if !ok {
			return
		}
		only = t.number
	}
	chunk := s.book.chunks[from/chunkSlots]
	for i := range chunk {
		sl := &chunk[i]
		shown := sl.state.shown()
		if shown == 0 || q.State != 0 && shown != q.State || only != 0 && sl.topic != only || sl.next < after.Next {
			continue
		}
		if len(*first) == limit && sl.next > (*first)[0].Next {
			continue
		}
		ref := recovery.Ref{Next: sl.next, ID: string(s.book.id(sl))}
		if compareRefs(ref, after) <= 0 {
			continue
		}
		if len(*first) < limit {
			heap.Push(first, ref)
		} else if compareRefs(ref, (*first)[0]) < 0 {
			(*first)[0] = ref
			heap.Fix(first, 0)
		}
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
