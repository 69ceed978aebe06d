package wheel

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is a naive Wheel: a list that is searched.
type model struct {
	tick    int64
	now     int64
	pending []modelEntry // in the order of Add
}

type modelEntry struct {
	timer   Timer
	due     int64 // rounded up
	value   uint64
	overdue bool // when it was added, or at a later setting back of the clock
}

func floorTo(tick, ms int64) int64 {
	r := ms % tick
	if r < 0 {
		r += tick
	}
	return ms - r
}

func ceilTo(tick, ms int64) int64 { return -floorTo(tick, -ms) }

func (m *model) add(t Timer, due int64, value uint64) {
	due = ceilTo(m.tick, due)
	m.pending = append(m.pending, modelEntry{t, due, value, due < m.now})
}

func (m *model) cancel(t Timer) (uint64, bool) {
	for i, e := range m.pending {
		if e.timer == t {
			m.pending = slices.Delete(m.pending, i, i+1)
			return e.value, true
		}
	}
	return 0, false
}

func (m *model) rewind(now int64) {
	if now = floorTo(m.tick, now); now < m.now {
		m.now = now
		for i := range m.pending {
			m.pending[i].overdue = m.pending[i].due < now
		}
	}
}

// advance removes and returns what is due, in any order. What takeSome has left comes first.
func (m *model) advance(now int64) (due map[uint64]modelEntry) {
	m.rewind(now)
	due = make(map[uint64]modelEntry)
	m.pending = slices.DeleteFunc(m.pending, func(e modelEntry) bool {
		e.overdue = e.overdue || e.due <= m.now
		if e.due <= now {
			due[e.value] = e
		}
		return e.due <= now
	})
	m.now = floorTo(m.tick, now)
	return due
}

// rank orders entries as Advance emits them.
func (e modelEntry) rank() int64 {
	if e.overdue {
		return math.MinInt64
	}
	return e.due
}

// pair is a Wheel and its model, to which the same things are done.
type pair struct {
	t      interface{ Fatalf(string, ...any) }
	wheel  *Wheel
	model  model
	timers []Timer // every one ever made
	count  uint64

	givesWay bool // see inBatchesOf
}

func newPair(t interface{ Fatalf(string, ...any) }, tick, now int64) *pair {
	return &pair{t: t, wheel: New(tick, now), model: model{tick: tick, now: floorTo(tick, now)}}
}

func (p *pair) add(due int64) {
	p.count++
	timer := p.wheel.Add(due, p.count)
	if timer == 0 || slices.Contains(p.timers, timer) {
		p.t.Fatalf("Add returned %#x, which is zero or was there before", timer)
	}
	p.timers = append(p.timers, timer)
	p.model.add(timer, due, p.count)
}

func (p *pair) cancel(t Timer) {
	value, ok := p.wheel.Cancel(t)
	wantValue, want := p.model.cancel(t)
	if ok != want || value != wantValue {
		p.t.Fatalf("Cancel(%#x) = %d, %v; want %d, %v", t, value, ok, wantValue, want)
	}
}

func (p *pair) advance(now int64) {
	var got []uint64
	n := p.wheel.Advance(now, func(values []uint64) { got = append(got, values...) })
	want := p.model.advance(now)
	if n != len(got) || n != len(want) {
		p.t.Fatalf("Advance(%d) = %d, emitted %v; want %v", now, n, got, want)
	}
	last := int64(math.MinInt64)
	for _, v := range got {
		e, ok := want[v]
		if !ok || e.rank() < last && !p.givesWay {
			p.t.Fatalf("Advance(%d) emitted %v; want each once and earlier ones first: %v", now, got, want)
		}
		delete(want, v)
		last = e.rank()
	}
}

func (p *pair) rewind(now int64) {
	p.wheel.SetBack(now)
	p.model.rewind(now)
}

// takeSome is Advance left off in the middle: the rest of the bucket is still
// being cascaded, or emitted, when the next operation comes.
func (p *pair) takeSome(now int64, limit int) {
	buf := make([]uint64, limit)
	n, _ := p.wheel.take(now, buf)
	p.model.rewind(now)
	for _, v := range buf[:n] {
		i := slices.IndexFunc(p.model.pending, func(e modelEntry) bool { return e.value == v })
		if i < 0 || p.model.pending[i].due > now {
			p.t.Fatalf("take(%d) emitted %d, which is not due", now, v)
		}
		p.model.pending = slices.Delete(p.model.pending, i, i+1)
	}
	p.model.now = floorTo(p.model.tick, p.wheel.present())
}

// inBatchesOf has the wheel emit in batches that are so small that buckets give way. What is later
// may then come before the rest of what is earlier.
func (p *pair) inBatchesOf(n int) {
	p.wheel.batch = make([]uint64, n)
	p.givesWay = true
}

func (p *pair) check() {
	if p.wheel.Len() != len(p.model.pending) {
		p.t.Fatalf("Len() = %d, want %d", p.wheel.Len(), len(p.model.pending))
	}
	at, ok := p.wheel.Next()
	if ok != (len(p.model.pending) > 0) {
		p.t.Fatalf("Next() = %d, %v with %d pending", at, ok, len(p.model.pending))
	}
	for _, e := range p.model.pending {
		if e.due < p.model.now {
			e.due = p.model.now // it is for the next Advance
		}
		if at > e.due {
			p.t.Fatalf("Next() = %d, but %d is due at %d", at, e.value, e.due)
		}
	}
}

// distance is a span of time between a tick and centuries, each order of
// magnitude as likely as the next.
func distance(t *rapid.T, label string) int64 {
	size := rapid.IntRange(0, 43).Draw(t, label+" bits")
	return rapid.Int64Range(0, 1<<size).Draw(t, label)
}

func TestWheelAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tick := rapid.SampledFrom([]int64{1, 1, 7, 10, 1000}).Draw(t, "tick")
		now := rapid.SampledFrom([]int64{0, -5000, 1_795_000_000_123, 1<<42 - 3}).Draw(t, "now")
		p := newPair(t, tick, now)
		if batch := rapid.IntRange(0, 6).Draw(t, "batch"); batch > 0 {
			p.inBatchesOf(batch)
		}
		t.Repeat(map[string]func(*rapid.T){
			"add":      func(t *rapid.T) { p.add(now + distance(t, "delay")) },
			"add near": func(t *rapid.T) { p.add(now + rapid.Int64Range(-70, 300).Draw(t, "delay")) },
			"add past": func(t *rapid.T) { p.add(now - distance(t, "age")) },
			"cancel": func(t *rapid.T) {
				if len(p.timers) == 0 {
					t.Skip()
				}
				p.cancel(rapid.SampledFrom(p.timers).Draw(t, "timer"))
			},
			"cancel any": func(t *rapid.T) { p.cancel(Timer(rapid.Uint64Range(0, 1<<34).Draw(t, "timer"))) },
			"advance":    func(t *rapid.T) { now += distance(t, "forward"); p.advance(now) },
			"advance to next": func(t *rapid.T) {
				if at, ok := p.wheel.Next(); ok && at > now {
					now = at
				}
				p.advance(now)
			},
			"set back":        func(t *rapid.T) { now -= distance(t, "back"); p.advance(now) },
			"set back before": func(t *rapid.T) { now -= distance(t, "back"); p.rewind(now) },
			"take some": func(t *rapid.T) {
				now += distance(t, "forward")
				p.takeSome(now, rapid.IntRange(1, 5).Draw(t, "limit"))
			},
			"": func(*rapid.T) { p.check() },
		})
	})
}
