package tasks

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// List returns one page of the tasks that a query selects, at all nodes, soonest first. A page
// has at most Query.Limit tasks and ends early at MaxPageBytes; its cursor leads on. Each
// node visits every task in its memory once, or every task of the group that is asked for, a
// few thousand under one lock, so its cost grows with the number of tasks and does not
// hold others up. While replay runs at a node that is alone, what was not read yet is missing.
//
// Errors: ErrInvalid, ErrUnavailable, ErrClosed; with several nodes also ErrNodeAway and
// ErrReplaying, while one that holds tasks does not answer, was not replaced yet, or
// still reads them, and ErrOverloaded; ErrNotGranted. On a node that is alone only a list of
// dead tasks is ErrUnavailable.
func (s *Scheduler) List(ctx context.Context, q Query) (Page, error) {
	var f task.Faults
	if q.State > Dead {
		f.Add("state", "must be pending, ready, delivering or dead")
	}
	if q.Topic != "" && !task.ValidName(q.Topic) {
		f.Add("topic", task.NameProblem)
	}
	if q.Group != "" && !task.ValidName(q.Group) {
		f.Add("group", task.NameProblem)
	}
	if err := f.Err(); err != nil {
		return Page{}, err
	}
	if q.State == Dead {
		switch {
		case q.Group != "": // the ledger orders the dead by topic only
			return Page{}, task.Invalid("group", "must not stand beside the state dead")
		case q.Topic == "":
			return Page{}, task.Invalid("topic", "must be given with the state dead")
		}
	}
	limit, after, err := pageBounds(q.Limit, q.Cursor)
	if err != nil {
		return Page{}, err
	}
	if q.Topic != "" {
		if err := granted(ctx, q.Topic); err != nil {
			return Page{}, err
		}
	}
	ask := listQuery{Topic: q.Topic, Group: q.Group, State: q.State, Limit: limit, After: after, Patterns: task.PatternsOf(ctx)}
	if !s.noPeers() {
		return s.listAll(ctx, ask)
	}
	page := Page{Tasks: make([]Task, 0, min(limit, 100))}
	size := 0
	last, err := s.visitPage(ctx, &ask, func(t Task, _ int64, _ int) bool {
		page.Tasks = append(page.Tasks, t)
		size += sizeOf(&t)
		return size < MaxPageBytes
	})
	if err != nil {
		return Page{}, err
	}
	if last != nil {
		page.Cursor = encodeCursor(*last)
	}
	return page, nil
}

// visitPage hands out the first tasks here, in their order, each with the time under which
// it stands in the list, and its shard, until visit returns false. It returns the position
// behind which there are more, or nil.
func (s *Scheduler) visitPage(ctx context.Context, q *listQuery, visit func(t Task, at int64, shard int) bool) (last *recovery.Ref, err error) {
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

// listHere lists what this node has.
func (s *Scheduler) listHere(ctx context.Context, q listQuery) (a listReply, err error) {
	if q.Limit < 1 || q.Limit > 1000 || q.State == Dead && !task.ValidName(q.Topic) {
		return a, task.Invalid("limit", "must be from 1 to 1000")
	}
	most := min(cmp.Or(q.Bytes, MaxPageBytes), MaxPageBytes)
	var shards []int
	st, err := s.covers(ctx, &a.coverage, func(ctx context.Context) (err error) {
		size := 0
		a.Last, err = s.visitPage(ctx, &q, func(t Task, at int64, shard int) bool {
			a.Tasks, shards = append(a.Tasks, listed{Task: t, At: at}), append(shards, shard)
			size += sizeOf(&t)
			return size < most
		})
		return err
	})
	kept := a.Tasks[:0]
	for i, t := range a.Tasks {
		if _, ok := st[shards[i]]; ok {
			kept = append(kept, t)
		}
	}
	a.Tasks = kept
	return a, err
}

// ref is where a task stands in the list.
func (t *listed) ref() recovery.Ref { return recovery.Ref{ID: t.Task.ID, Next: t.At} }

// listAll merges what all nodes list. The page ends where one of them has not told what
// follows.
func (s *Scheduler) listAll(ctx context.Context, q listQuery) (Page, error) {
	nodes, err := s.shared.ledger.Peers(ctx)
	if err != nil {
		return Page{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	q.Bytes = max(1, MaxPageBytes/max(1, len(nodes)))
	var all []listed
	var end *recovery.Ref
	c := fanOut[listQuery, listReply, *listReply]{Scheduler: s, method: listMethod, query: q, here: (*Scheduler).listHere, deadAlone: q.State == Dead}
	c.take = func(a *listReply, _ func(recovery.Home) bool) {
		all = append(all, a.Tasks...)
		if a.Last != nil && (end == nil || compareRefs(*a.Last, *end) < 0) {
			end = a.Last
		}
	}
	if err := c.run(ctx); err != nil {
		return Page{}, err
	}
	slices.SortFunc(all, func(a, b listed) int { return compareRefs(a.ref(), b.ref()) })
	// Who has changed hands, or was listed by a node that had to be asked again, came twice.
	seen := make(map[string]bool, len(all))
	all = slices.DeleteFunc(all, func(t listed) bool {
		conflicting := seen[t.Task.ID]
		seen[t.Task.ID] = true
		return conflicting
	})
	if end != nil {
		n, _ := slices.BinarySearchFunc(all, *end, func(t listed, end recovery.Ref) int { return cmp.Or(compareRefs(t.ref(), end), -1) })
		all = all[:n]
	}
	if n := fitting(all, q.Limit); n < len(all) {
		last := all[n-1].ref()
		all, end = all[:n], &last
	}
	page := Page{Tasks: make([]Task, len(all))}
	for i := range all {
		page.Tasks[i] = all[i].Task
	}
	if end != nil {
		page.Cursor = encodeCursor(*end)
	}
	return page, nil
}

// fitting returns how many of the first tasks make a page. A node whose budget is small
// answers one task all the same, and one that was asked again answers twice: so together
// they may be more than a page.
func fitting(all []listed, limit int) int {
	size := 0
	for i := range all {
		if i == limit || size >= MaxPageBytes {
			return i
		}
		size += sizeOf(&all[i].Task)
	}
	return len(all)
}

// selectSoonest looks for the soonest tasks after a cursor.
func (s *Scheduler) selectSoonest(ctx context.Context, q *listQuery, limit int) (first soonest, err error) {
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
func (s *Scheduler) considerLocked(first *soonest, limit int, sl *store.Slot, after recovery.Ref) {
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
