package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/portable"
	"github.com/lapsehq/lapse/tasks/task"
)

// The last stage of an export reads tasks that were requeued since the round began. A node logs
// those that it has requeued (store.Requeued), and no other node has its log. The log of a node
// covers a shard from a mark on only if the node has held the shard ever since: another one may
// have requeued tasks of it before. So a node that acquires a shard begins its log anew, and
// earlier marks of it are no longer known.
//
// Like the pages of the passes, this goes by shards (see snapshot.go), and not by which nodes are
// registered: each shard must be covered by a node that knows its mark. If one is not, another
// round begins. For example: d joins while an export runs, takes a shard over from a, requeues a
// task of it, and ends. The shard goes to b, which begins its log anew. In the end b covers the
// shard and does not know its mark.

// RequeuedMethod is called at all nodes.
var RequeuedMethod = Method[requeuedQuery, requeuedReply]{Name: "requeued", here: (*Cluster).requeuedLocal,
	deadAlone: func(*requeuedQuery) bool { return true },
}

type (
	// A requeuedQuery asks for the ids of tasks that were requeued since the marks of the nodes, up
	// to Limit at each. With Limit 0 it asks for the present marks.
	requeuedQuery struct {
		Marks map[string]requeuedMark `json:",omitempty"`
		Limit int
	}
	requeuedReply struct {
		Coverage
		Node string
		IDs  []string     `json:",omitempty"`
		Mark requeuedMark // with Limit 0
		// Forgotten: it is not known which tasks of these shards were requeued since the mark.
		Forgotten bool `json:",omitempty"`
	}
	// A requeuedMark is a number in a run of a log, see store.Requeued.
	requeuedMark struct{ Run, Number uint64 }
)

// requeuedLocal answers which tasks were requeued at this node.
func (s *Cluster) requeuedLocal(ctx context.Context, q requeuedQuery) (a requeuedReply, err error) {
	if s.Fleet == nil {
		return a, s.readRequeued(&q, &a)
	}
	a.Node = s.Fleet.node
	_, err = s.Covers(ctx, &a.Coverage, func(context.Context) error { return s.readRequeued(&q, &a) })
	return a, err
}

func (s *Cluster) readRequeued(q *requeuedQuery, a *requeuedReply) error {
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	if s.engine.Ended {
		return task.ErrClosed
	}
	r := &s.engine.Dead.Requeued
	if q.Limit <= 0 {
		a.Mark = requeuedMark{r.Run, r.Count}
		return nil
	}
	mark := q.Marks[a.Node]
	ids, known := r.Since(mark.Number, min(q.Limit, portable.MostIDs))
	if a.Forgotten = !known || mark.Run != r.Run; !a.Forgotten {
		a.IDs = ids
	}
	return nil
}

// requeuedAll calls all nodes, and returns the replies of those that hold shards, by name.
func (s *Cluster) requeuedAll(ctx context.Context, q requeuedQuery) (map[string]requeuedReply, error) {
	if s.Fleet == nil {
		a, err := s.requeuedLocal(ctx, q)
		return map[string]requeuedReply{"": a}, err
	}
	all := make(map[string]requeuedReply)
	err := everywhere(ctx, s, RequeuedMethod, q, func(a *requeuedReply, _ func(recovery.ShardID) bool) {
		if len(a.Covered) == 0 {
			return // another node covers what it has held
		}
		reply := *a
		// An earlier reply of the node is about other shards.
		reply.Forgotten = reply.Forgotten || all[a.Node].Forgotten
		all[a.Node] = reply
	})
	return all, err
}

// beginRound notes which tasks were requeued before. What an earlier round has exported counts no
// more.
func (s *Cluster) beginRound(ctx context.Context, c *exportCursor, page *task.ExportPage) error {
	all, err := s.requeuedAll(ctx, requeuedQuery{})
	if err != nil {
		return err
	}
	c.Marks = make(map[string]requeuedMark, len(all))
	for node := range all {
		c.Marks[node] = all[node].Mark
	}
	c.Stage, c.From, c.Counts = exportMemory, wireExportedAt{}, c.Begun
	page.Begins = true
	return nil
}

// exportAgain exports tasks that were requeued since the round began. Another round begins if it
// is not known which.
func (s *Cluster) exportAgain(ctx context.Context, c *exportCursor, q portable.Query, page *task.ExportPage) error {
	replies, err := s.requeuedAll(ctx, requeuedQuery{c.Marks, portable.MostIDs})
	if err != nil {
		return err
	}
	for _, a := range replies {
		switch {
		case a.Forgotten && c.Round+1 == exportRounds:
			return fmt.Errorf("%w: the export has begun %d times; each time shards changed hands, or too many dead tasks were requeued", task.ErrUnavailable, exportRounds)
		case a.Forgotten:
			c.Round++
			return s.beginRound(ctx, c, page)
		}
	}
	next := maps.Clone(c.Marks)
	var all portable.Part
	asked, bytes := 0, 0
	for _, node := range slices.Sorted(maps.Keys(replies)) {
		for ids := range slices.Chunk(replies[node].IDs, s.requeuedAtOnce()) {
			if asked >= portable.MostIDs || bytes >= task.MaxPageBytes {
				break
			}
			q.IDs = engine.Once(ids)
			part, err := s.exportAll(ctx, q)
			if err != nil {
				return err
			}
			mark := next[node]
			mark.Number += uint64(len(ids))
			next[node], asked = mark, asked+len(ids)
			all.Items, all.Unreadable = append(all.Items, part.Items...), all.Unreadable+part.Unreadable
			for _, item := range part.Items {
				bytes += len(item.Record)
			}
		}
	}
	if asked == 0 {
		c.Stage = exportOver
		return nil
	}
	c.Marks = next
	return c.add(page, &all)
}

// requeuedAtOnce is how many requeued tasks are read at once: so few that the largest payloads
// make half of a page.
func (s *Cluster) requeuedAtOnce() int {
	return min(max(task.MaxPageBytes/2/s.engine.Config.MaxPayload, 1), portable.MostIDs)
}
