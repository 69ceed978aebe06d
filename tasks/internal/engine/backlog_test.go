package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// A slowHandler is a handler whose calls all take a second, and how many were made at once.
type slowHandler struct {
	running, total atomic.Int64
	most           rig.Peak
}

func (c *slowHandler) handler(context.Context, *Delivery) error {
	c.most.See(c.running.Add(1))
	time.Sleep(time.Second)
	c.running.Add(-1)
	c.total.Add(1)
	return nil
}

func many(r *rig.Rig, topic string, n int) {
	r.T.Helper()
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = Request{Topic: topic}
	}
	results, err := r.ScheduleBatch(r.T.Context(), requests)
	rig.Want(r.T, "ScheduleBatch", err, nil)
	for _, res := range results {
		rig.Want(r.T, "ScheduleBatch of "+res.ID, res.Err, nil)
	}
}

// During a backlog topics rise to sweep.max_concurrency, at once, except those with a
// concurrency of their own; and they fall again when half of the bound is left.
func TestBacklogRaises(t *testing.T) {
	cfg := Config{SweepBacklog: 200, SweepMaxConcurrency: 200, SweepEvery: 20 * time.Second,
		Topics: map[string]TopicSettings{"brought": {Concurrency: 64}, "other": {Lease: time.Hour}}}
	rig.Bubble(t, cfg, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("set", TopicSettings{Concurrency: 64})
		r.MustSetTopic("unset", TopicSettings{Lease: time.Minute})
		handlers := map[string]*slowHandler{}
		for _, name := range []string{"set", "brought", "unset", "other", "new"} {
			handlers[name] = &slowHandler{}
			r.MustHandle(name, handlers[name].handler)
			many(r, name, 64+15) // 15 of each wait
			// Those that are taken must be, or all together are a backlog for a moment.
			rig.Pass(time.Millisecond)
		}
		if s := r.Stats(); s.Backlog != 75 || s.Backlogs != 0 || s.Concurrency != 64 {
			t.Fatalf("backlog %d, %d of them, concurrency %d", s.Backlog, s.Backlogs, s.Concurrency)
		}
		many(r, "set", 70)
		many(r, "brought", 70)
		rig.Pass(time.Millisecond) // long before the next period
		for name, most := range map[string]int64{"set": 64, "brought": 64, "unset": 79, "other": 79, "new": 79} {
			topic, err := r.Topic(name)
			rig.Want(t, "Topic", err, nil)
			own := most == 64
			if now := topic.ConcurrencyNow; handlers[name].most.Load() != most || topic.ConcurrencySet != own || (now == 200) == own || topic.Settings.Concurrency != 64 {
				t.Errorf("%s: %d at once, want %d; %+v", name, handlers[name].most.Load(), most, topic)
			}
		}
		if s := r.Stats(); s.Backlogs != 1 || s.Concurrency != 200 || !r.Log.Has("backlog began") {
			t.Errorf("%d backlogs, concurrency %d", s.Backlogs, s.Concurrency)
		}
		r.CheckConsistency()
		many(r, "new", 300)
		rig.Pass(time.Millisecond)
		if n := handlers["new"].most.Load(); n != 200 {
			t.Errorf("%d at once; want 200", n)
		}
		rig.Pass(21 * time.Second)
		if s := r.Stats(); s.Concurrency != 64 || s.Backlogs != 1 || s.Backlog != 0 || s.Total.Delivered != 5*79+140+300 || !r.Log.Has("backlog ended") {
			t.Errorf("afterwards: %+v", s)
		}
		handlers["new"].most.Store(0)
		many(r, "new", 150)
		rig.Pass(time.Millisecond)
		if n := handlers["new"].most.Load(); n != 64 {
			t.Errorf("%d at once with %d waiting", n, r.Stats().Backlog)
		}
		rig.Pass(5 * time.Second)
		r.CheckConsistency()
	})
}

// An episode goes on until half of the bound is left, and its workers go home then.
func TestBacklogEndsAtHalf(t *testing.T) {
	rig.Bubble(t, Config{SweepBacklog: 1000, SweepMaxConcurrency: 100}, func(t *testing.T, r *rig.Rig) {
		var c slowHandler
		r.MustHandle("x", c.handler)
		many(r, "x", 1100)
		for second := range 8 {
			rig.Pass(time.Second)
			s := r.Stats()
			// Once in a period the sweep looks, with the deliveries of one second or two.
			if raised := s.Concurrency != 64; raised != (s.Backlog > 500) && raised != (s.Backlog+100 > 500) {
				t.Errorf("after %d s: %d wait, concurrency %d", second+1, s.Backlog, s.Concurrency)
			}
		}
		c.most.Store(0)
		rig.Pass(2 * time.Second)
		if n := c.most.Load(); n > 64 {
			t.Errorf("%d at once, after the backlog", n)
		}
		rig.Pass(time.Minute)
		if n := c.total.Load(); n != 1100 || r.Stats().Backlogs != 1 {
			t.Errorf("%d delivered, %d episodes", n, r.Stats().Backlogs)
		}
		r.CheckConsistency()
	})
}

