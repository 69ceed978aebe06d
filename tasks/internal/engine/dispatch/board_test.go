package dispatch

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A hall is a board with lines whose workers deliver as long as they have places.
type hall struct {
	*testing.T
	Board
	lines   []*Line
	workers []Action // that deliver now, in the order of their starts
}

func (h *hall) line(t Policy) *Line {
	l := &Line{Number: uint32(len(h.lines))}
	t.Delivered = true
	l.Serve(t, task.Rate{}, time.Now)
	h.lines = append(h.lines, l)
	return l
}

// ready queues n tasks of a line.
func (h *hall) ready(l *Line, n int) {
	for range n {
		l.Queue.Push(Item{})
		h.do(h.Wake(l))
	}
}

// do starts the workers. Each takes as many tasks as it has places.
func (h *hall) do(actions []Action) {
	for _, a := range actions {
		if a.Places <= 0 {
			h.Fatalf("an action without places: %+v", a)
		}
		h.workers = append(h.workers, a)
		h.begin(a)
	}
}

func (h *hall) begin(a Action) (begun int) {
	for ; begun < a.Places && a.Line.Queue.Live > 0; begun++ {
		a.Line.Queue.Pop()
		a.Line.Queue.Gone()
		a.Line.Busy++
	}
	return begun
}

// finish ends what a worker delivers, and begins the next.
func (h *hall) finish(i int) {
	a := h.workers[i]
	a.Line.Busy--
	kept, actions := h.CountPasses(a.Line, 1, a.Places)
	actions = append([]Action(nil), actions...)
	if kept == 0 || h.begin(a) == 0 {
		h.workers = append(h.workers[:i], h.workers[i+1:]...)
		h.do(actions)
		h.do(append([]Action(nil), h.EndWorker(a.Line, kept)...))
		return
	}
	h.do(actions)
}

func (h *hall) check() {
	h.Helper()
	places := 0
	for _, l := range h.lines {
		if h.Neglected(l) {
			h.Errorf("line %d is neglected: %d ready, %d workers", l.Number, l.Queue.Live, l.Workers)
		}
		if l.Workers > l.Policy.Concurrency {
			h.Errorf("line %d has %d workers, and a concurrency of %d", l.Number, l.Workers, l.Policy.Concurrency)
		}
		places += l.Workers
	}
	if places != h.Workers || h.Workers > h.MaxDeliveries {
		h.Fatalf("%d places are taken, %d are counted, and there are %d", places, h.Workers, h.MaxDeliveries)
	}
}

// Lines that want more places than there are share them by weight, in places if their deliveries
// hang, and in deliveries if there is a single place.
func TestSharesByWeight(t *testing.T) {
	t.Run("places", func(t *testing.T) {
		h := &hall{T: t, Board: Board{MaxDeliveries: 12, MaxInFlight: 100}}
		one, two := h.line(Policy{Concurrency: 100, Weight: 1}), h.line(Policy{Concurrency: 100, Weight: 2})
		h.ready(one, 1000)
		h.ready(two, 1000)
		if one.Workers != 12 || h.Contenders() == 0 {
			t.Errorf("the first line has %d places, %d lines contend", one.Workers, h.Contenders())
		}
		for range 24 {
			h.finish(0)
			h.check()
		}
		if one.Workers != 4 || two.Workers != 8 {
			t.Errorf("the lines have %d and %d places, want 4 and 8", one.Workers, two.Workers)
		}
	})
	t.Run("deliveries", func(t *testing.T) {
		h := &hall{T: t, Board: Board{MaxDeliveries: 1, MaxInFlight: 100}}
		one, three := h.line(Policy{Concurrency: 9, Weight: 1}), h.line(Policy{Concurrency: 9, Weight: 3})
		h.ready(one, 1000)
		h.ready(three, 1000)
		for range 400 {
			h.finish(0)
			h.check()
		}
		if n := 1000 - three.Queue.Live; n < 295 || n > 305 {
			t.Errorf("%d of 400 deliveries are of the line with three quarters of the weight", n)
		}
	})
}

