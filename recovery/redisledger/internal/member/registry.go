package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/identity"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/mend"
)

// MaxShards bounds the shards of a node: each has a lane of its own.
const MaxShards = 1024

// An Entry is a node's entry in the registry.
type Entry struct {
	Incarnation string `json:"incarnation"` // of the process that holds the name; random
	// Generation grows with every registration of the name. If it is lower than this process's
	// own, Redis has lost writes.
	Generation int64 `json:"generation"`
	Released   bool  `json:"released"` // Close has released the name
	// Counts are the numbers of shards that the node has used, the current one
	// last: a task stays in the shard that recorded it.
	Counts []int `json:"counts"`
	identity.Process

	Number  uint16 `json:"number"`            // part of the shard ids of the node's shards; not 0
	Version string `json:"version,omitempty"` // of the program
	Address string `json:"address,omitempty"` // where it serves HTTP
	// Format is that of the newest records, and Layout that of the newest keys, which the
	// process may have written.
	Format  int  `json:"format,omitempty"`
	Layout  int  `json:"layout,omitempty"`
	Indexed bool `json:"indexed,omitempty"` // see recovery.Directory
	// Spool names the spool that may have tasks, and MissingSpools former ones; see recovery.Node.
	Spool         string   `json:"spool,omitempty"`
	MissingSpools []string `json:"missing_spools,omitempty"`
	// FailoverAfter is that of the process, in milliseconds. For a little less than that after
	// a heartbeat, the process is certain of its shards.
	FailoverAfter int64 `json:"failover_after,omitempty"`
}

// shards is how many shards may hold tasks.
func (e *Entry) shards() int { return slices.Max(append(e.Counts, 1)) }

// Encode is the stored form of an entry.
func (e *Entry) Encode() string {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and numbers cannot fail
	}
	return string(b)
}

// decodeEntry reads an entry. It ignores fields of a newer version. The error for an entry that
// cannot be decoded is recovery.ErrLayout if a newer version has written it, and otherwise
// mend.ErrDamaged.
func decodeEntry(node, raw string) (Entry, error) {
	var e Entry
	err := json.Unmarshal([]byte(raw), &e)
	switch {
	case err == nil && e.Layout > layout.Version:
		err = fmt.Errorf("its keys have layout %d, and this version knows %d", e.Layout, layout.Version)
	case err != nil || e.Incarnation == "" || e.Number == 0:
		return Entry{}, fmt.Errorf("%w: the registry's entry of node %s: %.100q", mend.ErrDamaged, node, raw)
	case e.shards() > MaxShards:
		err = fmt.Errorf("%d shards, and this version knows %d", e.shards(), MaxShards)
	default:
		return e, nil
	}
	return e, fmt.Errorf("%w: the registry's entry of node %s: %w", recovery.ErrLayout, node, err)
}

// ReadEntry returns the entry of this node, decoded and as it is stored; "" means that there is
// none.
func (m *Member) ReadEntry(ctx context.Context) (Entry, string, error) {
	raw, err := m.Client.HGet(ctx, m.Keys.Nodes(), m.Self.Node).Result()
	if errors.Is(err, redis.Nil) {
		return Entry{}, "", nil
	}
	if err != nil {
		return Entry{}, "", err
	}
	e, err := decodeEntry(m.Self.Node, raw)
	return e, raw, err
}

// Register makes this process the holder of the node's name. It waits for as long as it takes
// to find out whether an unseen holder is alive.
func (m *Member) Register(ctx context.Context) error {
	for {
		held, raw, err := m.ReadEntry(ctx)
		if errors.Is(err, mend.ErrDamaged) {
			m.Log.Error("registry entry unreadable; rewriting after failover_after", "error", err)
			m.Waits.Set(unreadableEntry(m.Self.Node), "watching the heartbeat for "+m.FailoverAfter.String())
			held, err = Entry{Spool: unreadSpool}, nil // the node may have one
		}
		if err != nil {
			return err
		}
		if raw != "" && held.Incarnation != m.Self.Incarnation && !held.Released {
			if err := m.waitForEnd(ctx, held); err != nil {
				return err
			}
		}
		done, err := m.Follow(ctx, held, raw)
		if err != nil || done {
			m.Waits.Clear(unreadableEntry(m.Self.Node))
			return err
		}
	}
}

// Follow registers this process after another one, or after an earlier state of its own, whose
// entry is stored as raw. It reports false if the stored entry has changed.
func (m *Member) Follow(ctx context.Context, held Entry, raw string) (bool, error) {
	number, err := m.Number(ctx, m.Self.Node)
	if err != nil {
		return false, err
	}
	indexed := held.Indexed // what the former process has registered is still registered
	used := 0
	if held.Incarnation == "" && m.Registration().Generation == 0 {
		if used, err = m.shardsUsed(ctx); err != nil {
			return false, err
		}
		indexed = used == 0
	}
	m.naming.Lock()
	defer m.naming.Unlock()
	spool, missing := held.Spool, held.MissingSpools // tasks may be left there
	if own := m.Registration(); own.Generation > 0 {
		spool, missing = own.Spool, own.MissingSpools // Redis may have lost it
	}
	// Redis may have lost those that it had.
	counts := slices.Concat(held.Counts, m.Registration().Counts)
	counts = append(counts, used)
	slices.Sort(counts)
	counts = slices.DeleteFunc(slices.Compact(counts), func(n int) bool { return n == m.Shards || n < 1 })
	return m.writeEntryInTurn(ctx, raw, Entry{
		Incarnation: m.Self.Incarnation,
		Generation:  max(held.Generation, m.Registration().Generation) + 1,
		Counts:      append(counts, m.Shards),
		Process:     m.Process,
		Number:      number,
		Version:     m.Version,
		Address:     m.Address,
		Format:      m.Format,
		Layout:      layout.Version,
		Indexed:     indexed,
		Spool:       spool,

		MissingSpools: missing,
		FailoverAfter: m.FailoverAfter.Milliseconds(),
	})
}

