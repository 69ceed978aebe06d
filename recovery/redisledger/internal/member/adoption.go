package member

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/mend"
)

// Waiting times, as parts and multiples of FailoverAfter.
const (
	// othersShare: a survivor waits for so long before it adopts the part of another one.
	othersShare = 5
	// retryShare: an adoption that failed is repeated, with growing pauses.
	retryShare = 10
	// ownersAfter: the owners of all shards are read from time to time even if no node dies:
	// a shard may have been transferred to a node at the moment of its death. Every node reads
	// the shards of all, so the pause grows with the nodes: see ownersPauseLocked.
	ownersAfter = 3
	// ownersNodes is up to how many nodes the pause is ownersAfter.
	ownersNodes = 3
	// forgetAfter: once a node was dead for so long, its empty shards are retired.
	forgetAfter = 10
)

// times returns a multiple of FailoverAfter.
func (m *Member) times(n int64) time.Duration {
	if after := int64(m.FailoverAfter); after <= math.MaxInt64/n {
		return time.Duration(n * after)
	}
	return math.MaxInt64
}

// AdoptIfDue adopts the shards of dead nodes when it is time to look for them. It is called
// right after a poll that was answered.
func (m *Member) AdoptIfDue(ctx context.Context) {
	if !m.adoptionDue() {
		return
	}
	before := m.peers.tokensNow()
	found, err := m.readOwners(ctx)
	if err == nil {
		// A node that comes back after this poll finds its shards, and affirms them, after their
		// owners were read: claims that are decided on now fail for them.
		err = m.Poll(ctx)
	}
	if err != nil {
		m.plan(remaining{retry: true})
		return
	}
	m.acceptFound(ctx, found)
	m.noteDeaths(ctx, before, found)
	left := m.adoptFrom(ctx, found)
	for _, line := range m.peers.adoptions() {
		m.Log.Info(line.text, line.facts...)
	}
	m.tidy(ctx, found)
	m.plan(left)
}

// adoptionDue reports whether a node has ended or died since, or the pause between two reads is
// over.
func (m *Member) adoptionDue() bool {
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	due := !time.Now().Before(w.next)
	settled := map[layout.Holder]bool{}
	for name, s := range w.nodes {
		h, dead := layout.Holder{Node: name, Incarnation: s.entry.Incarnation}, m.deadLocked(s)
		if name == m.Self.Node || s.fault != nil || !dead && !s.entry.Released {
			continue
		}
		before, looked := w.settled[h]
		if settled[h] = dead; !looked || dead && !before {
			due, w.patience = true, 0
		}
	}
	w.settled = settled
	return due
}

// A remaining says why there is something left to adopt.
type remaining struct {
	at       time.Time // when to look again for shards that only have to wait
	retry    bool      // an adoption failed and may succeed later
	warnings []string  // what an operator should know
}

func (r *remaining) again(at time.Time) {
	if r.at.IsZero() || at.Before(r.at) {
		r.at = at
	}
}

// plan sets the time of the next look.
func (m *Member) plan(r remaining) {
	w := &m.peers
	w.mu.Lock()
	now := time.Now()
	next := now.Add(m.ownersPauseLocked())
	if r.retry {
		pause := m.FailoverAfter / retryShare << min(w.patience, 5)
		w.patience++
		next = now.Add(min(pause, m.times(ownersAfter)))
	} else {
		w.patience = 0
	}
	if !r.at.IsZero() && r.at.Before(next) {
		next = r.at
	}
	w.next = next
	w.mu.Unlock()

	m.mu.Lock()
	before := m.warnings
	m.warnings = r.warnings
	m.mu.Unlock()
	for _, c := range r.warnings {
		if !slices.Contains(before, c) {
			m.Log.Warn("shards not adopted", "reason", c)
		}
	}
}

// ownersPauseLocked is the pause between two reads of all owners while no node dies. With
// n nodes it is n/ownersNodes times ownersAfter. So a node's reads do not grow with the number
// of nodes, and those of all nodes together come as often as before. It varies by a quarter, so
// that the nodes do not read at the same time, although all have read at the last death.
func (m *Member) ownersPauseLocked() time.Duration {
	pause := min(m.times(ownersAfter*int64(max(1, len(m.peers.nodes)/ownersNodes))), 24*time.Hour)
	return pause*3/4 + rand.N(pause/2)
}

// An adoptable is a shard whose holder is dead.
type adoptable struct {
	seenShard
	mine  bool  // this node should adopt it first
	ended bool  // its holder has ended in order, and is not known to be dead
	size  int64 // how many pending records it has

	history string // the replication id of its server; empty: it does not tell
}

