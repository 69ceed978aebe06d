package member

import (
	"fmt"
	"time"
)

// reportAbsent adds to readiness the nodes that are gone, or seem to be, and hold shards that
// no node has adopted yet. Until then no node knows what is in these shards: calls about all
// tasks, and calls with ids that callers choose, are answered 503.
func (m *Member) reportAbsent() {
	w := &m.peers
	w.mu.Lock()
	owning := map[string]int{}
	for _, t := range w.tokens {
		owning[t.Node]++
	}
	absent := map[string]string{}
	for name, s := range w.nodes {
		silent, after := w.silentLocked(s), m.deadAfter(&s.entry)
		if name == m.Self.Node || s.fault != nil || owning[name] == 0 || !s.entry.Released && silent < after/gapShare {
			continue
		}
		why := "it has sent no heartbeat for " + silent.Round(time.Second).String()
		if s.entry.Released {
			why = "it has ended in order"
		}
		absent["node "+name] = fmt.Sprintf("%s and holds %d shards, which are adopted when it has sent none for %v: until then lists, groups, purges and ids that callers choose are answered 503",
			why, owning[name], after)
	}
	before := w.absent
	w.absent = absent
	w.mu.Unlock()
	for what := range before {
		if absent[what] == "" {
			m.Waits.Clear(what)
		}
	}
	for what, detail := range absent {
		m.Waits.Set(what, detail)
	}
}
