package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
)

// A node's entry names the spool that may have tasks which Redis lacks. It does so from the moment
// at which a process opens the spool until one has ended in order and left it empty, since in an
// outage nothing can be said. A process that finds the name of another spool knows that one to be
// missing: it was started with another directory. The name stays among the missing ones until a
// process opens that spool, or an operator gives it up.

const (
	// unreadSpool stands for the spool of an entry that could not be read. The next spool that the
	// node opens counts as that one.
	unreadSpool = "?"
	// manyMissing stands for further missing spools, of which the names are not kept. It stays
	// until they are given up.
	manyMissing = "*"
	// maxMissingSpools bounds the names.
	maxMissingSpools = 16
)

// openSpool notes that a process has opened a spool; empty: it has none.
func (e *Entry) openSpool(spool string) {
	found := e.Spool == unreadSpool && spool != "" || e.Spool == spool
	if !found && e.Spool != "" && !slices.Contains(e.MissingSpools, e.Spool) {
		if e.MissingSpools = append(e.MissingSpools, e.Spool); len(e.MissingSpools) > maxMissingSpools {
			e.MissingSpools = append(e.MissingSpools[:maxMissingSpools-1], manyMissing)
		}
	}
	e.MissingSpools = slices.DeleteFunc(e.MissingSpools, func(missing string) bool { return missing == spool })
	e.Spool = spool
}

// OpenSpool writes the name of this node's spool, see recovery.Fleet.
func (m *Member) OpenSpool(ctx context.Context, spool string) error {
	if err := m.rewriteSpools(ctx, func(e *Entry) { e.openSpool(spool) }); err != nil {
		return err
	}
	if missing := m.Registration().MissingSpools; len(missing) > 0 {
		m.Log.Warn("this node was started with another spool than before, and the former one may have tasks: ids of this node that are not found are answered 503; start the node with that spool, or give it up",
			"spool", spool, "missing", strings.Join(missing, ", "))
	}
	return nil
}

// EmptiedSpool writes that the spool is empty, see recovery.Fleet.
func (m *Member) EmptiedSpool(ctx context.Context) error {
	return m.rewriteSpools(ctx, func(e *Entry) { e.Spool = "" })
}

// rewriteSpools changes this process's entry, and looks at it as other nodes do.
func (m *Member) rewriteSpools(ctx context.Context, change func(e *Entry)) error {
	registered, err := m.RewriteEntry(ctx, change)
	switch {
	case err != nil:
		return err
	case !registered:
		return fmt.Errorf("%w: node %s is not registered for this process", recovery.ErrLost, m.Self.Node)
	}
	return m.Poll(ctx)
}

// GiveUpSpools removes the missing spools of a node, see recovery.Fleet.
func (m *Member) GiveUpSpools(ctx context.Context, node string) error {
	if node == m.Self.Node {
		return m.rewriteSpools(ctx, func(e *Entry) { e.MissingSpools = nil })
	}
	for {
		raw, err := m.Client.HGet(ctx, m.Keys.Nodes(), node).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil {
			return err
		}
		e, err := decodeEntry(node, raw)
		if err != nil || len(e.MissingSpools) == 0 {
			return err
		}
		e.MissingSpools = nil
		v, err := conn.Judge(conn.RegisterScript.Run(ctx, m.Client, []string{m.Keys.Nodes()}, node, raw, e.Encode()))
		switch {
		case err != nil:
			return err
		case v.Code == 1:
			return m.Poll(ctx)
		}
	}
}

// spoolWarnings returns a warning for each node whose spools are missing.
func (m *Member) spoolWarnings() (warnings []string) {
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.nodes {
		if len(s.entry.MissingSpools) == 0 {
			continue
		}
		warnings = append(warnings, fmt.Sprintf("node %s was started without its former spool (%s), which may have tasks: start it with that, or give it up (lapse nodes give-up-spools %s)",
			name, strings.Join(s.entry.MissingSpools, ", "), name))
	}
	slices.Sort(warnings)
	return warnings
}