// adoptFrom adopts shards of dead nodes: first this node's part of them, and after a while
// those that the other survivors have not adopted. It adopts one shard after another, and only
// those for which memory has room.
func (m *Member) adoptFrom(ctx context.Context, found ownerList) (r remaining) {
	adoptables := m.adoptables(found, &r)
	if len(adoptables) == 0 {
		return r
	}
	if !m.Notices.TakesShards() {
		return r
	}
	var keys []mend.Key
	for _, o := range adoptables {
		k := m.Keys.Shard(o.node, o.index)
		keys = append(keys, mend.ShardKeys(&k)...)
	}
	if err := m.Mender.Mend(ctx, keys); err != nil {
		r.retry = true
		return r
	}
	keysOf := func(i int) layout.ShardKeys { return m.Keys.Shard(adoptables[i].node, adoptables[i].index) }
	sizes, err := m.sizes(ctx, len(adoptables), keysOf)
	if err != nil {
		r.retry = true
		return r
	}
	histories, err := m.histories(ctx, len(adoptables), keysOf)
	if err != nil {
		r.retry = true
		return r
	}
	for i := range adoptables {
		adoptables[i].size, adoptables[i].history = sizes[i], histories[i]
	}
	if slices.ContainsFunc(adoptables, m.isForgetful) {
		r.again(time.Now().Add(m.FailoverAfter / retryShare))
		adoptables = slices.DeleteFunc(adoptables, m.isForgetful)
	}
	slices.SortStableFunc(adoptables, func(a, b adoptable) int {
		if a.mine == b.mine {
			return cmp.Compare(a.shardID, b.shardID)
		}
		if a.mine {
			return -1
		}
		return 1
	})
	waiting, tasks := 0, int64(0)
	for _, o := range adoptables {
		m.peers.mu.Lock()
		fresh := clock.Between(m.peers.answered, time.Now()) < m.FailoverAfter/(2*gapShare)
		m.peers.mu.Unlock()
		if !fresh || !m.Standing().Certain {
			r.again(time.Now()) // after another poll of the nodes
			return r
		}
		room, ok := m.room(ctx)
		if !ok {
			r.retry = true
			return r
		}
		if o.size > room {
			waiting++
			tasks += o.size
			continue
		}
		next := m.Self.Token(o.token.Epoch + 1)
		taken, err := m.take(ctx, &o, next)
		if err != nil {
			r.retry = true
			continue
		}
		if taken {
			level := slog.LevelWarn
			m.peers.mu.Lock()
			if m.peers.isMournedLocked(o.token.Holder()) {
				level = slog.LevelDebug // adoptions tells of all its shards in one line
			}
			m.peers.mu.Unlock()
			m.Log.Log(ctx, level, "a shard of a dead node was adopted", "of", o.node, "shard", o.index, "holder", o.token.Node, "tasks", o.size)
		}
	}
	if waiting > 0 {
		r.retry = true
		r.warnings = append(r.warnings, fmt.Sprintf("%d shards of dead nodes wait until there is room for %d tasks in memory", waiting, tasks))
	}
	return r
}

// isForgetful reports whether Redis may have lost that a node has adopted a shard: its server was
// restarted or promoted lately. That node claims it again with its next heartbeat.
func (m *Member) isForgetful(o adoptable) bool { return m.IsNew(o.history) }

// adoptables are the shards that may be adopted now.
func (m *Member) adoptables(found ownerList, r *remaining) []adoptable {
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	me := w.nodes[m.Self.Node]
	if me == nil || me.entry.Incarnation != m.Self.Incarnation {
		return nil
	}
	peers := m.peersLocked()
	// Which of the nodes that live owns a shard without a token is not known.
	longest := m.FailoverAfter
	for _, s := range w.nodes {
		if !m.deadLocked(s) {
			longest = max(longest, m.deadAfter(&s.entry))
		}
	}
	unregistered := map[layout.Holder]time.Time{}
	ownerlessSince := map[recovery.ShardID]time.Time{}
	refused := map[string]int{}
	var adoptables []adoptable
	for _, h := range found.shards {
		if h.token.Retired() || h.token.Holder() == m.Self {
			continue
		}
		state := m.livenessLocked(h.token)
		if h.raw == "" {
			// Its owner, if it lives, claims it again with a heartbeat, or after its doubts.
			since := w.tokenless[h.shardID]
			if state = uncertain; w.answered.Sub(since) >= longest {
				state = deceased
			} else {
				r.again(since.Add(longest))
			}
		} else if since, strange := w.unregistered[h.token.Holder()]; strange {
			unregistered[h.token.Holder()] = since
			if state != deceased {
				r.again(since.Add(m.FailoverAfter))
			}
		}
		ended := state == uncertain && w.hasEndedLocked(&h)
		if state != deceased && !ended {
			continue
		}
		if node, newer := w.newerLocked(h, m.Format); newer {
			refused[node]++
			continue
		}
		since, known := w.ownerlessSince[h.shardID]
		if !known {
			since = w.answered
		}
		ownerlessSince[h.shardID] = since
		mine := w.partLocked(h, peers) == m.Self.Node || h.token.Node == m.Self.Node
		if wait := since.Add(m.FailoverAfter / othersShare); !mine && wait.After(w.answered) {
			r.again(wait)
			continue
		}
		adoptables = append(adoptables, adoptable{seenShard: h, mine: mine, ended: ended})
	}
	w.unregistered, w.ownerlessSince = unregistered, ownerlessSince
	for _, node := range slices.Sorted(maps.Keys(refused)) {
		r.warnings = append(r.warnings, fmt.Sprintf("%d shards are not adopted: node %s may have written records that are too new for this version", refused[node], node))
	}
	for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
		if s := w.nodes[node]; s.fault != nil && m.deadLocked(s) {
			r.warnings = append(r.warnings, fmt.Sprintf("the shards of node %s are not adopted: %v", node, s.fault))
			m.Waits.Set(unreadableEntry(node), "its shards are not adopted until a node of that name starts: "+s.fault.Error())
		}
	}
	return adoptables
}

