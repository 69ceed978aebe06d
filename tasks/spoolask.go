package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// A spooled task is at the node whose disk has it, while its id tells a shard that another
// node may have adopted since. So a node names the shards of its spooled tasks with its life
// signs, and before another node says that a task of such a shard does not exist, it asks.

// spooledHomesLocked names the shards of what is spooled here, and of what may be.
func (s *Scheduler) spooledHomesLocked() (homes []recovery.Home) {
	if s.spool == nil || s.shared == nil {
		return nil
	}
	for key, l := range s.spool.lines {
		if len(l.items) > 0 || l.moving > 0 {
			homes = append(homes, recovery.Home(key))
		}
	}
	for i := range s.spool.limbo {
		homes = append(homes, recovery.Home(s.lineOf([]byte(s.spool.limbo[i].id))))
	}
	slices.Sort(homes)
	return slices.Compact(homes)
}

// askSpools asks the nodes that have said that they have spooled tasks of the shard which an
// id tells. It returns the one that has the task; empty if none has. Errors: ErrUnavailable
// when one of them cannot tell.
func (s *Scheduler) askSpools(ctx context.Context, id string) (string, error) {
	home, tells := recovery.HomeOf(id)
	if !tells {
		return "", nil
	}
	nodes, err := s.shared.ledger.Peers(ctx)
	if err != nil {
		return "", unavailable(err)
	}
	for _, n := range nodes {
		if n.Self || !bytes.Contains(n.LastStatus, []byte(`"spooled":`)) {
			continue
		}
		var st NodeStatus
		if json.Unmarshal(n.LastStatus, &st) != nil || !slices.Contains(st.Spooled, home) {
			continue
		}
		if !n.Live {
			err = errors.Join(err, fmt.Errorf("%w: node %s, which may have spooled the task", errOrphaned, n.Name))
			continue
		}
		a, e := ask(ctx, s, n.Name, hasQuestion, hasAsk{IDs: []string{id}})
		switch {
		case e != nil:
			err = errors.Join(err, final(e))
		case len(a.Has) == 1 && a.Has[0]:
			return n.Name, nil
		}
	}
	return "", err
}

// knowsSpooled reports whether a task is spooled here: then it is this process's, whoever
// holds the shards.
func (s *Scheduler) knowsSpooled(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spool != nil && s.knownSpooledLocked(id)
}

func (s *Scheduler) knowsAllSpooled(ids []string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool { return !s.knowsSpooled(id) })
}

// isInDoubt reports whether it is not known yet if a spooled task has been moved to a shard
// that another node has taken over meanwhile.
func (s *Scheduler) isInDoubt(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spool != nil && slices.ContainsFunc(s.spool.limbo, func(x stranded) bool { return x.id == id })
}
