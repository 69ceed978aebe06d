package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestIndexAgainstMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	b, model := New(), map[string]uint32{}
	var ids []string
	for i := range 60_000 {
		if len(ids) == 0 || rng.IntN(100) < 60-i/1500 { // grows at first, shrinks later
			id := fmt.Sprint("id-", rng.Uint32())
			if _, ok := model[id]; ok {
				continue
			}
			n, _ := b.Enter([]byte(id), []byte(id))
			b.Slot(n).State = Pending
			model[id] = n
			ids = append(ids, id)
			continue
		}
		k := rng.IntN(len(ids))
		id := ids[k]
		ids[k] = ids[len(ids)-1]
		ids = ids[:len(ids)-1]
		b.Leave(model[id])
		delete(model, id)
		if _, ok := b.Find([]byte(id)); ok {
			t.Fatalf("%s is found after it was removed", id)
		}
	}
	if b.used != len(model) {
		t.Errorf("used = %d, want %d", b.used, len(model))
	}
	for id, n := range model {
		if at, ok := b.Find([]byte(id)); !ok || at != n {
			t.Fatalf("find(%s) = %d, %v; want %d", id, at, ok, n)
		}
	}
}

// In one table that is almost full, entries wrap around its end. Each removal has to
// leave the others within reach.
func TestIndexDeletionWithWrapAround(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		b := New()
		x := b.index
		hashes := map[uint32]uint64{}
		add := func() {
			n, sl := b.Enter(fmt.Appendf(nil, "id-%d", len(hashes)), nil)
			x.remove(b, x.hash(b.ID(sl)), n)
			// ShardIDs near the end of the first table, so that probes run around.
			h := uint64(12 + rng.Uint32N(6))
			sl.hash = uint32(h)
			x.add(b, h, n)
			hashes[n] = h
		}
		reach := func() {
			for n, h := range hashes {
				if at, ok := x.find(b, h, b.ID(b.Slot(n))); !ok || at != n {
					t.Fatalf("seed %d: slot %d, home %d: found %d, %v", seed, n, h, at, ok)
				}
			}
		}
		for range 12 {
			add()
		}
		reach()
		for n, h := range hashes {
			x.remove(b, h, n)
			delete(hashes, n)
			reach()
		}
		if x.tables[0].used != 0 {
			t.Fatalf("seed %d: %d entries are left", seed, x.tables[0].used)
		}
	}
}

func TestIndexShrinks(t *testing.T) {
	b := New()
	size := func() (n int) {
		for i := range b.index.tables {
			n += len(b.index.tables[i].entries)
		}
		return n
	}
	var slots []uint32
	for i := range 100_000 {
		n, _ := b.Enter(fmt.Append(nil, i), nil)
		slots = append(slots, n)
	}
	full := size()
	for _, n := range slots[10_000:] {
		b.Leave(n)
	}
	if size() > full/3 {
		t.Errorf("%d of %d entries are left for a tenth of the tasks", size(), full)
	}
	for i, n := range slots[:10_000] {
		if at, ok := b.Find(fmt.Append(nil, i)); !ok || at != n {
			t.Fatalf("find(%d) = %d, %v", i, at, ok)
		}
	}
}

func TestIndexPanicsOnWhatItNeverHad(t *testing.T) {
	b := New()
	n, sl := b.Enter([]byte("a"), nil)
	h := b.index.hash(b.ID(sl))
	b.index.remove(b, h, n)
	defer func() {
		if recover() == nil {
			t.Error("removed twice without a word")
		}
	}()
	b.index.remove(b, h, n)
}

// What was armed or queued before a slot changed hands is stale.
func TestStaleValues(t *testing.T) {
	b := New()
	n, sl := b.Enter([]byte("a"), nil)
	sl.State = Pending
	v := sl.Value(n)
	if _, _, ok := b.Unpack(v, Pending); !ok {
		t.Fatal("a fresh value is stale")
	}
	if _, _, ok := b.Unpack(v, Ready); ok {
		t.Error("the state does not count")
	}
	b.Leave(n)
	again, sl := b.Enter([]byte("b"), nil)
	sl.State = Pending
	if again != n {
		t.Fatalf("slot %d, want %d again", again, n)
	}
	if _, _, ok := b.Unpack(v, Pending); ok {
		t.Error("a value outlives its task")
	}
}
