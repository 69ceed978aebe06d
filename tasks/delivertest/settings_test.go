package delivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A changing rig has two ways of delivery, and a receiver that pulls. Each deliverer
// knows which change of the settings it was made of.
type changing struct {
	t        *testing.T
	receiver *Receiver
	loop     sync.WaitGroup

	mu      sync.Mutex // guards the rest
	changes []change
	begun   []begun
}

// A begun delivery knows by which change it was made.
type begun struct {
	id      string
	attempt int
	kind    tasks.Kind
	by      int // -1: pulled
}

// A change is one of the topic's settings.
type change struct {
	kind   tasks.Kind
	paused bool
	// The change was made between these two instants, by the clock of the deliveries' starts; zero:
	// it was made before everything else, or not yet.
	asked, made time.Time
}

// A road is one of the two ways.
type road struct {
	rig  *changing
	kind tasks.Kind
}

func (r road) Kind() tasks.Kind { return r.kind }

func (r road) Deliverer(_ string, settings json.RawMessage) (tasks.Deliverer, error) {
	var set struct{ Change int }
	if err := json.Unmarshal(settings, &set); err != nil {
		return nil, err
	}
	return tasks.HandlerFunc(func(ctx context.Context, d *tasks.Delivery) error {
		r.rig.begin(begun{d.ID, d.Attempt, r.kind, set.Change})
		return r.rig.deliver(ctx, d)
	}), nil
}

func (c *changing) Ways() []tasks.Way { return []tasks.Way{road{c, "high"}, road{c, "low"}} }

func (c *changing) Settings() tasks.TopicSettings { return c.settings(0) }

func (c *changing) Cannot() map[Ability]string {
	return map[Ability]string{Bounded: "it is pulled at times"}
}

// Serve pulls while the topic is delivered that way.
func (c *changing) Serve(ctx context.Context, s *tasks.Scheduler, topic string) error {
	c.loop.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			ds, err := s.Reserve(ctx, topic, 50, time.Second, 0)
			if err != nil && !errors.Is(err, tasks.ErrHandled) {
				return
			}
			for i := range ds {
				c.begin(begun{ds[i].ID, ds[i].Attempt, tasks.Pull, -1})
				v := tasks.Verdict{Verb: tasks.Ack}
				if err := c.deliver(ctx, &ds[i]); err != nil {
					v = tasks.Verdict{Verb: tasks.Release, Reason: err.Error()}
				}
				_, _ = s.Settle(ctx, v, []string{ds[i].Receipt()})
			}
			<-tick.C
		}
	})
	return nil
}

func (c *changing) deliver(ctx context.Context, d *tasks.Delivery) error {
	answer := c.receiver.Receive(ctx, Arrival{ID: d.ID, Attempt: d.Attempt, Payload: d.Payload, Headers: d.Headers, Receipt: d.Receipt()})
	if answer.Say != Accept {
		return errors.New(answer.Why)
	}
	return nil
}

// settings are those of the n-th change, at random.
func (c *changing) settings(n int) tasks.TopicSettings {
	set := tasks.TopicSettings{
		Retry: tasks.Retry{
			MinBackoff: time.Duration(1+rand.N(5)) * time.Millisecond, MaxBackoff: time.Duration(5+rand.N(50)) * time.Millisecond,
			MaxAttempts: 50 + rand.N(50),
		},
		Lease: time.Minute + rand.N(time.Hour), Concurrency: 1 + rand.N(128), Weight: 1 + rand.N(10),
		CountCrashes: rand.N(4) == 0, Paused: rand.N(10) == 0,
	}
	if set.Kind = []tasks.Kind{"high", "low", tasks.Pull}[rand.N(3)]; set.Kind != tasks.Pull {
		set.Delivery = fmt.Appendf(nil, `{"change":%d}`, n)
	}
	if rand.N(10) == 0 {
		set.Rate = tasks.Rate{PerSecond: 1000 + 100_000*rand.Float64()}
	}
	return set
}

// change makes the n-th change.
func (c *changing) change(s *tasks.Scheduler, n int, set tasks.TopicSettings) {
	c.mu.Lock()
	c.changes = append(c.changes, change{kind: set.Kind, paused: set.Paused, asked: time.Now()})
	c.mu.Unlock()
	_, err := s.SetTopic(c.t.Context(), subject, set, -1)
	if err != nil {
		c.t.Errorf("change %d to %+v: %v", n, set, err)
	}
	c.mu.Lock()
	c.changes[n].made = time.Now()
	c.mu.Unlock()
}

func (c *changing) begin(b begun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = append(c.begun, b)
}

