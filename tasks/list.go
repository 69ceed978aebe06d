package tasks

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
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
	limit, after, err := engine.PageBounds(q.Limit, q.Cursor)
	if err != nil {
		return Page{}, err
	}
	if q.Topic != "" {
		if err := engine.Granted(ctx, q.Topic); err != nil {
			return Page{}, err
		}
	}
	ask := engine.ListQuery{Topic: q.Topic, Group: q.Group, State: q.State, Limit: limit, After: after, Patterns: task.PatternsOf(ctx)}
	if !s.noPeers() {
		return s.listAll(ctx, ask)
	}
	page := Page{Tasks: make([]Task, 0, min(limit, 100))}
	size := 0
	last, err := s.engine.VisitPage(ctx, &ask, func(t Task, _ int64, _ int) bool {
		page.Tasks = append(page.Tasks, t)
		size += engine.SizeOf(&t)
		return size < MaxPageBytes
	})
	if err != nil {
		return Page{}, err
	}
	if last != nil {
		page.Cursor = engine.EncodeCursor(*last)
	}
	return page, nil
}

// listHere lists what this node has.
func (s *Scheduler) listHere(ctx context.Context, q engine.ListQuery) (a listReply, err error) {
	if q.Limit < 1 || q.Limit > 1000 || q.State == Dead && !task.ValidName(q.Topic) {
		return a, task.Invalid("limit", "must be from 1 to 1000")
	}
	most := min(cmp.Or(q.Bytes, MaxPageBytes), MaxPageBytes)
	var shards []int
	st, err := s.covers(ctx, &a.coverage, func(ctx context.Context) (err error) {
		size := 0
		a.Last, err = s.engine.VisitPage(ctx, &q, func(t Task, at int64, shard int) bool {
			a.Tasks, shards = append(a.Tasks, engine.Listed{Task: t, At: at}), append(shards, shard)
			size += engine.SizeOf(&t)
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

// listAll merges what all nodes list. The page ends where one of them has not told what
// follows.
func (s *Scheduler) listAll(ctx context.Context, q engine.ListQuery) (Page, error) {
	nodes, err := s.shared.ledger.Peers(ctx)
	if err != nil {
		return Page{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	q.Bytes = max(1, MaxPageBytes/max(1, len(nodes)))
	var all []engine.Listed
	var end *recovery.Ref
	c := fanOut[engine.ListQuery, listReply, *listReply]{Scheduler: s, method: listMethod, query: q, here: (*Scheduler).listHere, deadAlone: q.State == Dead}
	c.take = func(a *listReply, _ func(recovery.Home) bool) {
		all = append(all, a.Tasks...)
		if a.Last != nil && (end == nil || engine.CompareRefs(*a.Last, *end) < 0) {
			end = a.Last
		}
	}
	if err := c.run(ctx); err != nil {
		return Page{}, err
	}
	slices.SortFunc(all, func(a, b engine.Listed) int { return engine.CompareRefs(a.Ref(), b.Ref()) })
	// Who has changed hands, or was listed by a node that had to be asked again, came twice.
	seen := make(map[string]bool, len(all))
	all = slices.DeleteFunc(all, func(t engine.Listed) bool {
		conflicting := seen[t.Task.ID]
		seen[t.Task.ID] = true
		return conflicting
	})
	if end != nil {
		n, _ := slices.BinarySearchFunc(all, *end, func(t engine.Listed, end recovery.Ref) int { return cmp.Or(engine.CompareRefs(t.Ref(), end), -1) })
		all = all[:n]
	}
	if n := fitting(all, q.Limit); n < len(all) {
		last := all[n-1].Ref()
		all, end = all[:n], &last
	}
	page := Page{Tasks: make([]Task, len(all))}
	for i := range all {
		page.Tasks[i] = all[i].Task
	}
	if end != nil {
		page.Cursor = engine.EncodeCursor(*end)
	}
	return page, nil
}

// fitting returns how many of the first tasks make a page. A node whose budget is small
// answers one task all the same, and one that was asked again answers twice: so together
// they may be more than a page.
func fitting(all []engine.Listed, limit int) int {
	size := 0
	for i := range all {
		if i == limit || size >= MaxPageBytes {
			return i
		}
		size += engine.SizeOf(&all[i].Task)
	}
	return len(all)
}
