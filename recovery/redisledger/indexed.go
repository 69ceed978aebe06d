package redisledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// A node tells by its entry in the registry whether all its ids are filed. A shard that
// comes from a node which had not filed all of its own brings ids along that nobody finds
// in the directory, so before it is claimed, the entry of the node that gets it says so.
// That is counted here; Ledger.mu guards it.
type suspects struct {
	gained   int // shards that were claimed, or are about to be, with ids that may not be filed
	told     int // those of which memory knows
	excepted int // gained, when MarkIndexed has refused to call all filed for the last time
}

// errUnfiled is returned by MarkIndexed.
var errUnfiled = errors.New("shards were gained whose ids may not be filed: they have to be filed as well")

// MarkIndexed implements recovery.Directory.
func (l *Ledger) MarkIndexed(ctx context.Context, indexed bool) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	unfiled := false
	registered, err := l.rewriteEntry(ctx, func(e *entry) {
		l.mu.Lock()
		defer l.mu.Unlock()
		s := &l.suspects
		if unfiled = unfiled || indexed && s.gained != s.excepted; unfiled {
			if s.told == s.gained {
				s.excepted = s.gained // now memory knows of all, and may say it again
			}
			return
		}
		e.Indexed = indexed
	})
	switch {
	case err != nil:
		return err
	case !registered:
		return fmt.Errorf("%w: node %s is not registered for this process", recovery.ErrLost, l.opts.Node)
	case unfiled:
		return errUnfiled
	}
	return nil
}

// beforeTaking marks this process as one whose ids are not all filed, if that may be so
// once it has taken a shard. If it reports suspect, afterTaking has to follow, when memory
// knows of the shard or will not get it.
func (l *Ledger) beforeTaking(ctx context.Context, h holding) (suspect bool, err error) {
	l.others.mu.Lock()
	suspect = h.token.node != "" && l.others.nodes[h.token.node] == nil
	for name, s := range l.others.nodes {
		suspect = suspect || name != l.opts.Node && !s.isIndexed()
	}
	l.others.mu.Unlock()
	if !suspect {
		return false, nil
	}
	l.mu.Lock()
	l.suspects.gained++
	l.mu.Unlock()
	registered, err := l.rewriteEntry(ctx, func(e *entry) { e.Indexed = false })
	if err == nil && !registered {
		err = fmt.Errorf("%w: node %s is not registered for this process", recovery.ErrLost, l.opts.Node)
	}
	if err != nil {
		l.afterTaking()
	}
	return true, err
}

func (l *Ledger) afterTaking() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.suspects.told++
}

// isIndexed tells that all ids of a node are filed, as far as it can be told.
func (s *sighting) isIndexed() bool { return s.fault == nil && s.entry.Indexed }

// viewFresh is how old a look at the others may be for Unindexed.
const viewFresh = time.Second

// Unindexed implements recovery.Directory. What it knows may be a second old: a node that
// stops to file is alone, and says so before; whoever comes then looks anew.
func (l *Ledger) Unindexed(ctx context.Context) ([]string, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	w := &l.others
	w.mu.Lock()
	stale := w.answered.IsZero() || elapsed(w.answered) > viewFresh
	w.mu.Unlock()
	if stale {
		if err := l.poll(ctx); err != nil {
			return nil, err
		}
	}
	names, dead := l.unindexed()
	if _, doubtful := l.doubts(); doubtful {
		names = append(names, l.doubted()...)
		slices.Sort(names)
		names = slices.Compact(names)
	}
	if len(dead) == 0 {
		return names, nil
	}
	w.mu.Lock()
	stale = elapsed(w.surveyed) > surveyFresh
	w.mu.Unlock()
	if stale {
		if _, err := l.survey(ctx); err != nil {
			return nil, err
		}
	}
	holding, behind := w.holdingOf(dead)
	if behind {
		if err := l.poll(ctx); err != nil {
			return nil, err
		}
		again, _ := l.unindexed()
		names = append(names, again...)
	}
	names = append(names, holding...)
	slices.Sort(names)
	return slices.Compact(names), nil
}

// holdingOf names those of some dead nodes that still hold shards. Whoever has adopted
// those of the others has said before that not all of his ids are filed, so the look at
// the nodes must come after the one at the shards; behind tells that it does not.
func (w *watch) holdingOf(dead []string) (holding []string, behind bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tokens {
		if slices.Contains(dead, t.node) {
			holding = append(holding, t.node)
		}
	}
	emptied := map[string]time.Time{}
	for _, name := range dead {
		if slices.Contains(holding, name) {
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
	return holding, behind
}

// unindexed names the other nodes that live, and those that do not, whose ids may not
// all be filed, in order.
func (l *Ledger) unindexed() (live, dead []string) {
	w := &l.others
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.nodes {
		switch {
		case name == l.opts.Node || s.isIndexed():
		case s.entry.Released || l.deadLocked(s):
			dead = append(dead, name)
		default:
			live = append(live, name)
		}
	}
	slices.Sort(live)
	return live, dead
}

// doubted names the other nodes that live, and those that lived when Redis lost their
// registration: whatever the registry says, the directory may lack ids of theirs.
func (l *Ledger) doubted() (names []string) {
	w := &l.others
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.nodes {
		if name != l.opts.Node && !s.entry.Released && !l.deadLocked(s) {
			names = append(names, name)
		}
	}
	for name, since := range w.vanished {
		if between(since, time.Now()) < l.opts.FailoverAfter {
			names = append(names, name)
		}
	}
	return names
}
