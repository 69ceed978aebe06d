package cluster

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// A helper by the clock does not wait until other nodes have a backlog. In each minute that
// Config.SweepHelper names it asks them what they have ready, and they announce it to this node
// alone, as they would announce a backlog to all. From there on it is an offload.

// helpEvery is how often a helper looks at the clock, and helpAsksEvery how often it asks the other
// nodes in a minute in which it helps.
const (
	helpEvery     = 50 * time.Millisecond
	helpAsksEvery = 250 * time.Millisecond
)

// ReadyMethod asks other nodes to announce the topics of which they have ready tasks.
var ReadyMethod = Method[readyQuery, struct{}]{Name: "ready"}

type readyQuery struct{ Every time.Duration } // how often the helper asks

// helpLoop asks for work in the minutes in which this node helps, until Close.
func (s *Cluster) helpLoop() {
	var asked time.Duration // when the others were asked last; 0: the node does not help
	s.engine.Life.Every(helpEvery, func() { asked = s.helpOnce(asked) })
}

// helpOnce asks the other nodes if it is time to. It returns when they were asked last.
func (s *Cluster) helpOnce(asked time.Duration) time.Duration {
	helps, now := s.helpsByClock(), s.engine.Elapsed()
	switch {
	case !helps || s.NoPeers():
		return 0
	case asked != 0 && now-asked < helpAsksEvery:
		return asked
	}
	if asked == 0 {
		s.engine.Config.Log.Info("this node helps the others now", "node", s.engine.Config.Node)
	}
	send(s, "", ReadyMethod, readyQuery{helpAsksEvery})
	return now
}

// helpsByClock reports whether this node helps the others in this minute.
func (s *Cluster) helpsByClock() bool {
	times := s.engine.Config.Helps.Times
	return times != nil && !s.engine.IsClosing() && times.Holds(s.engine.Config.Clock())
}

// helps reports whether this node helps others now although it is not idle.
func (s *Cluster) helps() bool {
	return s.engine.Config.Helps.Backlog || s.helpsByClock()
}

// handleReady announces the topics of which this node has ready tasks to a helper.
func (s *Cluster) handleReady(_ context.Context, from string, _ readyQuery) (none struct{}, err error) {
	told := backlogMessage{Topics: engine.BacklogTopics(s.engine, backlogTopics)}
	for _, t := range told.Topics {
		if t.Ready > 0 {
			send(s, from, BacklogMethod, told)
			break
		}
	}
	return none, nil
}
