package redisledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

var (
	nowhere recovery.DirectoryEntry
	here    = recovery.DirectoryEntry{ShardID: recovery.NewShardID(7, 3), Nonce: 1}
	there   = recovery.DirectoryEntry{ShardID: recovery.NewShardID(65535, 1023), Nonce: 1<<32 - 1}
)

// file makes changes, and checks where the ids are registered then.
func file(t *testing.T, l *Ledger, changes []recovery.DirectoryUpdate, want ...recovery.DirectoryEntry) {
	t.Helper()
	now, err := l.Update(t.Context(), changes)
	if err != nil {
		t.Fatalf("File: %v", err)
	}
	if diff := cmp.Diff(want, now); diff != "" && len(want)+len(now) > 0 {
		t.Fatalf("File (-want +got):\n%s", diff)
	}
}

// entries makes n changes.
func dirEntries(n int, old, now recovery.DirectoryEntry) []recovery.DirectoryUpdate {
	changes := make([]recovery.DirectoryUpdate, n)
	for i := range changes {
		changes[i] = recovery.DirectoryUpdate{ID: fmt.Sprintf("order-%06d", i), Old: old, New: now}
	}
	return changes
}

func times(n int, f recovery.DirectoryEntry) []recovery.DirectoryEntry {
	all := make([]recovery.DirectoryEntry, n)
	for i := range all {
		all[i] = f
	}
	return all
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	for name, start := range kinds {
		if name == "Cluster before sharded channels" {
			continue // as any other
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := start(t).open(t)
			adopt(t, l)
			file(t, l, nil)
			file(t, l, []recovery.DirectoryUpdate{{ID: "a", New: here}, {ID: "b", New: there}, {ID: "c"}}, here, there, nowhere)
			file(t, l, []recovery.DirectoryUpdate{{ID: "a", New: there}, {ID: "b", Old: here, New: there}, {ID: "c", Old: here, New: there}}, here, there, nowhere)
			file(t, l, []recovery.DirectoryUpdate{{ID: "a", Old: here, New: there}, {ID: "b", Old: there}}, there, nowhere)
			file(t, l, []recovery.DirectoryUpdate{{ID: "a", Old: here, New: there}, {ID: "b", Old: there}}, there, nowhere)
			found, err := l.Lookup(t.Context(), []string{"b", "a", "c", "a"})
			if diff := cmp.Diff([]recovery.DirectoryEntry{nowhere, there, nowhere, there}, found); diff != "" || err != nil {
				t.Errorf("Look: %v (-want +got):\n%s", err, diff)
			}
			if _, err := l.Update(t.Context(), []recovery.DirectoryUpdate{{ID: "a"}, {ID: "x"}, {ID: "a", New: here}}); err == nil {
				t.Error("an id was registered twice at once")
			}

			const n = 10_000 // more than one script takes
			file(t, l, dirEntries(n, nowhere, here), times(n, here)...)
			walked := map[string]recovery.DirectoryEntry{}
			steps := 0
			for position := "0:0"; position != ""; steps++ {
				before := len(walked)
				var err error
				if position, err = l.ScanDirectory(t.Context(), position, func(id string, f recovery.DirectoryEntry) { walked[id] = f }); err != nil {
					t.Fatal(err)
				}
				if len(walked)-before > 2*1000 { // a step visits about a thousand
					t.Errorf("a step gives %d entries", len(walked)-before)
				}
			}
			if len(walked) != n+1 || walked["a"] != there || walked["order-009999"] != here || steps < 5 {
				t.Errorf("a walk gives %d in %d steps, want %d", len(walked), steps, n+1)
			}
			if _, err := l.ScanDirectory(t.Context(), "nonsense", nil); err == nil {
				t.Error("a position was made of nonsense")
			}
			file(t, l, dirEntries(n, here, there), times(n, there)...)
			file(t, l, dirEntries(n, here, nowhere), times(n, there)...)
			file(t, l, dirEntries(n, there, nowhere), times(n, nowhere)...)
			ids := 0
			for b := range layout.Buckets {
				ids += int(l.client.HLen(t.Context(), l.keys.IDs(uint8(b))).Val())
			}
			if ids -= layout.Buckets; ids != 1 { // each bucket has a mark
				t.Errorf("%d ids are left, want 1", ids)
			}
		})
	}
}

