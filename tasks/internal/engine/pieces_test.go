package engine_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// inPieces runs f, which must deal with so many tasks, of which no hold of the lock may deal with
// more than a few.
func inPieces(t *testing.T, e *engine.Engine, what string, tasks, few int64, f func()) {
	t.Helper()
	before, _ := e.Pieces()
	f()
	after, most := e.Pieces()
	if after-before < tasks || most > few {
		t.Errorf("%s: %d tasks are counted, want %d at least; one hold of the lock has dealt with %d, want %d at most",
			what, after-before, tasks, most, few)
	}
}

// What is read into memory at once is taken in by pieces: others get the lock in between.
func TestPagesComeInPieces(t *testing.T) {
	t.Parallel()
	const many = 5*engine.AtOnce + 1
	for name, row := range map[string]struct {
		payload   int
		most      int64
		nominates bool
	}{
		"nominated":            {1, engine.AtOnce, true},
		"nominated, and large": {16 << 10, engine.AtOnce, true},
		"with data":            {1, engine.AtOnce, false},
		"large, with data":     {16 << 10, engine.PieceBytes / (16 << 10), false},
	} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
				e := f.Nodes[0].Engine()
				m := (*engine.Memory)(e)
				due := time.Now().Add(time.Hour).UnixMilli()
				payload := append(bytes.Repeat([]byte("1"), row.payload), '0')
				page := make([]recovery.Entry, many)
				for i := range page {
					id := fmt.Sprint("t", i)
					fields := record.Fields{Revision: 1, Due: due, Next: due, Created: time.Now().UnixMilli(), Topic: []byte("t"), Payload: payload}
					page[i] = recovery.Entry{ID: []byte(id), Spot: recovery.Spot{Place: recovery.Pending, At: due}, Data: fields.Append(nil)}
					put(f.Nodes[0], 0, id, fields)
				}
				inPieces(t, e, "what came in", many, row.most, func() {
					if !row.nominates {
						m.Load(page)
						return
					}
					if locked := m.Lock(page); len(locked) != many || locked[many-1] != many-1 {
						t.Fatalf("%d are locked", len(locked))
					}
					m.Resolve(page, true)
				})
				if n := f.Nodes[0].Stats().Total.Pending; n != many {
					t.Errorf("%d are pending", n)
				}
			})
		})
	}
}

// A shard that changes hands leaves one memory, and comes into the other, by pieces. Of
// several shards one is read at a time.
func TestShardsChangeHandsInPieces(t *testing.T) {
	const many = 4 * engine.AtOnce
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 2, Config{})
		for i := range many {
			a.Must(Request{ID: fmt.Sprint("far", i), Topic: "far", Delay: time.Hour})
		}
		b := f.Join("b", 1, Config{})
		inPieces(t, a.Engine(), "eviction", many, engine.AtOnce, func() {
			inPieces(t, b.Engine(), "a hand-over", many, engine.AtOnce, func() {
				rig.Want(t, "Drain", a.Drain(t.Context()), nil)
				rig.Pass(time.Second)
			})
		})
		if n := b.Stats().Total.Pending; n != many {
			t.Errorf("%d are pending", n)
		}
	})
}

// A load rests for as long as it works, so that the machine's processors are free for what is due.
func TestLoadsRest(t *testing.T) {
	e := rig.New(t, Config{}).Engine()
	<-e.Reading.Replayed
	const pieces, work = 5, 2 * time.Millisecond
	began := time.Now()
	e.InPieces(make([]recovery.Entry, pieces*engine.AtOnce), func([]recovery.Entry) { time.Sleep(work) })
	if took := time.Since(began); took < 2*pieces*work {
		t.Errorf("%d pieces of %v have taken %v", pieces, work, took)
	}
}
