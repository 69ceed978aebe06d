package redisledger

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// large writes records of size bytes, pending or dead, into one shard directly, without the proxy.
func large(t *testing.T, l *Ledger, n, size int, dead bool) {
	t.Helper()
	data := strings.Repeat("x", size)
	for i := range n {
		id := fmt.Sprintf("task-%04d", i)
		changes := []recovery.Change{put(id, data)}
		if dead {
			changes = append(changes, bury(id, data))
		}
		for _, c := range changes {
			apply(t, l, c)
		}
	}
}

// countingMemory is a memory that counts records.
type countingMemory struct{ found, bytes atomic.Int64 }

func (m *countingMemory) Load([]recovery.Entry) { panic("the ledger only nominates") }
func (m *countingMemory) Lock(page []recovery.Entry) []int {
	all := make([]int, len(page))
	for i := range all {
		all[i] = i
	}
	return all
}
func (m *countingMemory) Resolve(page []recovery.Entry, found bool) {
	for _, e := range page {
		if found {
			m.found.Add(1)
			m.bytes.Add(int64(len(e.Data)))
		}
	}
}

// warnings counts lines of the log.
type warnings struct{ late atomic.Int64 }

func (w *warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w *warnings) WithGroup(string) slog.Handler            { return w }
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && strings.Contains(r.Message, "does not answer a read in time") {
		w.late.Add(1)
	}
	return nil
}

func behindLine(t *testing.T) (*Ledger, *redistest.Proxy, *warnings) {
	t.Helper()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	w := &warnings{}
	v := newLives(proxy.URL())
	v.opts.Shards, v.opts.Log = 1, slog.New(w)
	l := v.open(t)
	adopt(t, l)
	return l, proxy, w
}

// Records that do not come within a second when they are read together are read nevertheless, in
// smaller chunks: by replay, by lists and by id.
func TestLargeRecordsOverASlowLine(t *testing.T) {
	const n, size, rate = 100, 65_000, 4_000_000 // 6.5 MB: 1.6 s
	for name, dead := range map[string]bool{"pending": false, "dead": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, proxy, _ := behindLine(t)
			large(t, l, n, size, dead)
			proxy.Throttle(rate)
			if !dead {
				m := &countingMemory{}
				if err := recovery.Replay(t.Context(), l, m, nil); err != nil {
					t.Fatal(err)
				}
				if m.found.Load() != n || m.bytes.Load() != n*size {
					t.Errorf("%d records, %d bytes were replayed", m.found.Load(), m.bytes.Load())
				}
				return
			}
			var ids []string
			if err := l.ListDead(t.Context(), "", recovery.Ref{}, func(e recovery.Entry) bool {
				ids = append(ids, string(e.ID))
				return len(e.Data) == size
			}); err != nil || len(ids) != n {
				t.Fatalf("%d are listed, %v", len(ids), err)
			}
			found := 0
			if err := l.GetDead(t.Context(), ids, func(int, recovery.Entry) { found++ }); err != nil || found != n {
				t.Errorf("%d are found, %v", found, err)
			}
		})
	}
}

// The index of the dead is read without their records.
func TestScanDeadReadsNoRecords(t *testing.T) {
	l, proxy, _ := behindLine(t)
	large(t, l, 20, 65_000, true)
	proxy.Throttle(100_000)
	found := 0
	if err := l.ScanDead(t.Context(), 0, func(recovery.Entry) { found++ }); err != nil || found != 20 {
		t.Errorf("%d are found, %v", found, err)
	}
}

// A single record gets as much time as it needs.
func TestOneLargeRecordOverASlowLine(t *testing.T) {
	t.Parallel()
	l, proxy, w := behindLine(t)
	large(t, l, 1, 1<<20, false)
	proxy.Throttle(800_000) // 1.3 s
	m := &countingMemory{}
	if err := recovery.Replay(t.Context(), l, m, nil); err != nil || m.bytes.Load() != 1<<20 {
		t.Errorf("%d bytes, %v", m.bytes.Load(), err)
	}
	if got := w.late.Load(); got != 1 {
		t.Errorf("%d lines of the log tell of it, want 1", got)
	}
	if w := l.Health().Waiting; len(w) > 0 {
		t.Errorf("it still waits for %v", w)
	}
}

// A single large record is found by its id as well, alone or among others.
func TestFindOneLargeRecordOverASlowLine(t *testing.T) {
	for name, find := range map[string]func(l *Ledger, found func(e recovery.Entry)) error{
		"one": func(l *Ledger, found func(recovery.Entry)) error { return l.Find(t.Context(), "task-0000", found) },
		"many": func(l *Ledger, found func(recovery.Entry)) error {
			return l.FindMany(t.Context(), []string{"unknown", "task-0000"}, func(_ int, e recovery.Entry) { found(e) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, proxy, w := behindLine(t)
			large(t, l, 1, 1<<20, false)
			proxy.Throttle(800_000) // 1.3 s
			for range 2 {
				bytes := 0
				if err := find(l, func(e recovery.Entry) { bytes += len(e.Data) }); err != nil || bytes != 1<<20 {
					t.Errorf("%d bytes, %v", bytes, err)
				}
			}
			if w.late.Load() == 0 {
				t.Error("no line of the log tells of it")
			}
			if w := l.Health().Waiting; len(w) > 0 {
				t.Errorf("it still waits for %v", w)
			}
		})
	}
}

// While no record comes, readiness says so, and Close does not wait for one.
func TestCloseDuringASlowRead(t *testing.T) {
	t.Parallel()
	l, proxy, _ := behindLine(t)
	large(t, l, 2, 1<<20, false)
	proxy.Throttle(1000)
	ended := make(chan error, 1)
	go func() { ended <- recovery.Replay(t.Context(), l, &countingMemory{}, nil) }()
	eventually(t, "readiness tells of it", func() bool {
		all := l.Health().Waiting
		return len(all) == 1 && all[0].What == "reading pending records from Redis" && all[0].Detail != ""
	})
	proxy.Throttle(0) // Close releases the node's name, over the same line
	_ = l.Close()
	if err := <-ended; err == nil {
		t.Error("the replay has ended well")
	}
}
