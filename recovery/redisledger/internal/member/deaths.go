package member

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// maxDeaths bounds how many dead nodes a node remembers.
const maxDeaths = 1000

// A death is a node that was taken for dead, or has ended in order. It is remembered until the node
// is back, also when the registry has forgotten the node. The log has one line of the death, one of
// the adoption and one of the return.
type death struct {
	of       layout.Holder
	at       time.Time // when it was noticed
	lastSign time.Time // when the last heartbeat, or the node, was seen
	count    string    // of its heartbeats
	shards   []seenShard
	tasks    int64 // in these shards; -1: not known
	adopted  bool  // all of them, or there were none
	inOrder  bool  // it ended in order, and left its shards to others
}

// noteDeaths logs which nodes have died since the last look for shards, and what they held. A node
// that stopped in order, or was dead before this process began, counts only if it held shards. It
// held what it holds, and what it held before: another node may have adopted some already.
func (m *Member) noteDeaths(ctx context.Context, before map[recovery.ShardID]seenToken, found ownerList) {
	w := &m.peers
	var fresh []*death
	w.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		s := w.nodes[name]
		d := &death{of: layout.Holder{Node: name, Incarnation: s.entry.Incarnation}, at: time.Now(), lastSign: s.silence.lastSign, count: s.count, inOrder: s.entry.Released}
		left := slices.ContainsFunc(found.shards, func(h seenShard) bool { return h.token.Holder() == d.of && w.hasEndedLocked(&h) })
		if name == m.Self.Node || s.fault != nil || !m.deadLocked(s) && !left || w.isMournedLocked(d.of) {
			continue
		}
		for _, h := range found.shards {
			if !h.token.Retired() && (h.token.Holder() == d.of || before[h.shardID].Holder() == d.of) {
				d.shards = append(d.shards, h)
			}
		}
		if d.adopted = len(d.shards) == 0; d.adopted && (s.entry.Released || !s.lived) {
			continue
		}
		w.rememberLocked(d)
		fresh = append(fresh, d)
	}
	w.mu.Unlock()
	for _, d := range fresh {
		sizes, err := m.sizes(ctx, len(d.shards), func(i int) layout.ShardKeys { return m.Keys.Shard(d.shards[i].node, d.shards[i].index) })
		facts := []any{"of", d.of.Node, "silent", d.at.Sub(d.lastSign).Round(time.Millisecond), "shards", len(d.shards)}
		if d.tasks = -1; err == nil {
			d.tasks = 0
			for _, n := range sizes {
				d.tasks += n
			}
			facts = append(facts, "tasks", d.tasks)
		}
		if d.inOrder {
			m.Log.Info("a node has ended", facts...)
		} else {
			m.Log.Warn("a node is dead", facts...)
		}
	}
}

// rememberLocked adds a death. At the limit the oldest one makes room.
func (w *watch) rememberLocked(d *death) {
	if w.deaths == nil {
		w.deaths = map[string]*death{}
	}
	if len(w.deaths) >= maxDeaths {
		oldest := ""
		for name, other := range w.deaths {
			if oldest == "" || other.at.Before(w.deaths[oldest].at) {
				oldest = name
			}
		}
		delete(w.deaths, oldest)
	}
	w.deaths[d.of.Node] = d
}

// isMournedLocked reports whether a line of the log tells of the adoption of what a process held.
func (w *watch) isMournedLocked(h layout.Holder) bool {
	d := w.deaths[h.Node]
	return d != nil && d.of == h
}

// An adoption is a line of the log.
type adoption struct {
	text  string
	facts []any
}

// adoptions returns which dead nodes hold nothing any more, and which nodes hold their shards now:
// each line once.
func (w *watch) adoptions() (lines []adoption) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(w.deaths)) {
		d := w.deaths[name]
		by := map[string]int{}
		left := slices.ContainsFunc(d.shards, func(h seenShard) bool {
			t, known := w.tokens[h.shardID]
			if known && !t.Retired() {
				by[t.Node]++
			}
			return !known || t.Holder() == d.of
		})
		if d.adopted || left {
			continue
		}
		d.adopted = true
		var parts []string
		for _, node := range slices.Sorted(maps.Keys(by)) {
			parts = append(parts, fmt.Sprintf("%s (%d shards)", node, by[node]))
		}
		facts := []any{"of", name, "by", strings.Join(parts, ", "), "shards", len(d.shards)}
		if d.tasks >= 0 {
			facts = append(facts, "tasks", d.tasks)
		}
		d.shards = nil
		text := "a dead node was adopted"
		if d.inOrder {
			text = "a node that has ended was adopted"
		}
		lines = append(lines, adoption{text, append(facts, "took", time.Since(d.at).Round(time.Millisecond))})
	}
	return lines
}

// returned returns the attributes of lines that tell which dead nodes are back: another process has
// their name, or they send heartbeats again. It returns each line once.
func (w *watch) returned() (lines [][]any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, d := range w.deaths {
		s := w.nodes[name]
		if s == nil || s.fault != nil || s.entry.Released {
			continue
		}
		beats := isSign(d.count, s.count)
		if s.count != "" && !beats {
			d.count = s.count // Redis may have lost some of it
		}
		if beats || s.entry.Incarnation != d.of.Incarnation {
			delete(w.deaths, name)
			lines = append(lines, []any{"of", name, "after", w.answered.Sub(d.lastSign).Round(time.Millisecond)})
		}
	}
	return lines
}
