// Package ranking says which topics come first in an order: by a few figures of each, which nodes
// send one another.
package ranking

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/lapsehq/lapse/tasks/task"
)

// A Rank has the figures of a topic by which topics are sorted. Its names for other nodes are short
// because there are many of it.
type Rank struct {
	Name         string `json:"n"`
	Oldest       int64  `json:"o,omitempty"` // earliest overdue deadline, Unix ms; or 0
	Pending      int64  `json:"p,omitempty"`
	Ready        int64  `json:"r,omitempty"`
	Dead         int64  `json:"d,omitempty"`
	Failed       int64  `json:"f,omitempty"` // attempts since the start
	FailedRecent int64  `json:"e,omitempty"` // attempts in the last minutes
	Paused       bool   `json:"z,omitempty"`
}

// Add adds the figures of another node.
func (r *Rank) Add(o *Rank) {
	r.Pending += o.Pending
	r.Ready += o.Ready
	r.Dead += o.Dead
	r.Failed += o.Failed
	r.FailedRecent += o.FailedRecent
	if r.Oldest == 0 || o.Oldest != 0 && o.Oldest < r.Oldest {
		r.Oldest = o.Oldest
	}
}

// Moves reports whether the figures of one node can change where a topic stands in an order.
// Whether it is paused follows from its settings, which all nodes know.
func (r *Rank) Moves(sort task.TopicSort) bool {
	switch sort {
	case task.SortName:
		return false
	case task.SortWorst:
		return r.Oldest != 0 || r.FailedRecent != 0 || r.Dead != 0
	}
	return true
}

// Digest returns a number that is the same for the same names, in whatever order, and hardly ever
// for others. It is never 0.
func Digest(ranks []*Rank) (sum uint64) {
	for _, r := range ranks {
		sum += xxhash.Sum64String(r.Name)
	}
	return max(sum, 1)
}

// A Place is where a topic stands in an order: by class, then by value, then by name.
type Place struct {
	class, value int64
	name         string
	Rank         *Rank
}

func (p *Place) compare(o *Place) int {
	return cmp.Or(cmp.Compare(p.class, o.class), cmp.Compare(p.value, o.value), strings.Compare(p.name, o.name))
}

// Cursor leads to what comes after the place. A topic that changes its place meanwhile is listed
// twice or not at all.
func (p *Place) Cursor(sort task.TopicSort) string {
	return fmt.Sprintf("%s~%d~%d~%s", sort, p.class, p.value, p.name)
}

// CheckCursor reports whether a query with an order has a cursor of that order, or none.
func CheckCursor(q *task.TopicQuery) bool {
	_, err := placeOfCursor(q)
	return err == nil
}

func placeOfCursor(q *task.TopicQuery) (*Place, error) {
	if q.Cursor == "" {
		return nil, nil
	}
	p := &Place{}
	_, err := fmt.Sscanf(q.Cursor, string(q.Sort)+"~%d~%d~%s", &p.class, &p.value, &p.name)
	if err == nil && (p.Cursor(q.Sort) != q.Cursor || !task.ValidName(p.name)) {
		err = fmt.Errorf("%w: the cursor", task.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// First returns the first places that a query has behind its cursor. now is in Unix milliseconds.
func First(ranks []*Rank, q *task.TopicQuery, limit int, now int64) []Place {
	after, _ := placeOfCursor(q)
	first := Smallest[Place]{Limit: limit, Compare: func(a, b Place) int { return a.compare(&b) }}
	for _, r := range ranks {
		class, value := classOf(r, q.Sort, now)
		p := Place{class, value, r.Name, r}
		if after == nil || after.compare(&p) < 0 {
			first.Add(p)
		}
	}
	return first.Sorted()
}

// Names returns the names of topics at some places.
func Names(places []Place) []string {
	names := make([]string, len(places))
	for i := range places {
		names[i] = places[i].name
	}
	return names
}

// classOf returns where a topic stands in an order: the smaller ones come first.
func classOf(r *Rank, sort task.TopicSort, now int64) (class, value int64) {
	switch sort {
	case task.SortWorst:
		switch {
		case !r.Paused && r.Oldest != 0 && now-r.Oldest >= task.LateAfter.Milliseconds():
			return 0, r.Oldest
		case r.FailedRecent > 0:
			return 1, -r.FailedRecent
		case r.Dead > 0:
			return 2, -r.Dead
		case r.Paused:
			return 3, 0
		}
		return 4, 0
	case task.SortLate:
		if r.Paused || r.Oldest == 0 {
			return 1, 0
		}
		return 0, r.Oldest
	case task.SortFailed:
		if r.FailedRecent > 0 {
			return 0, -r.FailedRecent
		}
		return 1, -r.Failed
	case task.SortDead:
		return 0, -r.Dead
	case task.SortReady:
		return 0, -r.Ready
	case task.SortPending:
		return 0, -r.Pending
	case task.SortPaused:
		if r.Paused {
			return 0, -r.Pending - r.Ready
		}
		return 1, 0
	}
	return 0, 0
}

// Smallest keeps the smallest of many values.
type Smallest[T any] struct {
	Limit   int
	Compare func(a, b T) int
	kept    []T
	full    bool // kept has been sorted: its value at limit-1 bounds what is added
}

// Add takes a value in, if it is among the smallest.
func (k *Smallest[T]) Add(v T) {
	if k.full && k.Compare(v, k.kept[k.Limit-1]) >= 0 {
		return
	}
	if k.kept = append(k.kept, v); len(k.kept) >= 4*k.Limit {
		k.Sorted()
	}
}

// Sorted returns what is kept, in order.
func (k *Smallest[T]) Sorted() []T {
	slices.SortFunc(k.kept, k.Compare)
	if len(k.kept) >= k.Limit {
		k.kept, k.full = k.kept[:k.Limit], true
	}
	return k.kept
}