// judge finds deliveries that began by replaced settings, and returns the longest time since the
// replacement, and how many of each kind there were.
func (c *changing) judge(h *history) (late time.Duration, stale int, count map[tasks.Kind]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	count = map[tasks.Kind]int{}
	for _, b := range c.begun {
		count[b.kind]++
		var at time.Time
		for _, e := range h.story(b.id).events {
			if e.Kind == tasks.EventStarted && e.Attempt == b.attempt {
				at = e.At
			}
		}
		by := b.by
		if by < 0 { // by whatever change to this kind was the last
			for by = len(c.changes) - 1; by > 0 && (c.changes[by].asked.After(at) || c.changes[by].kind != b.kind || c.changes[by].paused); by-- {
			}
		}
		if c.changes[by].kind != b.kind || c.changes[by].asked.After(at) {
			c.t.Errorf("%s began by %s, by change %d, which is of another kind or was not made yet", b.id, b.kind, by)
			continue
		}
		// An attempt that is recorded first goes by the settings after that. They may say that the
		// topic is paused; those that let it begin were over then.
		over := by
		if !c.changes[by].paused {
			over++
		}
		if over == len(c.changes) {
			continue
		}
		if d := at.Sub(c.changes[over].made); d > 0 {
			stale, late = stale+1, max(late, d)
			if d > time.Second {
				c.t.Errorf("%s began by %s %v after change %d had replaced its settings", b.id, b.kind, d, over)
			}
		}
	}
	return late, stale, count
}

func newChanging(t *testing.T) (*fixture, *changing) {
	var rig *changing
	f := newFixture(t, func(t *testing.T, r *Receiver) Rig {
		rig = &changing{t: t, receiver: r}
		t.Cleanup(rig.loop.Wait)
		return rig
	})
	rig.changes = append(rig.changes, change{kind: "high"})
	return f, rig
}

// TestSettingsReachTheBusy changes the way of a topic that always has more to deliver than it can:
// a running delivery goes by the old settings to its end, and the next one does not.
func TestSettingsReachTheBusy(t *testing.T) {
	const places, changes = 4, 20
	f, rig := newChanging(t)
	set := func(n int) tasks.TopicSettings {
		return tasks.TopicSettings{Kind: []tasks.Kind{"high", "low"}[n%2], Delivery: fmt.Appendf(nil, `{"change":%d}`, n), Concurrency: places}
	}
	f.start(func(first *tasks.TopicSettings) { *first = set(0) })
	beat := make(chan struct{})
	f.receiver.say(Answer{Say: Accept, after: beat})
	f.schedule(0, "busy", places*changes*4)
	deliver := func() { // so many, one after the other
		for range places {
			beat <- struct{}{}
		}
	}
	for n := 1; n < changes; n++ {
		f.wait("all places are taken", func() bool { return f.receiver.underWay() == places })
		rig.change(f.s, n, set(n))
		deliver()
		deliver()
	}
	close(beat)
	f.finish()
	if late, stale, _ := rig.judge(f.history); stale > 0 {
		t.Errorf("%d deliveries began by settings that had been replaced, up to %v before", stale, late)
	}
}

// TestSettingsUnderLoad changes a topic's settings a thousand times while its tasks
// stream through: its way of delivery, concurrency, backoff, rate, and whether it is
// paused at all. None is lost, none is delivered twice without a reason, and none begins
// by settings that were replaced more than a second ago.
func TestSettingsUnderLoad(t *testing.T) {
	t.Parallel()
	const changes, perChange = 1000, 20
	f, rig := newChanging(t)
	f.start(func(set *tasks.TopicSettings) {
		set.Kind, set.Delivery, set.Paused, set.Rate = "high", []byte(`{"change":0}`), false, tasks.Rate{}
	})
	// The judge knows the bounds of all settings to come.
	f.settings.Retry = tasks.Retry{MinBackoff: time.Millisecond, MaxAttempts: 100}
	f.settings.Lease = time.Minute
	f.fault(Flaky)

	var load sync.WaitGroup
	stop := make(chan struct{})
	scheduled := 0
	load.Go(func() { // always enough of them to be delivered at full speed
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				if c := f.counts(); c.Pending+c.Ready > 5000 {
					continue
				}
				f.schedule(time.Duration(rand.N(100))*time.Millisecond, fmt.Sprint("load-", n), perChange)
				scheduled += perChange
			}
		}
	})
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for n := 1; n <= changes; n++ {
		set := rig.settings(n)
		if n%400 == 0 { // long enough to see deliveries that go on all the same
			set.Paused = true
		}
		if n == changes {
			set.Paused = false
		}
		rig.change(f.s, n, set)
		<-tick.C
		if n%400 == 0 {
			f.quiet(1300 * time.Millisecond)
		}
	}
	close(stop)
	load.Wait()
	f.finish()
	late, stale, count := rig.judge(f.history)
	c := f.counts()
	t.Logf("%d changes, %d tasks, deliveries begun by way %v, %d failed; %d began by settings that were replaced, at most %v before", len(rig.changes)-1, scheduled, count, c.Failed, stale, late)
	if c.Delivered != int64(scheduled) {
		t.Errorf("%d tasks were scheduled: %+v", scheduled, c)
	}
	for _, kind := range []tasks.Kind{"high", "low", tasks.Pull} {
		if count[kind] == 0 {
			t.Errorf("nothing was delivered by %s", kind)
		}
	}
}
