package member

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// pollsPerFailover is how many times the nodes are polled in FailoverAfter. A node that watches
// for that long has seen ten heartbeats of every live node.
const pollsPerFailover = 20

// gapShare is the part of FailoverAfter that may pass between two answered polls. After a longer
// gap the watch starts anew: Redis may have been down, or this process stopped, and then the
// other nodes could not show that they live.
const gapShare = 4

// A watch is what this process sees of the nodes, its own included.
type watch struct {
	polling       sync.Mutex // a turn, see Member: held by Poll
	readingOwners sync.Mutex // a turn: held by refreshTokens and refreshAll

	mu    sync.Mutex // guards everything below
	nodes map[string]*peerState
	// unregistered are processes that are named by tokens and not registered, with the time
	// since when that was seen.
	unregistered map[layout.Holder]time.Time
	// vanished are nodes whose entries Redis has lost, as they were last seen. A node that lives
	// writes its entry again; RestoreVanished writes that of a dead one.
	vanished map[string]vanishedPeer
	// unlisted: Redis has lost the registry, since this process was not in it. So it has lost the
	// entries of all nodes that are missing in the next view.
	unlisted  bool
	tokenless map[recovery.ShardID]time.Time // shards without a token, and since when
	asked     time.Time                      // when the last answered poll was sent
	answered  time.Time                      // and when its answer was here
	refused   int                            // polls in a row that were not answered

	tokens         map[recovery.ShardID]seenToken // as they were last read
	ownersRead     time.Time                      // when all of them were
	emptied        map[string]time.Time           // since when dead, unindexed nodes hold no shard
	settled        map[layout.Holder]bool         // dead processes whose shards were looked for
	next           time.Time                      // when to look for shards to adopt, at the latest
	patience       int                            // how many times in a row that failed
	ownerlessSince map[recovery.ShardID]time.Time
	absent         map[string]string // readiness' entries of nodes that are gone, see reportAbsent
	deaths         map[string]*death // by name
}

// A vanishedPeer is a node whose entry Redis has lost.
type vanishedPeer struct {
	*peerState
	at time.Time // when the entry was first missing
}

// A peerState is what this process has seen of one node.
type peerState struct {
	raw    string // its entry
	entry  Entry
	fault  error  // why the entry cannot be understood
	number uint16 // also of a node whose version has no numbers
	status string
	count  string // of its heartbeats
	// since is when a heartbeat was last seen, or when the watch began: another count, or
	// another entry.
	since   time.Time
	silence silence
	lived   bool // it was seen to send a heartbeat
}

// watch watches the other nodes until Close.
func (m *Member) watch() {
	tick := time.NewTicker(m.FailoverAfter / pollsPerFailover)
	defer tick.Stop()
	for {
		m.watchOnce()
		select {
		case <-m.Life.Done():
			return
		case <-tick.C:
		}
	}
}

// watchOnce polls the nodes once, and adopts shards of dead ones.
func (m *Member) watchOnce() {
	if m.ended.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(m.Life, 2*conn.IOTimeout)
	defer cancel()
	if m.Poll(ctx) != nil {
		m.peers.beginAnew()
		return // the heartbeat reports the cause
	}
	m.RestoreOrigins(ctx)
	m.RestoreVanished(ctx)
	m.AdoptIfDue(ctx)
	m.reportAbsent()
}

// Poll reads the registry and the heartbeats of all nodes. A poll that was sent after this call
// began serves it as well. If Redis does not answer, the watch starts anew, unless the caller's
// context has ended, which says nothing about Redis.
func (m *Member) Poll(ctx context.Context) error {
	w := &m.peers
	called := time.Now()
	w.polling.Lock()
	defer w.polling.Unlock()
	w.mu.Lock()
	if w.asked.After(called) {
		w.mu.Unlock()
		return nil
	}
	names := make([]string, 0, len(w.nodes))
	for name := range w.nodes {
		names = append(names, name)
	}
	w.mu.Unlock()

	seen, err := m.readView(ctx, names)
	if err != nil {
		if ctx.Err() == nil {
			w.beginAnew()
		}
		return err
	}
	if len(seen.entries) > 1 {
		m.alone.Store(false)
	}
	if m.isUnlisted(seen) {
		w.noteUnlisted()
		m.BeatSoon()
	}
	w.see(seen, m.FailoverAfter/gapShare)
	m.noteSilence()
	for _, facts := range m.peers.returned() {
		m.Log.Info("a node is back", facts...)
	}
	return nil
}

// readView reads the registry and the heartbeats of nodes. Their keys share a slot of Redis
// Cluster, so one command reads all heartbeats: the cost of a poll does not grow with the nodes.
// Each is read by itself while that slot moves and either server has some of them.
func (m *Member) readView(ctx context.Context, names []string) (view, error) {
	v := view{asked: time.Now(), counts: make(map[string]string, len(names))}
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = m.Keys.Heartbeat(name)
	}
	read := func(p redis.Pipeliner) (entries, statuses *redis.MapStringStringCmd) {
		return p.HGetAll(ctx, m.Keys.Nodes()), p.HGetAll(ctx, m.Keys.Status())
	}
	var entries, statuses *redis.MapStringStringCmd
	var counts *redis.SliceCmd
	err := m.Client.Pipe(ctx, func(p redis.Pipeliner) {
		if entries, statuses = read(p); len(keys) > 0 {
			counts = p.MGet(ctx, keys...)
		}
	})
	if err == nil && counts != nil {
		for i, name := range names {
			v.counts[name] = textOf(counts.Val(), i)
		}
	}
	if redis.HasErrorPrefix(err, "TRYAGAIN") {
		each := make([]*redis.StringCmd, len(keys))
		err = m.Client.Pipe(ctx, func(p redis.Pipeliner) {
			entries, statuses = read(p)
			for i, key := range keys {
				each[i] = p.Get(ctx, key)
			}
		})
		for i, name := range names {
			v.counts[name] = each[i].Val()
		}
	}
	if err != nil {
		return v, err
	}
	v.answered, v.entries, v.statuses = time.Now(), entries.Val(), statuses.Val()
	return v, nil
}

