package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/engine/coalesce"
)

// Of the misfired tasks of a group, the nodes have one delivered. Each holds its latest one back
// and asks the others for later ones, until there is none, or one was acknowledged, or it has
// waited for too long. See docs/internals/decisions/0013-coalesce.md.

// CoalesceMethod asks a node for misfired tasks of groups.
var CoalesceMethod = Method[coalesceQuery, coalesceReply]{Name: "coalesce"}

type (
	coalesceQuery struct{ Groups []coalesce.Candidate }
	coalesceReply struct {
		Standings []coalesce.Standing // for each group of the query
	}
)

const (
	// coalesceFirst and coalesceLast bound the time between two questions about the same task.
	coalesceFirst = 250 * time.Millisecond
	coalesceLast  = 2 * time.Second
	// coalesceForget is how often is looked for what need not be remembered any more.
	coalesceForget = time.Minute
)

// coalesceLoop compares the choices of this node with those of others, until Close.
func (s *Cluster) coalesceLoop() {
	asking, pause, next := false, coalesceFirst, time.Now().Add(coalesceForget)
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.engine.Misfires.Held:
			if asking { // about others; the new ones come with them, soon
				pause = coalesceFirst
				if soon := time.Now().Add(pause); soon.Before(next) {
					next = soon
					timer.Reset(pause)
				}
				continue
			}
		case <-s.engine.Life.Closing:
			return
		}
		began, rest := time.Now(), coalesceForget
		if asking = s.compareChoices(); asking {
			rest = max(pause, 3*time.Since(began)) // it asks for at most a quarter of the time
			pause = min(2*pause, coalesceLast)
		} else {
			pause = coalesceFirst
		}
		next = time.Now().Add(rest)
		timer.Reset(rest)
	}
}

// compareChoices asks about all choices once. It reports whether there are some left.
func (s *Cluster) compareChoices() bool {
	r, choices := s.newComparison(), engine.Choices{Engine: s.engine}
	for left := choices.Open(); left > 0; {
		some, passed := choices.Take()
		if passed == 0 {
			break
		}
		left -= passed
		if len(some) > 0 {
			choices.Decide(some, r.ask(some))
		}
	}
	return choices.Open() > 0
}

// A comparison is one round of questions to the other nodes.
type comparison struct {
	*Cluster
	nodes   []string // those that are asked
	unasked bool     // others may have misfired tasks, too
}

// newComparison begins a round.
func (s *Cluster) newComparison() *comparison {
	r := &comparison{Cluster: s}
	if s.NoPeers() {
		return r
	}
	ctx, cancel := context.WithTimeout(s.engine.Life.Context, GatherWithin)
	defer cancel()
	nodes, missing := s.reachable(ctx)
	r.nodes, r.unasked = nodes, len(missing) > 0
	return r
}

// ask asks the other nodes about choices. One that has not answered is not asked again in this
// round, so that a round ends soon.
func (r *comparison) ask(choices []*coalesce.Choice) []coalesce.Standing {
	known := make([]coalesce.Standing, len(choices))
	query := coalesceQuery{Groups: make([]coalesce.Candidate, len(choices))}
	for i, c := range choices {
		query.Groups[i] = c.Candidate
	}
	ctx, cancel := context.WithTimeout(r.engine.Life.Context, GatherWithin)
	defer cancel()
	var answering []string
	askEach(ctx, r.Cluster, r.nodes, CoalesceMethod, query, func(node string, a coalesceReply, err error) {
		switch {
		case errors.Is(err, ErrNotUnderstood): // nor will it be
		case err != nil || len(a.Standings) != len(known):
			r.unasked = true
		default:
			answering = append(answering, node)
			for i := range known {
				known[i] = max(known[i], understood(a.Standings[i]))
			}
		}
	})
	r.nodes = answering
	for i := range known {
		if r.unasked {
			known[i] = max(known[i], coalesce.Unsettled)
		}
	}
	return known
}

// understood returns what another node has answered. What only a later version knows is no reason
// to skip anything.
func understood(st coalesce.Standing) coalesce.Standing {
	if st < coalesce.None || st > coalesce.Delivered {
		return coalesce.Unsettled
	}
	return st
}

func (s *Cluster) handleCoalesce(_ context.Context, _ string, q coalesceQuery) (coalesceReply, error) {
	known, err := engine.Choices{Engine: s.engine}.Standings(q.Groups)
	return coalesceReply{known}, err
}
