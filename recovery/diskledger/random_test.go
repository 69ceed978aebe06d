package diskledger

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery"
)

// A model is what a ledger should hold: the spot and the data of each task.
type model map[string]modelled

type modelled struct {
	spot recovery.Spot
	data string
}

// TestRandomHistories compares a ledger with a model of it, over random changes, failures of the
// disk, power cuts and restarts, while records move to the store all the time.
func TestRandomHistories(t *testing.T) {
	const seeds, steps = 6, 400
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := newHistory(t, seed)
			for h.step = range steps {
				h.next()
			}
			_ = h.ledger.Close()
			h.compare(h.disk.mem)
		})
	}
}

// A history is a ledger and what should be in it.
type history struct {
	*testing.T
	*rand.Rand
	step   int
	extent extent
	disk   *faultyDisk
	ledger *Ledger
	model  model
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{T: t, Rand: rand.New(rand.NewPCG(seed, 23)), disk: newFaultyDisk(), model: model{}}
	h.extent = extent{segment: 512, kept: h.IntN(3), together: 1 + h.IntN(3), most: 4 + h.IntN(3)}
	h.open()
	return h
}

func (h *history) open() {
	h.disk.heal()
	l, err := Open("/ledger", Options{
		fs: h.disk.fs(), MinFree: -1, Log: quiet(), extent: h.extent,
		reopening: recovery.Backoff{Min: time.Microsecond, Max: time.Millisecond},
	})
	if err != nil {
		h.Fatal(err)
	}
	if _, err := l.Adopt(h.Context()); err != nil {
		h.Fatalf("step %d: Adopt: %v", h.step, err)
	}
	h.ledger = l
}

// next does one random thing.
func (h *history) next() {
	switch n := h.IntN(100); {
	case n < 80:
		h.apply()
	case n < 85:
		h.get()
	case n < 88:
		// An error is one of the store that was opened anew.
		_ = h.ledger.Scan(h.Context(), func([]recovery.Entry) error { return nil })
	case n < 92:
		h.fail()
	case n < 97:
		h.compare(h.cut())
	case n < 98:
		_ = h.ledger.Close()
		h.open()
	default: // the power fails, and the ledger goes on
		mem := h.cut()
		_ = h.ledger.Close()
		h.disk = &faultyDisk{mem: mem, hit: make(chan struct{}, 100)}
		h.open()
	}
}

func (h *history) cut() *vfs.MemFS {
	return h.disk.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: h.IntN(3) * 50, RNG: h.Rand})
}

// fail makes operations of one kind fail soon.
func (h *history) fail() {
	names := []string{"journal-*", "*.sst", "MANIFEST-*", "ledger", "*"}
	h.disk.fail(errDisk, names[h.IntN(len(names))], h.IntN(12), 1+h.IntN(3), all...)
}

// apply sends a random batch until it is answered, and sometimes once more.
func (h *history) apply() {
	var b recovery.Batch
	after := maps.Clone(h.model)
	for _, n := range h.Perm(30)[:1+h.IntN(3)] {
		id := fmt.Sprint("task-", n)
		was, there := h.model[id]
		now := modelled{data: fmt.Sprint(h.step, ".", strings.Repeat(" ", h.IntN(100)))}
		switch n := h.IntN(12); {
		case there && n < 4:
			delete(after, id)
		case there && n < 8:
			now.spot = was.spot
		case n < 10:
			now.spot = recovery.Spot{Place: recovery.Pending, At: int64(h.IntN(4))}
		default:
			now.spot = recovery.Spot{Place: recovery.Dead, At: int64(h.IntN(4)), Label: fmt.Sprint("label ", h.IntN(2))}
		}
		if now.spot != (recovery.Spot{}) {
			after[id] = now
		} else if now.data = ""; !there {
			continue
		}
		b.Add(recovery.Change{ID: []byte(id), From: was.spot, To: now.spot, Data: []byte(now.data)})
	}
	ctx, cancel := context.WithTimeout(h.Context(), 20*time.Second)
	defer cancel()
	for h.ledger.Apply(ctx, 0, &b) != nil {
		if ctx.Err() != nil {
			h.Fatalf("step %d: no answer", h.step)
		}
		runtime.Gosched()
		if h.IntN(500) == 0 { // nothing of the batch may be left without the rest
			h.compare(h.disk.mem.CrashClone(vfs.CrashCloneCfg{}), after)
		}
	}
	if h.model = after; h.IntN(10) == 0 {
		_ = h.ledger.Apply(ctx, 0, &b) // as if its answer had been lost
	}
}

// get looks all ids up at all times.
func (h *history) get() {
	var refs []recovery.Ref
	for id := range 30 {
		for at := range int64(4) {
			refs = append(refs, recovery.Ref{ID: fmt.Sprint("task-", id), Next: at})
		}
	}
	got := model{}
	if err := h.ledger.Get(h.Context(), 0, refs, func(_ int, e recovery.Entry) {
		if _, twice := got[string(e.ID)]; twice {
			h.Errorf("step %d: %s is there twice", h.step, e.ID)
		}
		got[string(e.ID)] = modelled{e.Spot, string(e.Data)}
	}); err != nil {
		return
	}
	want := maps.Clone(h.model)
	maps.DeleteFunc(want, func(_ string, m modelled) bool { return m.spot.Place != recovery.Pending })
	if !maps.Equal(got, want) {
		h.Fatalf("step %d: Get: %s", h.step, difference(got, want))
	}
}

// compare opens what is left on a disk. It must be the model, or one of others.
func (h *history) compare(fs vfs.FS, others ...model) {
	h.Helper()
	l, err := Open("/ledger", Options{fs: fs, MinFree: -1, Log: quiet(), extent: h.extent})
	if err != nil {
		h.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Adopt(h.Context()); err != nil {
		h.Fatalf("step %d: Adopt: %v", h.step, err)
	}
	got := model{}
	add := func(e recovery.Entry) {
		if _, twice := got[string(e.ID)]; twice {
			h.Errorf("step %d: %s is there twice", h.step, e.ID)
		}
		got[string(e.ID)] = modelled{e.Spot, string(e.Data)}
	}
	if err := l.Scan(h.Context(), func(page []recovery.Entry) error {
		for _, e := range page {
			add(e)
		}
		return nil
	}); err != nil {
		h.Fatal(err)
	}
	if err := l.ListDead(h.Context(), "", recovery.Ref{}, func(e recovery.Entry) bool { add(e); return true }); err != nil {
		h.Fatal(err)
	}
	for _, want := range append(others, h.model) {
		if maps.Equal(got, want) {
			return
		}
	}
	h.Fatalf("step %d: %s", h.step, difference(got, h.model))
}

// difference lists what one model has and the other has not.
func difference(got, want model) (lines string) {
	for _, id := range slices.Sorted(maps.Keys(got)) {
		if w, ok := want[id]; !ok || w != got[id] {
			lines += fmt.Sprintf("\n%s: %v, want %v", id, got[id], w)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if _, ok := got[id]; !ok {
			lines += fmt.Sprintf("\n%s is missing, want %v", id, want[id])
		}
	}
	return lines
}