// newerLocked returns the name of a node that may have written records newer than format into
// a shard.
func (w *watch) newerLocked(h seenShard, format int) (string, bool) {
	for _, node := range []string{h.node, h.token.Node} {
		if s := w.nodes[node]; s != nil && (s.fault != nil || s.entry.Format > format) {
			return node, true
		}
	}
	return "", false
}

// peersLocked are the nodes that can adopt, in order of their names.
func (m *Member) peersLocked() []string {
	var peers []string
	for name, s := range m.peers.nodes {
		if s.fault == nil && !s.entry.Released && !m.deadLocked(s) {
			peers = append(peers, name)
		}
	}
	slices.Sort(peers)
	return peers
}

// partLocked names the peer that should adopt a shard: its own node if that is alive,
// otherwise each peer an equal part of a node's shards.
func (w *watch) partLocked(h seenShard, peers []string) string {
	if len(peers) == 0 || slices.Contains(peers, h.node) {
		return h.node
	}
	return peers[(int(h.shardID.Node())+h.index)%len(peers)]
}

// room is how many more records memory can take, beyond those of acquired shards that it has
// yet to read.
func (m *Member) room(ctx context.Context) (int64, bool) {
	answer := make(chan int64, 1)
	m.Notices.Add(func(w recovery.Watcher) {
		room := math.MaxInt
		if w.Room != nil {
			room = w.Room()
		}
		answer <- int64(room)
	})
	late := time.NewTimer(m.FailoverAfter / pollsPerFailover)
	defer late.Stop()
	select {
	case room := <-answer:
		for _, s := range m.table.Load().all() {
			room -= s.Unread.Load()
		}
		return room, true
	case <-late.C:
	case <-ctx.Done():
	}
	return 0, false
}

// take makes this process the owner of a shard that it does not hold, with the token next, if
// the shard's token is still the one that was found and its owner has not come back since, and, if
// it is said to have ended in order, if it has. If the answer is lost, acceptFound completes the
// claim.
func (m *Member) take(ctx context.Context, h *adoptable, next layout.Token) (bool, error) {
	m.taking.Lock()
	defer m.taking.Unlock()
	if m.ended.Load() || m.Holds(h.node, h.index) != nil {
		return false, nil
	}
	suspect, err := m.beforeTaking(ctx, h.seenShard)
	if err != nil {
		return false, err
	}
	m.acquiring.Add(1)
	s := m.newShard(h.node, h.index)
	s.from, s.written = h.token, h.sequence
	s.unbroken.Store(m.streak())
	further := []any{layout.AffirmField, h.affirmed, h.history}
	if h.ended {
		further = append(further, "ended")
	}
	owner, err := m.claim(ctx, s.Keys, h.raw, next, h.first, further...)
	if err != nil || owner != next.String() {
		m.acquiring.Add(-1)
		if suspect {
			m.afterTaking()
		}
		return false, err
	}
	if n, err := m.Client.Exists(ctx, s.Keys.Dead()).Result(); err != nil || n > 0 {
		m.buried.Store(true)
	}
	m.Waits.Clear(unreadableShard(h.node, h.index))
	s.moveInTurn(next, 0)
	s.Owned.Store(true)
	s.Unread.Store(h.size)
	m.peers.mu.Lock()
	o := origin{number: h.shardID.Node()}
	if seen := m.peers.nodes[h.node]; seen != nil {
		o.raw, o.counts = seen.raw, seen.entry.Counts
	}
	m.peers.noteTokenLocked(h.shardID, seenToken{Token: next})
	m.peers.mu.Unlock()
	m.mu.Lock()
	if h.node != m.Self.Node {
		m.origins[h.node] = o
	}
	delete(m.transferred, shardName{h.node, h.index})
	if h.token.Holder() == m.Self {
		s.giver = m.ahead[h.shardID]
	}
	delete(m.ahead, h.shardID)
	m.mu.Unlock()
	m.changeTable(func(t *table) { t.enter(s) })
	n, transferred := s.Number, h.token.Holder() == next.Holder()
	m.Notices.Add(func(w recovery.Watcher) {
		if w.Acquired != nil {
			w.Acquired(n, transferred)
		}
		m.acquiring.Add(-1)
		if suspect {
			m.afterTaking()
		}
	})
	return true, nil
}

// Holds returns a shard if this process holds it.
func (m *Member) Holds(node string, index int) *Shard {
	for _, e := range m.table.Load().byOrigin {
		if e.node == node {
			return e.shards[index]
		}
	}
	return nil
}
