package cluster

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// clockReading returns how far the clock of this node, by which its tasks are due, is ahead of that
// of the ledger's server. Nodes report it with their heartbeats, so that each can compare its clock
// with those of all others without a call.
func (s *Cluster) clockReading() *task.ClockReading {
	c := &task.ClockReading{Ahead: time.Until(s.engine.Config.Clock()).Round(time.Microsecond)}
	if r, ok := s.engine.Ledger.(recovery.Reporter); ok {
		h := r.Health()
		c.Ahead, c.Error = c.Ahead-h.ClockAhead, h.ClockError
	}
	return c
}

// compareClocks compares this node's clock with those of the other nodes that are alive. The log
// tells when one begins to differ, and when that is over.
func (s *Cluster) compareClocks() {
	ctx, cancel := s.engine.Within(s.engine.Life.Context)
	defer cancel()
	nodes, err := s.Fleet.ledger.Peers(ctx)
	if err != nil {
		return
	}
	own, before := s.clockReading(), s.clocks()
	var now []task.ClockOffset
	for i := range nodes {
		n := &nodes[i]
		var st struct {
			Clock *task.ClockReading `json:"clock"`
		}
		if n.Self || !n.Live || n.Released || !bytes.Contains(n.Status, []byte(`"clock"`)) ||
			json.Unmarshal(n.Status, &st) != nil || st.Clock == nil {
			continue
		}
		now = append(now, own.Compare(n.Name, st.Clock, offsetOf(before, n.Name)))
	}
	s.peerClocks.Store(&now)
	s.tellClocks(before, now)
}

func (s *Cluster) tellClocks(before, now []task.ClockOffset) {
	log := s.engine.Config.Log
	for i := range now {
		switch d, was := &now[i], offsetOf(before, now[i].Node); {
		case d.Far && !was.Far:
			log.Warn(d.Warning(), "node", s.engine.Config.Node, "of", d.Node, "ahead", d.Ahead.Round(time.Millisecond))
		case was.Far && !d.Far:
			log.Info("the clock of another node is in step again", "node", s.engine.Config.Node, "of", d.Node, "ahead", d.Ahead.Round(time.Millisecond))
		}
	}
}

func offsetOf(all []task.ClockOffset, node string) (d task.ClockOffset) {
	if i := slices.IndexFunc(all, func(d task.ClockOffset) bool { return d.Node == node }); i >= 0 {
		d = all[i]
	}
	return d
}

// ClockWarnings are warnings of the nodes whose clocks differ from this one's.
func (s *Cluster) ClockWarnings() (warnings []string) {
	for _, d := range s.clocks() {
		if d.Far {
			warnings = append(warnings, d.Warning())
		}
	}
	return warnings
}

// clocks are those of the other nodes, as they were compared last. They are shared.
func (s *Cluster) clocks() []task.ClockOffset { return *s.peerClocks.Load() }