// beginAnew makes the next view count all nodes as seen alive.
func (w *watch) beginAnew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused++
}

// A view is the answer to one poll.
type view struct {
	asked, answered           time.Time
	entries, statuses, counts map[string]string // by node
}

// see applies a view. After a gap, or a poll that was not answered, all nodes count as seen alive.
func (w *watch) see(v view, gap time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	anew := w.refused > 0 || clock.Between(w.answered, v.answered) > gap
	for name, s := range w.nodes {
		// A node that was dead for long may have been removed, see tidy.
		if _, still := v.entries[name]; !still && (w.unlisted || w.silentLocked(s) < gapShare*gap) {
			w.vanished[name] = vanishedPeer{s, v.answered}
		}
	}
	w.asked, w.answered, w.refused, w.unlisted = v.asked, v.answered, 0, false
	if anew {
		w.unregistered = map[layout.Holder]time.Time{}
		w.tokenless = map[recovery.ShardID]time.Time{}
	}
	nodes := make(map[string]*peerState, len(v.entries))
	for name, raw := range v.entries {
		s := w.nodes[name]
		if s == nil {
			s = new(peerState)
		}
		if s.raw != raw || isSign(s.count, v.counts[name]) {
			s.silence = silence{lastSign: v.answered}
		}
		if s.count != "" && isSign(s.count, v.counts[name]) {
			s.lived = true
		}
		if count := v.counts[name]; anew || s.raw != raw || s.count != count {
			s.since, s.count = v.answered, count
		}
		if s.raw != raw {
			s.raw = raw
			s.entry, s.fault = decodeEntry(name, raw)
			s.number = cmp.Or(s.entry.Number, s.number)
		}
		s.status = v.statuses[name]
		nodes[name] = s
		delete(w.vanished, name)
		delete(w.unregistered, layout.Holder{Node: name, Incarnation: s.entry.Incarnation})
	}
	w.nodes = nodes
}

// silentLocked is for how long a node was watched without a heartbeat.
func (w *watch) silentLocked(s *peerState) time.Duration { return max(0, w.asked.Sub(s.since)) }

// deadAfter is for how long a process must send no heartbeat: FailoverAfter, its own or this
// one's. If they differ, as during a rolling change of the setting, the longer one counts.
func (m *Member) deadAfter(e *Entry) time.Duration {
	return max(m.FailoverAfter, time.Duration(e.FailoverAfter)*time.Millisecond)
}

func (m *Member) deadLocked(s *peerState) bool {
	return m.peers.silentLocked(s) >= m.deadAfter(&s.entry)
}

// A liveness is what is known of the process that a token names.
type liveness uint8

const (
	living    liveness = iota
	uncertain          // it has shut down cleanly, or is not registered: any more, or not yet
	deceased           // its shards may be adopted
)

// livenessLocked returns the liveness of the process that a token names. If its entry cannot be
// decoded, the process counts as alive.
func (m *Member) livenessLocked(t layout.Token) liveness {
	w := &m.peers
	s := w.nodes[t.Node]
	switch {
	case s != nil && s.fault != nil:
		return living
	case s != nil && s.entry.Incarnation == t.Incarnation:
		if m.deadLocked(s) {
			return deceased
		}
		if s.entry.Released {
			return uncertain
		}
		return living
	case s != nil && t.Node == m.Self.Node && s.entry.Incarnation == m.Self.Incarnation:
		return deceased // an earlier process of this node, which has ended, as Adopt has checked
	}
	since, known := w.unregistered[t.Holder()]
	if known && w.asked.Sub(since) >= m.FailoverAfter {
		return deceased
	}
	if !known && !w.answered.IsZero() {
		w.unregistered[t.Holder()] = w.answered
	}
	return uncertain
}

// byNumberLocked finds a node by its number, also one whose entry Redis has lost.
func (w *watch) byNumberLocked(number uint16) (name string, s *peerState) {
	for name, s := range w.nodes {
		if s.number == number {
			return name, s
		}
	}
	for name, s := range w.vanished {
		if s.number == number {
			return name, s.peerState
		}
	}
	return "", nil
}

// RestoreOrigins writes the entries of nodes again whose shards this process holds and that Redis
// has lost. Without an entry no node would look for those shards if this process died.
func (m *Member) RestoreOrigins(ctx context.Context) {
	for _, e := range m.table.Load().byOrigin {
		if e.node == m.Self.Node {
			continue
		}
		m.peers.mu.Lock()
		s := m.peers.nodes[e.node]
		m.peers.mu.Unlock()
		m.mu.Lock()
		o := m.origins[e.node]
		m.mu.Unlock()
		switch {
		case s == nil && o.raw != "":
			m.restoreOrigin(ctx, e.node, o)
		case s != nil && s.raw != o.raw && s.fault == nil:
			m.mu.Lock()
			m.origins[e.node] = origin{s.number, s.raw, s.entry.Counts}
			m.mu.Unlock()
			m.changeTable(func(*table) {})
		}
	}
}

func (m *Member) restoreOrigin(ctx context.Context, node string, o origin) {
	number, err := m.Number(ctx, node)
	if err == nil {
		_, err = conn.Judge(conn.RegisterScript.Run(ctx, m.Client, []string{m.Keys.Nodes()}, node, "", o.raw))
	}
	m.Log.Error("Redis has lost the registration of a node whose shards this node holds; it is written again",
		"of", node, "number", number, "error", err)
}