// An episode lasts half a period at least, also if a sweep comes right after its beginning and
// finds everything delivered.
func TestBacklogOutlastsASweep(t *testing.T) {
	rig.Bubble(t, Config{SweepBacklog: 50, SweepEvery: 10 * time.Second}, func(t *testing.T, r *rig.Rig) {
		r.MustHandle("x", func(context.Context, *Delivery) error { time.Sleep(time.Millisecond); return nil })
		many(r, "x", 400)
		rig.Pass(time.Second)
		for _, want := range []bool{true, false} {
			r.Engine().SweepOnce(false)
			if s := r.Stats(); s.Backlog != 0 || s.Backlogs != 1 || (s.Concurrency != 64) != want {
				t.Errorf("after a sweep: %d of %d episodes wait, concurrency %d; want raised %v", s.Backlog, s.Backlogs, s.Concurrency, want)
			}
			rig.Pass(6 * time.Second)
		}
	})
}

// Tasks that wait for something else raise nothing: those of paused topics, and those
// that are pulled. They count as soon as that changes.
func TestWhatIsNoBacklog(t *testing.T) {
	rig.Bubble(t, Config{SweepBacklog: 50, SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		wants := func(what string, backlog int, backlogs int64) {
			t.Helper()
			synctest.Wait()
			if s := r.Stats(); s.Backlog != backlog || s.Backlogs != backlogs {
				t.Errorf("%s: %d, %d times; want %d, %d", what, s.Backlog, s.Backlogs, backlog, backlogs)
			}
			r.CheckConsistency()
		}
		var c slowHandler
		r.MustHandle("paused", c.handler)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "paused", true), nil)
		many(r, "paused", 400)
		many(r, "pulled", 400)
		wants("paused and pulled", 0, 0)
		r.MustHandle("pulled", c.handler)
		wants("handled", 0, 1) // all 400 are being delivered
		rig.Pass(2 * time.Minute)
		wants("gone", 0, 1)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "paused", false), nil)
		wants("resumed", 0, 2)
		many(r, "paused", 1000)
		wants("more than there are workers", 400+1000-1024, 2)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "paused", true), nil)
		wants("paused again", 0, 2)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "paused", false), nil)
		rig.Pass(5 * time.Minute)
		wants("gone", 0, 2)
	})
}

// MaxInFlight bounds what is raised, all topics and open deliveries together.
func TestBacklogObeysMaxInFlight(t *testing.T) {
	rig.Bubble(t, Config{SweepBacklog: 10, MaxInFlight: 300, SweepEvery: 100 * time.Millisecond}, func(t *testing.T, r *rig.Rig) {
		many(r, "pulled", 50)
		ds, err := r.Reserve(t.Context(), "pulled", 50, 0, time.Minute)
		if rig.Want(t, "Reserve", err, nil); len(ds) != 50 {
			t.Fatalf("%d reserved", len(ds))
		}
		var c slowHandler
		r.MustHandle("x", c.handler)
		r.MustHandle("y", c.handler)
		due := r.Clock.Now().Add(time.Second)
		for i := range 1000 {
			r.Must(Request{Topic: []string{"x", "y"}[i%2], Due: due})
		}
		rig.Pass(1500 * time.Millisecond)
		if n := c.most.Load(); n != 250 {
			t.Errorf("%d at once beside 50 open ones; want 250", n)
		}
		rig.Pass(time.Minute)
		if c.total.Load() != 1000 {
			t.Errorf("%d delivered", c.total.Load())
		}
		r.CheckConsistency()
	})
}

