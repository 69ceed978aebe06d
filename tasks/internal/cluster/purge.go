package cluster

import (
	"context"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// The calls to all nodes about the tasks of a topic or a group.
var (
	PurgeMethod = Method[engine.PurgeQuery, PurgeReply]{Name: "purge", writes: true, here: (*Cluster).PurgeLocal}
	UsedMethod  = Method[usedQuery, usedReply]{Name: "used", here: (*Cluster).usedLocal}
)

type (
	// A PurgeReply says what a node has purged.
	PurgeReply struct {
		Coverage
		Cancelled  int
		Delivering []leftCount `json:",omitempty"` // how many were being delivered
		Left       []leftTask  `json:",omitempty"` // the first of these
		// Retried are the first of the cancelled tasks that had been delivered before: the
		// node that did so may have counted them as being delivered.
		Retried []string `json:",omitempty"`
	}
	leftCount struct {
		ShardID recovery.ShardID `json:"Home,omitempty"` // 0: they are spooled
		Count   int
	}
	leftTask struct {
		ID      string
		ShardID recovery.ShardID `json:"Home,omitempty"`
	}
	// A usedQuery asks whether a topic has tasks that are not dead.
	usedQuery struct{ Topic string }
	usedReply struct {
		Coverage
		Used bool
	}
)

// PurgeAll purges at all nodes.
func (s *Cluster) PurgeAll(ctx context.Context, q engine.PurgeQuery) (t engine.PurgeResult, err error) {
	if s.HasAll() {
		p := s.engine.NewPurge(&q)
		_, err := p.Run(ctx, 0)
		return p.Result(), err
	}
	err = everywhere(ctx, s, PurgeMethod, q, func(a *PurgeReply, counts func(recovery.ShardID) bool) { addReply(&t, a, counts) })
	t.Left = t.Left[:min(len(t.Left), q.Keep)]
	return t, err
}

// addReply takes what a node has done. A task that one node was delivering, and another one has
// cancelled since, in a shard that has changed hands, counts as cancelled.
func addReply(t *engine.PurgeResult, a *PurgeReply, counts func(recovery.ShardID) bool) {
	t.Cancelled += a.Cancelled
	for _, l := range a.Delivering {
		if counts(l.ShardID) {
			t.Delivering += l.Count
		}
	}
	for _, l := range a.Left {
		if counts(l.ShardID) {
			t.Left = append(t.Left, l.ID)
		}
	}
	if t.Retried == nil {
		t.Retried = make(map[string]struct{})
	}
	for _, id := range a.Retried {
		t.Retried[id] = struct{}{}
	}
	t.Left = slices.DeleteFunc(t.Left, func(id string) bool {
		_, cancelled := t.Retried[id]
		if cancelled {
			t.Delivering--
		}
		return cancelled
	})
}

// PurgeLocal purges what this node has, for a while.
func (s *Cluster) PurgeLocal(ctx context.Context, q engine.PurgeQuery) (PurgeReply, error) {
	if q.Topic != "" && !ValidPurge(q.Topic) || q.Group != "" && !task.ValidName(q.Group) || (q.Topic == "") == (q.Group == "") {
		return PurgeReply{}, task.Invalid("topic", task.NameProblem)
	}
	p := s.engine.NewPurge(&q)
	var c Coverage
	st, err := s.Covers(ctx, &c, func(ctx context.Context) error {
		all, err := p.Run(ctx, s.pieceTime())
		c.More = !all && err == nil
		return err
	})
	a := purgeReplyOf(p, st)
	a.Coverage = c
	return a, err
}

// purgeReplyOf tells another node what a purge has done. A task that was being delivered counts
// only in the shards of the snapshot.
func purgeReplyOf(p *engine.Purge, st engine.Snapshot) PurgeReply {
	a := PurgeReply{Cancelled: p.Cancelled, Retried: p.Retried}
	for shard, n := range p.Delivering {
		if h, ok := st[int(shard)]; ok {
			a.Delivering = append(a.Delivering, leftCount{h.ShardID, n})
		}
	}
	for _, l := range p.Named {
		if h, ok := st[int(l.Shard)]; ok {
			a.Left = append(a.Left, leftTask{l.ID, h.ShardID})
		}
	}
	return a
}

// ValidPurge reports whether topic is the name of a topic, or a non-empty beginning of names and an
// asterisk.
func ValidPurge(topic string) bool { return task.ValidName(strings.TrimSuffix(topic, "*")) }

// UsedAnywhere reports whether a topic has tasks at any node. A positive answer counts even if
// other nodes fail.
func (s *Cluster) UsedAnywhere(ctx context.Context, name string) (used bool, err error) {
	err = everywhere(ctx, s, UsedMethod, usedQuery{name}, func(a *usedReply, _ func(recovery.ShardID) bool) { used = used || a.Used })
	if used {
		return true, nil
	}
	return false, err
}

func (s *Cluster) usedLocal(ctx context.Context, q usedQuery) (a usedReply, err error) {
	_, err = s.Covers(ctx, &a.Coverage, func(context.Context) error {
		a.Used = s.engine.Used(q.Topic)
		return nil
	})
	return a, err
}
