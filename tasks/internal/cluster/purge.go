package cluster

import (
	"context"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// The calls to all nodes about the tasks of a topic or a group.
var (
	PurgeMethod = Method[query.Purge, PurgeReply]{Name: "purge", writes: true, here: (*Cluster).PurgeLocal}
	UsedMethod  = Method[usedQuery, usedReply]{Name: "used", here: (*Cluster).usedLocal}
)

type (
	// A PurgeReply says what a node has purged.
	PurgeReply struct {
		Coverage
		query.PurgePart
	}
	// A usedQuery asks whether a topic has tasks that are not dead.
	usedQuery struct{ Topic string }
	usedReply struct {
		Coverage
		Used bool
	}
)

// PurgeAll purges at all nodes.
func (s *Cluster) PurgeAll(ctx context.Context, q query.Purge) (t query.Purged, err error) {
	if s.HasAll() {
		p := s.engine.NewPurge(&q)
		_, err = p.Run(ctx, 0)
		part := p.Part(nil)
		t.Add(&part, func(recovery.ShardID) bool { return true })
		return t, err
	}
	err = everywhere(ctx, s, PurgeMethod, q, func(a *PurgeReply, counts func(recovery.ShardID) bool) { t.Add(&a.PurgePart, counts) })
	t.Left = t.Left[:min(len(t.Left), q.Keep)]
	return t, err
}

// PurgeLocal purges what this node has, for a while.
func (s *Cluster) PurgeLocal(ctx context.Context, q query.Purge) (a PurgeReply, err error) {
	if q.Topic != "" && !ValidPurge(q.Topic) || q.Group != "" && !task.ValidName(q.Group) || (q.Topic == "") == (q.Group == "") {
		return a, task.Invalid("topic", task.NameProblem)
	}
	p := s.engine.NewPurge(&q)
	st, err := s.Covers(ctx, &a.Coverage, func(ctx context.Context) error {
		all, err := p.Run(ctx, s.pieceTime())
		a.More = !all && err == nil
		return err
	})
	if err != nil {
		st = engine.Snapshot{} // of no shard is it known that all was purged
	}
	a.PurgePart = p.Part(st)
	return a, err
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
