package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
)

// unregistered counts shards that may have ids which the directory lacks. Member.mu guards it.
//
// A node's entry in the registry says whether all its ids are registered. A shard that comes from a
// node with unregistered ids brings them along. So before such a shard is claimed, the entry of its
// new holder is marked as not indexed.
type unregistered struct {
	acquired  int // shards claimed, or about to be, with ids that may not be registered
	delivered int // those that memory was notified of
	excepted  int // acquired, when MarkIndexed last refused to set the mark
}

// errUnregistered is returned by MarkIndexed.
var errUnregistered = errors.New("shards were acquired whose ids may not be registered: register them and call again")

// MarkIndexed writes the mark of this node, see recovery.Directory.
func (m *Member) MarkIndexed(ctx context.Context, indexed bool) error {
	unregistered := false
	registered, err := m.RewriteEntry(ctx, func(e *Entry) {
		m.mu.Lock()
		defer m.mu.Unlock()
		s := &m.unregistered
		if unregistered = unregistered || indexed && s.acquired != s.excepted; unregistered {
			if s.delivered == s.acquired {
				s.excepted = s.acquired // memory knows of all of them now, and may call again
			}
			return
		}
		e.Indexed = indexed
	})
	switch {
	case err != nil:
		return err
	case !registered:
		return fmt.Errorf("%w: node %s is not registered for this process", recovery.ErrLost, m.Self.Node)
	case unregistered:
		return errUnregistered
	}
	return nil
}

// beforeTaking marks this process as one whose ids are not all registered, if that may be so once
// it has taken a shard. If it reports suspect, the caller must call afterTaking, when memory knows
// of the shard or will not get it.
func (m *Member) beforeTaking(ctx context.Context, h seenShard) (suspect bool, err error) {
	m.peers.mu.Lock()
	suspect = h.token.Node != "" && m.peers.nodes[h.token.Node] == nil
	for name, s := range m.peers.nodes {
		suspect = suspect || name != m.Self.Node && !s.isIndexed()
	}
	m.peers.mu.Unlock()
	if !suspect {
		return false, nil
	}
	m.mu.Lock()
	m.unregistered.acquired++
	m.mu.Unlock()
	registered, err := m.RewriteEntry(ctx, func(e *Entry) { e.Indexed = false })
	if err == nil && !registered {
		err = fmt.Errorf("%w: node %s is not registered for this process", recovery.ErrLost, m.Self.Node)
	}
	if err != nil {
		m.afterTaking()
	}
	return true, err
}

func (m *Member) afterTaking() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unregistered.delivered++
}

// isIndexed reports whether all ids of a node are registered, as far as is known.
func (s *peerState) isIndexed() bool { return s.fault == nil && s.entry.Indexed }

// viewFresh is how old a poll of the nodes may be for Unindexed.
const viewFresh = time.Second

// Unindexed names the nodes whose ids may not all be registered, see recovery.Directory.Unindexed.
// doubtful reports whether the directory may have lost entries.
func (m *Member) Unindexed(ctx context.Context, doubtful func() bool) ([]string, error) {
	w := &m.peers
	w.mu.Lock()
	stale := w.answered.IsZero() || clock.Since(w.answered) > viewFresh
	w.mu.Unlock()
	if stale {
		if err := m.Poll(ctx); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	err := m.missingLocked()
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	names, dead := m.unindexedByLife()
	if doubtful() {
		names = append(names, m.doubted()...)
		slices.Sort(names)
		names = slices.Compact(names)
	}
	if len(dead) == 0 {
		return names, nil
	}
	w.mu.Lock()
	stale = clock.Since(w.ownersRead) > ownersFresh
	w.mu.Unlock()
	if stale {
		if _, err := m.readOwners(ctx); err != nil {
			return nil, err
		}
	}
	owning, behind := w.stillOwning(dead)
	if behind {
		if err := m.Poll(ctx); err != nil {
			return nil, err
		}
		again, _ := m.unindexedByLife()
		names = append(names, again...)
	}
	names = append(names, owning...)
	slices.Sort(names)
	return slices.Compact(names), nil
}

// stillOwning returns those of some dead nodes that still hold shards. A node that has adopted
// the shards of the others has cleared its own mark before. So the nodes must be polled after
// the shards were read; behind reports that they were not.
func (w *watch) stillOwning(dead []string) (owning []string, behind bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tokens {
		if slices.Contains(dead, t.Node) {
			owning = append(owning, t.Node)
		}
	}
	emptied := map[string]time.Time{}
	for _, name := range dead {
		if slices.Contains(owning, name) {
			continue
		}
		since, known := w.emptied[name]
		if !known {
			since = time.Now()
		}
		emptied[name] = since
		behind = behind || !w.asked.After(since)
	}
	w.emptied = emptied
	return owning, behind
}

// unindexedByLife returns the other nodes, live and dead, whose ids may not all be registered, in
// order.
func (m *Member) unindexedByLife() (live, dead []string) {
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.nodes {
		switch {
		case name == m.Self.Node || s.isIndexed():
		case s.entry.Released || m.deadLocked(s):
			dead = append(dead, name)
		default:
			live = append(live, name)
		}
	}
	slices.Sort(live)
	return live, dead
}

// doubted returns the other live nodes: whatever the registry says, the directory may lack ids of
// theirs.
func (m *Member) doubted() (names []string) {
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.nodes {
		if name != m.Self.Node && !s.entry.Released && !m.deadLocked(s) {
			names = append(names, name)
		}
	}
	return names
}
