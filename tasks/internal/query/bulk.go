package query

import (
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// A Purge asks for the tasks of a topic or a group to be cancelled, or killed. The topic may be the
// beginning of names and an asterisk.
type Purge struct {
	Topic, Group string
	Kill         bool
	Keep         int      // how many of those that are being delivered are to be named
	Patterns     []string // as of a List
}

// A PurgePart says what a node has purged.
type PurgePart struct {
	Cancelled  int
	Delivering []LeftCount `json:",omitempty"` // how many were being delivered
	Left       []LeftTask  `json:",omitempty"` // the first of these
	// Retried are the first of the cancelled tasks that had been delivered before: the node that
	// did so may have counted them as being delivered.
	Retried []string `json:",omitempty"`
}

// A LeftCount says how many tasks of a shard were being delivered.
type LeftCount struct {
	ShardID recovery.ShardID `json:"Home,omitempty"` // 0: they are spooled
	Count   int
}

// A LeftTask is one that was being delivered, with its shard as of a LeftCount.
type LeftTask struct {
	ID      string
	ShardID recovery.ShardID `json:"Home,omitempty"`
}

// Purged counts the tasks of a purge at all nodes.
type Purged struct {
	Cancelled, Delivering int
	Left                  []string            // ids of the first of those that were being delivered
	retried               map[string]struct{} // cancelled tasks that had been delivered before
}

// Add adds the part of a node, and what it says of the shards that count. A task that one node was
// delivering, and another one has cancelled since, in a shard that has changed hands, counts as
// cancelled.
func (t *Purged) Add(p *PurgePart, counts func(recovery.ShardID) bool) {
	t.Cancelled += p.Cancelled
	for _, l := range p.Delivering {
		if counts(l.ShardID) {
			t.Delivering += l.Count
		}
	}
	for _, l := range p.Left {
		if counts(l.ShardID) {
			t.Left = append(t.Left, l.ID)
		}
	}
	if t.retried == nil {
		t.retried = make(map[string]struct{})
	}
	for _, id := range p.Retried {
		t.retried[id] = struct{}{}
	}
	t.Left = slices.DeleteFunc(t.Left, func(id string) bool {
		_, cancelled := t.retried[id]
		if cancelled {
			t.Delivering--
		}
		return cancelled
	})
}

// A Redrive asks for dead tasks of a topic to be requeued or deleted: those with the
// ids, or as many as are dead.
type Redrive struct {
	Topic  string
	Delete bool
	Due    int64 // the new deadline; 0: now
	All    bool  // instead of the ids
	IDs    []string
	Died   int64 // of all: when it was asked for, and those that were dead are meant
	// Of all, when it has been asked before: how many are left to count, and behind which.
	Left  int
	After recovery.Ref
	// Act is the act that redrives the ids, which may be of any topic if Topic is empty; nil: none.
	Act *Act
	// Mend changes the content of the one task that is requeued; nil: it stays.
	Mend *Mend
}

// A Mend is task.Mend as records have it.
type Mend struct {
	Payload    []byte `json:",omitempty"` // nil: it stays
	Headers    []byte `json:",omitempty"`
	Target     []byte `json:",omitempty"`
	HasHeaders bool   `json:",omitempty"` // false: they stay
	HasTarget  bool   `json:",omitempty"`
}

// Apply changes the fields of a record.
func (m *Mend) Apply(f *record.Fields) {
	if m.Payload != nil {
		f.Payload = m.Payload
	}
	if m.HasHeaders {
		f.Headers = m.Headers
	}
	if m.HasTarget {
		f.Target = m.Target
	}
}

// A RedrivePart says what a node has redriven.
type RedrivePart struct {
	Done  int
	IDs   []string `json:",omitempty"` // which of the given ones
	Left  int      `json:",omitempty"`
	After recovery.Ref
	Acted []string `json:",omitempty"` // as of Redriven
}

// Redriven says what all nodes have redriven.
type Redriven struct {
	Done    int
	Unknown []string // ids that were not redriven: without an error they are not among the dead
	Acted   []string // ids that an act has changed since the one that redrives began
}

// Next is the query for what a part has left over.
func (q *Redrive) Next(p *RedrivePart) Redrive {
	next := *q
	if next.Left, next.After = p.Left, p.After; !q.All {
		next.IDs = q.IDs[len(q.IDs)-p.Left:]
	}
	return next
}

// Once returns ids with each one once: a second attempt at one would not find its task.
func Once(ids []string) []string {
	return once(slices.Clone(ids), func(id string) string { return id })
}

// once removes what has the id of one before.
func once[T any](all []T, id func(T) string) []T {
	seen := make(map[string]bool, len(all))
	return slices.DeleteFunc(all, func(t T) bool {
		before := seen[id(t)]
		seen[id(t)] = true
		return before
	})
}