// What was set stays set, and what was not stays so: after a pause, a restart, and
// with what earlier versions have stored.
func TestOwnConcurrencyIsKept(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		own := func(what string, names ...string) {
			t.Helper()
			var got []string
			for _, topic := range r.Admin().Topics() {
				if topic.ConcurrencySet {
					got = append(got, topic.Name)
				}
			}
			if !slices.Equal(got, names) {
				t.Errorf("%s: %q have a concurrency of their own; want %q", what, got, names)
			}
		}
		r.MustSetTopic("set", TopicSettings{Concurrency: 64})
		r.MustSetTopic("unset", TopicSettings{Lease: time.Minute})
		own("set", "set")
		for _, name := range []string{"set", "unset"} {
			rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), name, true), nil)
		}
		own("paused", "set")
		r.Restart()
		own("restarted", "set")
		r.MustSetTopic("set", TopicSettings{})
		own("no longer set")
		r.MustSetTopic("set", TopicSettings{Concurrency: 7})
		rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(t.Context(), "set", -1), nil)
		own("deleted")

		// What is stored looks the same for ever.
		for name, file := range map[string]string{"old": "topic-before.json", "own": "topic-own.json", "default": "topic-default.json"} {
			value, err := os.ReadFile("testdata/" + file)
			rig.Want(t, file, err, nil)
			_, err = r.Mem.PutSetting(t.Context(), task.SettingPrefix+name, 0, value)
			rig.Want(t, "PutSetting", err, nil)
		}
		r.Restart()
		own("read", "old", "own")
		for _, name := range []string{"old", "own", "default"} {
			topic, err := r.Topic(name)
			rig.Want(t, "Topic", err, nil)
			// As it was stored before there was a MaxAge.
			retry := Retry{MaxAttempts: 20, MinBackoff: time.Second, MaxBackoff: 10 * time.Minute}
			if !reflect.DeepEqual(topic.Settings, TopicSettings{Kind: Pull, Lease: time.Minute, Concurrency: 64, Retry: retry, Weight: 1, Misfire: MisfireDeliver, DeadRetention: 7 * 24 * time.Hour}) {
				t.Errorf("%s: %+v", name, topic.Settings)
			}
		}
		r.MustSetTopic("a", TopicSettings{Lease: time.Minute, Concurrency: 64, Retry: Retry{MaxAttempts: 20}})
		r.MustSetTopic("b", TopicSettings{Lease: time.Minute, Retry: Retry{MaxAttempts: 20}})
		r.MustSetTopic("c", TopicSettings{Lease: time.Minute})
		for name, file := range map[string]string{"a": "topic-own.json", "b": "topic-default.json", "c": "topic-age.json"} {
			stored, _, err := r.Mem.Setting(t.Context(), task.SettingPrefix+name)
			rig.Want(t, "Setting", err, nil)
			if golden, err := os.ReadFile("testdata/" + file); err != nil || string(stored) != string(golden) {
				t.Errorf("%s is stored as\n%s\nnot as in %s\n%s", name, stored, file, golden)
			}
		}
	})
}

// A change of settings that is slower than the deletion after it brings nothing back.
func TestSlowSetTopicBesideDelete(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Lease: time.Minute})
		// Its answer is held up; another process of this name would do the same.
		slow := &answers{Settings: r.Mem, hold: make(chan struct{})}
		ledger := rig.Engine(r.Scheduler).Ledger
		rig.Engine(r.Scheduler).Ledger = struct {
			recovery.Ledger
			recovery.Settings
		}{ledger, slow}
		done := make(chan error)
		go func() {
			_, err := r.SetTopic(context.Background(), "x", TopicSettings{Lease: time.Hour}, -1)
			done <- err
		}()
		synctest.Wait()
		if err := r.Admin().DeleteTopic(t.Context(), "x", -1); err != nil && !errors.Is(err, ErrRevision) {
			t.Fatal(err)
		}
		rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(t.Context(), "x", -1), nil)
		close(slow.hold)
		rig.Want(t, "SetTopic", <-done, nil)
		if x, err := r.Topic("x"); err == nil && (x.Revision != 0 || x.Settings.Lease != 30*time.Second) {
			t.Errorf("deleted, it has %+v", x)
		}
		rig.Engine(r.Scheduler).Ledger = ledger
		for i := range 3 {
			r.MustSetTopic("x", TopicSettings{Concurrency: i + 1})
			if x, _ := r.Topic("x"); x.Settings.Concurrency != i+1 {
				t.Errorf("set anew, it has %+v", x)
			}
			rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(t.Context(), "x", -1), nil)
		}
	})
}

// answers holds the answer of the first write up.
type answers struct {
	recovery.Settings
	hold chan struct{}
	once atomic.Bool
}

func (a *answers) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error) {
	revision, err := a.Settings.PutSetting(context.WithoutCancel(ctx), name, ifRevision, value)
	if a.once.CompareAndSwap(false, true) {
		<-a.hold
	}
	return revision, err
}

// Handlers that leave deliveries to receipts obey MaxInFlight together, as soon as it is
// known that they do; and when a place is free, one that was kept waiting gets it.
func TestLeasedOutObeysMaxInFlight(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 10, SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		var ds rig.Collection[Delivery]
		var topics []string
		for i := range 5 {
			topics = append(topics, fmt.Sprint("t", i))
			r.MustSetTopic(topics[i], TopicSettings{Lease: time.Hour})
			r.MustHandle(topics[i], func(_ context.Context, d *Delivery) error {
				time.Sleep(100 * time.Millisecond)
				ds.Add(*d)
				return ErrLater
			})
			r.Must(Request{Topic: topics[i]}) // from now on it is known
		}
		rig.Pass(time.Second)
		for _, name := range topics {
			for range 20 {
				r.Must(Request{Topic: name})
			}
		}
		rig.Pass(time.Second)
		if n := len(ds.List()); n != 10 {
			t.Errorf("%d are open; want 10", n)
		}
		r.CheckConsistency()
		for done := 0; done < 105; done++ {
			if done >= len(ds.List()) {
				t.Fatalf("no delivery follows after %d", done)
			}
			r.Ack(ds.List()[done])
			rig.Pass(101 * time.Millisecond)
			if n := len(ds.List()) - done - 1; n > 10 {
				t.Fatalf("%d are open", n)
			}
		}
		r.CheckConsistency()
	})
}
