package tasks

import (
	"context"
	"sync"

	"github.com/lapsehq/lapse/tasks/task"
)

// How names match, and bounds of a search, see package task.
const (
	MatchExact     = task.MatchExact
	MatchBegin     = task.MatchBegin
	MatchPart      = task.MatchPart
	MaxSearchFound = task.MaxSearchFound
	SearchFound    = task.SearchFound
	SearchWithin   = task.SearchWithin
)

// FleetSearch finds tasks by their ids, groups and topics by their names, at all nodes and in all
// states, the dead and the finished that are kept included. It returns one part of the search; the
// caller goes on with its Cursor until that is empty. Each part takes about as long as q.Within
// says, and half a second more where other nodes are asked. The first part has the topics, and the
// task whose id is q.Text if there is one: such a task comes again where the search meets it, as
// may any task that changes meanwhile. The grant of ctx bounds the topics, and the figures.
//
// What was there from the beginning of the first part to the end of the last one has been found,
// wherever it was meanwhile, if the last part is Complete. A node that does not answer is missing
// in that part, and so may be what it has; then no later part is Complete.
//
// Errors: ErrInvalid, ErrUnavailable, ErrClosed; why ctx has ended.
func (s Admin) FleetSearch(ctx context.Context, q SearchQuery) (Found, Reach, error) {
	q, err := q.Checked()
	if err != nil {
		return Found{}, Reach{}, err
	}
	var exact *Task
	var group sync.WaitGroup
	if q.Cursor == "" && task.ValidName(q.Text) {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, q.Within)
			defer cancel()
			if t, err := s.Get(ctx, q.Text); err == nil { // else the search meets it
				t.Shorten()
				exact = &t
			}
		})
	}
	f, reach, err := s.cluster.Search(ctx, q, true)
	group.Wait()
	if err == nil && exact != nil {
		f.AddTask(q.Text, exact)
		f.Sort()
	}
	return f, reach, err
}

// Search is FleetSearch of this node alone. Errors: as of FleetSearch.
func (s Admin) Search(ctx context.Context, q SearchQuery) (Found, error) {
	q, err := q.Checked()
	if err != nil {
		return Found{}, err
	}
	f, _, err := s.cluster.Search(ctx, q, false)
	return f, err
}
