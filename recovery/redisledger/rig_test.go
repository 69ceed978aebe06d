package redisledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// noon is a time like those that records have.
const noon = 1_795_000_000_000

func pending(at int64) recovery.Spot { return recovery.Spot{Place: recovery.Pending, At: at} }

func put(id, data string) recovery.Change {
	return recovery.Change{ID: []byte(id), To: pending(noon), Data: []byte(data)}
}

func remove(id string) recovery.Change {
	return recovery.Change{ID: []byte(id), From: pending(noon)}
}

func bury(id, data string) recovery.Change {
	to := recovery.Spot{Place: recovery.Dead, At: noon, Label: "topic"}
	return recovery.Change{ID: []byte(id), From: pending(noon), To: to, Data: []byte(data)}
}

func batchOf(changes ...recovery.Change) *recovery.Batch {
	b := new(recovery.Batch)
	for _, c := range changes {
		b.Add(c)
	}
	return b
}

func adopt(t testing.TB, l *Ledger) recovery.Terms {
	t.Helper()
	terms, err := l.Adopt(t.Context())
	if err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	return terms
}

// apply writes to the first shard.
func apply(t testing.TB, l *Ledger, changes ...recovery.Change) {
	t.Helper()
	if err := l.Apply(t.Context(), 0, batchOf(changes...)); err != nil {
		t.Fatalf("Apply: %v", err)
	}
}

// persist writes to the first shard as the committer does, until there is an answer.
func persist(t testing.TB, l *Ledger, changes ...recovery.Change) {
	t.Helper()
	b := batchOf(changes...)
	eventually(t, "the batch is written", func() bool {
		err := l.Apply(t.Context(), 0, b)
		if errors.Is(err, recovery.ErrLost) || errors.Is(err, recovery.ErrClosed) {
			t.Fatalf("Apply: %v", err)
		}
		return err == nil
	})
}

// eventually repeats done until it returns true.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for n := 0; !done(); n++ {
		if (recovery.Backoff{Min: time.Millisecond, Max: 50 * time.Millisecond}).Wait(ctx, n) != nil {
			t.Fatalf("waiting in vain until %s", what)
		}
	}
}

// held returns a shard's content, pending and dead, read without the ledger. The set must agree
// with the records, and the index with the dead.
func held(t testing.TB, c redis.UniversalClient, keys layout.ShardKeys) map[string]string {
	t.Helper()
	ctx := context.Background()
	all := map[string]string{}
	tasks := c.HGetAll(ctx, keys.Tasks()).Val()
	delete(tasks, layout.OwnerField)
	delete(tasks, layout.SequenceField)
	delete(tasks, layout.RefusedField)
	delete(tasks, layout.AffirmField)
	maps.DeleteFunc(tasks, func(field, _ string) bool { return strings.HasPrefix(field, layout.MarkPrefix) })
	members := slices.DeleteFunc(c.SMembers(ctx, keys.Pending()).Val(), layout.IsReserved)
	slices.Sort(members)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(tasks)), members); diff != "" && len(tasks)+len(members) > 0 {
		t.Fatalf("the set differs from the records:\n%s", diff)
	}
	for id, value := range tasks {
		_, data, err := layout.DecodePending(value)
		if err != nil {
			t.Fatal(err)
		}
		all[id] = data
	}
	dead := c.HGetAll(ctx, keys.Dead()).Val()
	for _, m := range c.ZRange(ctx, keys.DeadIndex(), 0, -1).Val() {
		_, _, id, err := layout.DecodeDeadRef(m)
		value, ok := dead[id]
		if err != nil || !ok {
			t.Fatalf("the index has %q (%v), the dead do not", m, err)
		}
		_, _, data, err := layout.DecodeDead(value)
		if err != nil {
			t.Fatal(err)
		}
		all["dead "+id] = data
		delete(dead, id)
	}
	if len(dead) > 0 {
		t.Fatalf("the index lacks %v", dead)
	}
	return all
}

// wantHeld compares a ledger's first shard with what should be in it.
func wantHeld(t testing.TB, c *redis.Client, l *Ledger, want map[string]string) {
	t.Helper()
	defer c.Close()
	if diff := cmp.Diff(want, held(t, c, l.member.Term(0).Keys)); diff != "" {
		t.Errorf("the shard does not hold what it should (-want +got):\n%s", diff)
	}
}

type content = map[string]string

type ctx = context.Context

// numbered makes creations in parts.
func numbered(n, part int) [][]recovery.Change {
	var all []recovery.Change
	for i := range n {
		all = append(all, put(fmt.Sprintf("task-%06d", i), fmt.Sprint("record ", i)))
	}
	return slices.Collect(slices.Chunk(all, part))
}

// memory is what a replay fills.
type memory struct {
	mu      sync.Mutex // guards records
	records content
	locking func() // called before ids are locked; may be nil
}

func newMemory() *memory { return &memory{records: content{}} }

func (m *memory) Load([]recovery.Entry) { panic("this ledger only nominates") }

func (m *memory) Lock(page []recovery.Entry) []int {
	if m.locking != nil {
		m.locking()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var locked []int
	for i, e := range page {
		if _, known := m.records[string(e.ID)]; !known {
			locked = append(locked, i)
		}
	}
	return locked
}

func (m *memory) Resolve(page []recovery.Entry, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range page {
		if found {
			m.records[string(e.ID)] = string(e.Data)
		}
	}
}

func (m *memory) compare(t testing.TB, want content) {
	t.Helper()
	if diff := cmp.Diff(want, m.records); diff != "" {
		t.Errorf("replay does not give what it should (-want +got):\n%.2000s", diff)
	}
}

// lines are those of a log.
type lines struct {
	mu   sync.Mutex // guards text
	text []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	return len(b), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// has reports whether one line has all of these texts.
func (l *lines) has(texts ...string) bool {
	for line := range strings.Lines(l.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return true
		}
	}
	return false
}