// Of several nodes that file the same ids at the same time, one gets each id.
func TestRegisteredOnce(t *testing.T) {
	server := redistest.Start(t)
	v := newLives(server.URL())
	const nodes, ids = 4, 500
	var got [nodes][]recovery.DirectoryEntry
	var wg sync.WaitGroup
	for n := range nodes {
		v.opts.Node = fmt.Sprint("node", n)
		l := v.open(t)
		adopt(t, l)
		wg.Go(func() {
			for from := 0; from < ids; from += 50 {
				changes := dirEntries(ids, nowhere, recovery.DirectoryEntry{ShardID: recovery.NewShardID(uint16(n+1), 0), Nonce: rand.Uint32()})[from : from+50]
				now, err := l.Update(t.Context(), changes)
				if err != nil {
					t.Error(err)
				}
				got[n] = append(got[n], now...)
			}
		})
	}
	wg.Wait()
	for n := range nodes {
		if diff := cmp.Diff(got[0], got[n]); diff != "" {
			t.Errorf("nodes 0 and %d disagree:\n%.500s", n, diff)
		}
	}
}

// Redis is out of memory: new ids are refused, and all others of the call change.
func TestRegisterOutOfMemory(t *testing.T) {
	server := redistest.Start(t, "maxmemory-policy noeviction")
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	file(t, l, dirEntries(20, nowhere, here), times(20, here)...)
	server.Do("config", "set", "maxmemory", "1mb")
	changes := dirEntries(30, here, there)
	want := times(30, there)
	for i := range 10 {
		changes[i].New, want[i] = nowhere, nowhere
		changes[20+i].Old, want[20+i] = nowhere, nowhere
	}
	for range 2 { // the second time, all but the new ones are made already
		now, err := l.Update(t.Context(), changes)
		if diff := cmp.Diff(want, now); diff != "" || !errors.Is(err, recovery.ErrFull) {
			t.Errorf("File without memory: %v (-want +got):\n%s", err, diff)
		}
	}
	if err := l.Condition(); !errors.Is(err, recovery.ErrFull) {
		t.Errorf("Condition without memory: %v", err)
	}
	file(t, l, dirEntries(20, there, nowhere)[10:], times(10, nowhere)...)
	file(t, l, []recovery.DirectoryUpdate{{ID: "absent", Old: here, New: there}}, nowhere)
	server.Do("config", "set", "maxmemory", "0")
	file(t, l, dirEntries(30, nowhere, here), times(30, here)...)
}

// A script that the server has forgotten is sent again, in full.
func TestRegisterWithoutScript(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	l := oneShard(cluster.URL()).open(t)
	adopt(t, l)
	for _, now := range []recovery.DirectoryEntry{here, there} {
		for _, m := range cluster.Masters {
			m.Do("script", "flush")
		}
		old := nowhere
		if now == there {
			old = here
		}
		file(t, l, dirEntries(100, old, now), times(100, now)...)
	}
}

// While a bucket's slot moves, its ids can be registered.
func TestRegisterWhileSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	l := oneShard(cluster.URL()).open(t)
	adopt(t, l)
	key := l.keys.IDs(layout.BucketOf("order-000000"))
	file(t, l, dirEntries(100, nowhere, here), times(100, here)...)
	move := cluster.BeginMove(key)
	file(t, l, dirEntries(100, here, there), times(100, there)...)
	move.Key(key)
	file(t, l, dirEntries(100, there, here), times(100, here)...)
	move.End()
	file(t, l, dirEntries(100, here, nowhere), times(100, nowhere)...)
}

func TestUnreadableEntry(t *testing.T) {
	server := redistest.Start(t)
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	server.Do("hset", l.keys.IDs(layout.BucketOf("a")), "a", "of a newer version")
	if _, err := l.Lookup(t.Context(), []string{"a"}); err == nil {
		t.Error("Look gives what cannot be read")
	}
	if _, err := l.Update(t.Context(), []recovery.DirectoryUpdate{{ID: "a", New: here}}); err == nil {
		t.Error("File gives what cannot be read")
	}
	if _, err := l.ScanDirectory(t.Context(), fmt.Sprint(layout.BucketOf("a"), ":0"), func(id string, _ recovery.DirectoryEntry) { t.Errorf("a scan gives %s", id) }); err != nil {
		t.Errorf("ScanEntries: %v", err)
	}
}

// The layout of entries, on which other versions rely.
func TestDirectoryEntryBytes(t *testing.T) {
	if got := string(layout.AppendEntry(nil, there)); got != "\x03\xff\xff\xff\xff\xff\xff\xff" {
		t.Errorf("a directory entry is %q", got)
	}
	if got := string(layout.AppendEntry(nil, here)); got != "\x00\x00\x1c\x03\x00\x00\x00\x01" {
		t.Errorf("a directory entry is %q", got)
	}
	if got := (layout.Keys{Prefix: DefaultPrefix}).IDs(layout.BucketOf("order-42")); got != "lapse:ids:87" {
		t.Errorf("order-42 is registered in %s", got)
	}
}
