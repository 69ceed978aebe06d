package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/record"
)

// buriedRecord returns a record of a dead task, or of a finished one.
func buriedRecord(state uint8, print uint64, payload int) []byte {
	f := record.Fields{State: state, Topic: []byte("x"), Fingerprint: print, Payload: make([]byte, payload), Next: int64(print)}
	return f.Append(nil)
}

// What Burials has agrees with a map, whatever comes and goes, and its bytes stay within their
// bound. Finished tasks become brief before they are forgotten, and dead ones never are.
func TestBurials(t *testing.T) {
	const most = 8 * burialBlock
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	b := NewBurials(most)
	all := map[uint64]uint8{} // what was added, and not removed
	brief, forgotten := 0, 0
	for i := range 20_000 {
		hash := rnd.Uint64N(3000)
		if rnd.IntN(3) == 0 {
			b.Remove(hash)
			delete(all, hash)
			continue
		}
		state := record.Dead + uint8(rnd.IntN(int(record.States-record.Dead)))
		size := rnd.IntN(300)
		if rnd.IntN(500) == 0 {
			size = 3 * burialBlock
		}
		b.Add(hash, uint32(hash%3), fmt.Append(nil, "id-", hash), buriedRecord(state, hash, size), time.Duration(i))
		all[hash] = state
		if b.Bytes() > 3*(most+4*burialBlock) {
			t.Fatalf("seed %d: %d bytes", seed, b.Bytes())
		}
	}
	for hash := range uint64(3000) {
		e, found := b.Find(hash)
		state, there := all[hash]
		switch {
		case found && !there:
			t.Fatalf("seed %d: %d was removed", seed, hash)
		case !found && there:
			forgotten++
		case found:
			if string(e.ID) != fmt.Sprint("id-", hash) || record.State(e.Record) != state || record.Fingerprint(e.Record) != hash || e.Shard != uint32(hash%3) {
				t.Fatalf("seed %d: %d is %+v", seed, hash, e)
			}
			if e.Brief {
				brief++
				if f, err := record.Decode(e.Record); err != nil || len(f.Payload) > 0 || !record.IsFinished(state) {
					t.Fatalf("seed %d: brief %d is %+v, %v", seed, hash, f, err)
				}
			}
		}
	}
	if brief == 0 || forgotten == 0 {
		t.Errorf("seed %d: %d are brief, %d were forgotten: the bounds were not met", seed, brief, forgotten)
	}
	for shard := range uint32(3) {
		var c BurialCursor
		seen := map[uint64]bool{}
		for more := true; more; {
			looked := 0
			more = b.Since(shard, 0, &c, 7, func(hash uint64, e Burial) {
				if looked++; seen[hash] || e.Shard != shard {
					t.Fatalf("seed %d: %d is visited, of shard %d", seed, hash, e.Shard)
				}
				seen[hash] = true
			})
			if looked > 7 {
				t.Fatalf("seed %d: %d were looked at", seed, looked)
			}
		}
		for hash := range all {
			if _, found := b.Find(hash); found && uint32(hash%3) == shard && !seen[hash] {
				t.Fatalf("seed %d: %d was not visited", seed, hash)
			}
		}
	}
	for hash := range uint64(3000) {
		b.Remove(hash)
	}
	if b.Len() != 0 || b.Bytes() > 3*4*burialBlock {
		t.Errorf("seed %d: %d bytes are left of nothing", seed, b.Bytes())
	}
}

// Since visits what was added at a time or later.
func TestBurialsSince(t *testing.T) {
	b := NewBurials(1 << 20)
	for i := range uint64(1000) {
		b.Add(i, 1, []byte{byte(i)}, buriedRecord(record.Delivered, i, 100), time.Duration(i))
	}
	var c BurialCursor
	var got []uint64
	for b.Since(1, 990, &c, 100, func(hash uint64, _ Burial) { got = append(got, hash) }) {
	}
	if len(got) != 10 || got[0] != 990 || got[9] != 999 {
		t.Errorf("visited %v", got)
	}
}