// unreadableEntry is the name of readiness' entry for a damaged entry of the registry.
func unreadableEntry(node string) string { return "the registry's entry of node " + node }

// shardsUsed is how many shards of this node's name have ever had an owner. If none, the name is
// new, and the node has no ids to register: if it ends right after its start, the other nodes
// need not wait for its shards. Without a registration, that of a former process may have been
// lost, with any number of shards.
func (m *Member) shardsUsed(ctx context.Context) (int, error) {
	shards := make([]seenShard, MaxShards)
	for i := range shards {
		shards[i] = seenShard{node: m.Self.Node, index: i}
	}
	found, err := m.readTokens(ctx, shards)
	if err != nil {
		return 0, err
	}
	used := 0
	if len(found.partial) > 0 {
		used = m.Shards
	}
	for _, h := range found.shards {
		if h.raw != "" && !h.token.Retired() {
			used = max(used, h.index+1)
		}
	}
	return used, nil
}

// writeEntryInTurn replaces this node's entry that is stored as raw, with naming held. It reports
// false if the stored entry has changed.
func (m *Member) writeEntryInTurn(ctx context.Context, raw string, e Entry) (bool, error) {
	v, err := conn.Judge(conn.RegisterScript.Run(ctx, m.Client, []string{m.Keys.Nodes()}, m.Self.Node, raw, e.Encode()))
	if err != nil || v.Code == 0 {
		return false, err
	}
	m.changeTable(func(*table) { m.entry = e })
	return true, nil
}

// RewriteEntry changes this process's own entry, and never another's. It reports false when the
// name is not registered for this process at the moment.
func (m *Member) RewriteEntry(ctx context.Context, change func(e *Entry)) (bool, error) {
	m.naming.Lock()
	defer m.naming.Unlock()
	for {
		held, raw, err := m.ReadEntry(ctx)
		if err != nil || held.Incarnation != m.Self.Incarnation {
			return false, err
		}
		change(&held)
		done, err := m.writeEntryInTurn(ctx, raw, held)
		if err != nil || done {
			return done, err
		}
	}
}

// Registration is this process's entry as it was last written.
func (m *Member) Registration() Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entry
}

// Number returns the number of a node, and allots one if the node has none.
func (m *Member) Number(ctx context.Context, node string) (uint16, error) {
	first := crc32.ChecksumIEEE([]byte(node))%recovery.MaxNodeNumber + 1
	n, err := conn.NumberScript.Run(ctx, m.Client, []string{m.Keys.Numbers()}, node, first, recovery.MaxNodeNumber).Int()
	if err == nil && n == 0 {
		err = errors.New("no number is left for another node")
	}
	return uint16(n), err
}

// waitForEnd returns nil when the holder of the name has ended: at once when that is visible
// from here, and otherwise when its heartbeat was watched for deadAfter, without a gap, and has
// not moved.
func (m *Member) waitForEnd(ctx context.Context, held Entry) error {
	switch m.FateOf(held.Process) {
	case identity.Gone:
		m.Log.Info("the process that held this name has ended; adopting its shards", "process", held.PID)
		return nil
	case identity.Alive:
		return m.heldError(held)
	}
	after := m.deadAfter(&held)
	m.Log.Info("another process holds this name; watching its heartbeat", "holder", held.String(), "for", after)
	first, err := m.heartbeatCount(ctx, m.Self.Node)
	if err != nil {
		return err
	}
	tick := time.NewTicker(m.FailoverAfter / BeatsPerFailover)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) <= after; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		// An error is a gap: the caller starts the watch anew.
		count, err := m.heartbeatCount(ctx, m.Self.Node)
		if err != nil {
			return err
		}
		if count != first {
			return m.heldError(held)
		}
	}
	m.Log.Warn("the process that held this name sends no heartbeat; adopting its shards", "holder", held.String())
	return nil
}

// heartbeatCount is the count of a node's heartbeats. A value that is no count is read as 0: the
// process that sends the next heartbeat begins anew.
func (m *Member) heartbeatCount(ctx context.Context, node string) (int64, error) {
	text, err := m.Client.Get(ctx, m.Keys.Heartbeat(node)).Result()
	if errors.Is(err, redis.Nil) || conn.WrongType(err) {
		return 0, nil
	}
	n, _ := strconv.ParseInt(text, 10, 64)
	return n, err
}

func (m *Member) heldError(held Entry) error {
	return fmt.Errorf("%w: %s runs as node %s; stop it, or give this process another name with --node",
		recovery.ErrHeld, held.Process, m.Self.Node)
}

// Release releases the name, if this process still has it.
func (m *Member) Release(ctx context.Context) error {
	m.endShards(ctx)
	_, err := m.RewriteEntry(ctx, func(e *Entry) { e.Released = true })
	return err
}