// However tasks come and deliveries end, no line with ready tasks is left without a worker that it
// may have, and all places are free in the end.
func TestNoLineIsNeglected(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	h := &hall{T: t, Board: Board{MaxDeliveries: 7, MaxInFlight: 1000, MaxConcurrency: 20}}
	for range 5 {
		h.line(Policy{Concurrency: 1 + rng.IntN(6), Weight: 1 + rng.IntN(3)})
	}
	for range 20_000 {
		if rng.IntN(3) == 0 || len(h.workers) == 0 {
			h.ready(h.lines[rng.IntN(len(h.lines))], 1+rng.IntN(3))
		} else {
			h.finish(rng.IntN(len(h.workers)))
		}
		h.check()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for len(h.workers) > 0 {
		h.finish(0)
	}
	h.check()
	if h.Workers != 0 || h.Contenders() != 0 {
		t.Errorf("seed %d: %d places are taken, %d lines contend in the end", seed, h.Workers, h.Contenders())
	}
}

// A line that MaxInFlight keeps waiting goes on when there is room again. Nothing begins while the
// board is paused.
func TestHeldLinesGoOn(t *testing.T) {
	h := &hall{T: t, Board: Board{MaxDeliveries: 10, MaxInFlight: 2}}
	l := h.line(Policy{Concurrency: 10, Weight: 1})
	l.AsyncSettle = true
	h.LeasedOut = 2
	h.ready(l, 3)
	if l.Workers != 0 || h.Neglected(l) {
		t.Errorf("%d workers without room", l.Workers)
	}
	h.Paused = true
	if a := h.Free(1, 0); len(a) != 0 {
		t.Errorf("a paused board starts %+v", a)
	}
	h.Paused = false
	if a := h.Wake(l); len(a) == 0 || a[0].Line != l {
		t.Errorf("with room and unpaused: %+v", a)
	}
}

// A line without a token rests until it has one, and is woken once.
func TestRest(t *testing.T) {
	h := &hall{T: t, Board: Board{MaxDeliveries: 10, MaxInFlight: 10}}
	l := h.line(Policy{Concurrency: 10, Weight: 1})
	now := time.Unix(0, 0)
	l.Serve(l.Policy, task.Rate{PerSecond: 0.001, Burst: 1}, func() time.Time { return now })
	l.Spend(1)
	l.Queue.Push(Item{})
	a := h.Wake(l)
	if len(a) != 1 || a[0].Rest.Round(time.Second) != 1000*time.Second || a[0].Places != 0 || h.Neglected(l) {
		t.Fatalf("without a token: %+v", a)
	}
	rest := a[0].Rest
	if again := h.Wake(l); len(again) != 0 {
		t.Errorf("while it rests: %+v", again)
	}
	now = now.Add(rest)
	if a := h.Rested(l); len(a) != 1 || a[0].Places != 1 {
		t.Errorf("after its rest: %+v", a)
	}
	l.Queue.Push(Item{})
	l.Serve(l.Policy, task.Rate{}, time.Now)
	if a := h.Wake(l); len(a) != 1 || a[0].Places != 1 {
		t.Errorf("without a rate: %+v", a)
	}
}

// The caller serves a receiver of another node whose turn it is; the board only says so.
func TestReceiverOfAnotherNode(t *testing.T) {
	b := Board{MaxInFlight: 10}
	l := &Line{Policy: Policy{Pulled: true}}
	served := 0
	l.Reservers.Join(&Turn{Serve: func() { served++ }})
	l.Queue.Push(Item{})
	a := b.Wake(l)
	if len(a) != 1 || a[0].Line != l || a[0].Serve == nil || served != 0 {
		t.Fatalf("a ready task: %+v, served %d times", a, served)
	}
	l.Reservers.Join(&Turn{})
	l.Reservers.Join(&Turn{Serve: func() { served++ }})
	if a := b.WakeReceivers(l); len(a) != 1 || a[0].Serve == nil || l.Reservers.Queue.Len() != 0 {
		t.Errorf("nothing for receivers any more: %+v, %d sleep", a, l.Reservers.Queue.Len())
	}
}

// A task that is ready without a call of Wake is neglected where a receiver waits for it.
func TestNeglectedReceivers(t *testing.T) {
	b := Board{MaxInFlight: 1}
	l := &Line{Policy: Policy{Pulled: true}}
	l.Queue.Push(Item{})
	if b.Neglected(l) {
		t.Error("nobody waits for it")
	}
	l.Reservers.Join(&Turn{})
	if !b.Neglected(l) {
		t.Error("a receiver waits, and was not woken")
	}
	b.LeasedOut = 1
	if b.Neglected(l) {
		t.Error("there is no room for its delivery")
	}
	b.LeasedOut = 0
	b.Wake(l)
	if b.Neglected(l) {
		t.Error("the receiver was woken")
	}
}

// In a backlog a line may have more workers than its concurrency, as long as there is room for
// what they deliver.
func TestSurplusInABacklog(t *testing.T) {
	b := Board{MaxInFlight: 4, MaxConcurrency: 3, Raised: true, Workers: 3}
	l := &Line{Policy: Policy{Delivered: true, Concurrency: 2}, Workers: 3}
	for leased, want := range []bool{false, false, true} {
		if b.LeasedOut = leased; b.Surplus(l) != want {
			t.Errorf("with %d leased out: %v", leased, !want)
		}
	}
	if b.LeasedOut, b.Raised = 0, false; !b.Surplus(l) {
		t.Error("the backlog is over")
	}
}
