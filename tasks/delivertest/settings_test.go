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
	late    time.Duration // the most that settings were out of date when a delivery began by them
	count   map[string]int
	faults  []string
}

// A change is one of the topic's settings.
type change struct {
	kind   tasks.Kind
	paused bool
	made   time.Time // when it was answered
}

// A road is one of its ways.
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
		r.rig.began(r.kind, set.Change, time.Now())
		return r.rig.deliver(ctx, d)
	}), nil
}

func (c *changing) Ways() []tasks.Way { return []tasks.Way{road{c, "high"}, road{c, "low"}} }

func (c *changing) Settings() tasks.TopicSettings { return c.settings(0) }

func (c *changing) Cannot() map[Ability]string {
	return map[Ability]string{Bounded: "it is pulled at times"}
}

// Serve pulls whenever that is how the topic is delivered.
func (c *changing) Serve(ctx context.Context, s *tasks.Scheduler, topic string) error {
	c.loop.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			ds, err := s.Reserve(ctx, topic, 50, time.Second, 0)
			now := time.Now()
			if err != nil && !errors.Is(err, tasks.ErrHandled) {
				return
			}
			for i := range ds {
				c.began(tasks.Pull, -1, now)
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
	c.changes = append(c.changes, change{kind: set.Kind, paused: set.Paused})
	c.mu.Unlock()
	_, err := s.SetTopic(c.t.Context(), subject, set, -1)
	if err != nil {
		c.t.Errorf("change %d to %+v: %v", n, set, err)
	}
	c.mu.Lock()
	c.changes[n].made = time.Now()
	c.mu.Unlock()
}

// began judges a delivery that began by settings: those of a change, or, where it is -1,
// of whatever change to this kind was the last.
func (c *changing) began(kind tasks.Kind, by int, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[string(kind)]++
	if by < 0 {
		for by = len(c.changes) - 1; by > 0 && (c.changes[by].kind != kind || c.changes[by].paused); by-- {
		}
	}
	if by >= len(c.changes) || c.changes[by].kind != kind {
		c.faults = append(c.faults, fmt.Sprintf("a delivery by %s began by change %d, which is of another kind", kind, by))
		return
	}
	// One whose attempt is recorded first goes by what holds after that, and that may be
	// that the topic is paused: what let it begin was over then.
	over := by
	if !c.changes[by].paused {
		over++
	}
	if over < len(c.changes) && !c.changes[over].made.IsZero() {
		late := at.Sub(c.changes[over].made)
		c.late = max(c.late, late)
		if late > time.Second {
			c.faults = append(c.faults, fmt.Sprintf("a delivery by %s began %v after change %d had replaced its settings", kind, late, over))
		}
	}
}

// TestSettingsUnderLoad changes a topic's settings a thousand times while its tasks
// stream through: its way of delivery, concurrency, backoff, rate, and whether it is
// paused at all. None is lost, none is delivered twice without a reason, and none begins
// by settings that were replaced more than a second ago.
func TestSettingsUnderLoad(t *testing.T) {
	const changes, perChange = 1000, 20
	var rig *changing
	f := newFixture(t, func(t *testing.T, r *Receiver) Rig {
		rig = &changing{t: t, receiver: r, count: map[string]int{}}
		t.Cleanup(rig.loop.Wait)
		return rig
	})
	rig.changes = append(rig.changes, change{kind: "high"})
	f.start(func(set *tasks.TopicSettings) {
		set.Kind, set.Delivery, set.Paused, set.Rate = "high", []byte(`{"change":0}`), false, tasks.Rate{}
	})
	// The judge is told what holds for all that will be set.
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
		if n%400 == 0 { // long enough to see what goes on all the same
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
	rig.mu.Lock()
	defer rig.mu.Unlock()
	for _, fault := range rig.faults[:min(len(rig.faults), 10)] {
		t.Error(fault)
	}
	c := f.counts()
	t.Logf("%d changes, %d tasks, deliveries begun by way %v, %d failed; by settings replaced at most %v before", len(rig.changes)-1, scheduled, rig.count, c.Failed, rig.late)
	if c.Delivered != int64(scheduled) {
		t.Errorf("%d tasks were scheduled: %+v", scheduled, c)
	}
	for _, kind := range []string{"high", "low", string(tasks.Pull)} {
		if rig.count[kind] == 0 {
			t.Errorf("nothing was delivered by %s", kind)
		}
	}
}
