package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A crate is a way of delivery that takes batches, for a second each, and notes them.
type crate struct {
	fate func(ds []*tasks.Delivery) []error // nil: all are acknowledged

	mu      sync.Mutex
	batches []string // ids, in their order
	now     int
	most    int // deliveries at once
}

func (c *crate) Kind() tasks.Kind { return "crate" }

func (c *crate) Deliverer(string, json.RawMessage) (tasks.Deliverer, error) { return c, nil }

func (c *crate) Deliver(ctx context.Context, d *tasks.Delivery) error {
	return errors.New("one by one, though it takes batches")
}

func (c *crate) DeliverBatch(_ context.Context, ds []*tasks.Delivery) []error {
	ids := make([]string, len(ds))
	for i, d := range ds {
		ids[i] = d.ID
	}
	c.mu.Lock()
	c.batches = append(c.batches, strings.Join(ids, " "))
	c.now += len(ds)
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now -= len(ds)
	}()
	time.Sleep(time.Second)
	if c.fate != nil {
		return c.fate(ds)
	}
	return make([]error, len(ds))
}

// taken returns the batches since the last call, and how many deliveries there were at
// once.
func (c *crate) taken() (batches []string, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	batches, most = c.batches, c.most
	c.batches, c.most = nil, c.now
	return batches, most
}

func crates() tasks.TopicSettings { return tasks.TopicSettings{Kind: "crate"} }

// Whatever has become ready meanwhile goes together, and a lone task does not wait.
func TestBatchesFormByThemselves(t *testing.T) {
	c := &crate{}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c}}, func(t *testing.T, r *rig.Rig) {
		set := crates()
		set.Concurrency = 2 // one at a time and by each of two goroutines
		r.MustSetTopic("x", crates())
		r.MustSetTopic("small", set)
		r.Must(tasks.Request{ID: "a", Topic: "x"})
		rig.Pass(500 * time.Millisecond)
		for _, id := range []string{"b", "c", "d"} {
			r.Must(tasks.Request{ID: id, Topic: "x"})
		}
		rig.Pass(3 * time.Second)
		if got, _ := c.taken(); fmt.Sprint(got) != "[a b c d]" || len(got) != 2 {
			t.Errorf("batches %q", got)
		}
		for i := range 4 {
			r.Must(tasks.Request{ID: fmt.Sprint("s", i), Topic: "small"})
		}
		rig.Pass(5 * time.Second)
		if got, most := c.taken(); len(got) != 4 || most != 2 {
			t.Errorf("%d at once, batches %q", most, got)
		}
		r.CheckConsistency()
	})
}

// The bound of deliveries at once counts tasks and not batches, whatever it is set to
// while they are under way; and so when another way takes over, and back again.
func TestBatchesKeepToConcurrency(t *testing.T) {
	t.Parallel()
	c, p := &crate{}, &rig.Postal{}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c, p}}, func(t *testing.T, r *rig.Rig) {
		set := crates()
		set.Concurrency = 64
		r.MustSetTopic("x", set)
		for range 3000 {
			r.Must(tasks.Request{Topic: "x"})
		}
		for _, limit := range []int{64, 7, 1, 65, 600} {
			set.Concurrency = limit
			r.MustSetTopic("x", set)
			rig.Pass(1500 * time.Millisecond) // those under the old limit end
			c.taken()
			rig.Pass(2 * time.Second)
			if got, most := c.taken(); most != limit || limit > 3 && len(got) > 3*limit {
				t.Errorf("up to %d at once with a concurrency of %d, in %d batches", most, limit, len(got))
			}
		}
		other := to("rome")
		other.Concurrency = 5
		r.MustSetTopic("x", other)
		rig.Pass(3500 * time.Millisecond)
		if sent := strings.Count(p.Text(), ","); sent < 9 || sent > 15 {
			t.Errorf("%d delivered singly in 3 s, 5 at once", sent+1)
		}
		set.Concurrency = 50
		r.MustSetTopic("x", set)
		c.taken()
		rig.Pass(time.Hour)
		if _, most := c.taken(); most > 50 {
			t.Errorf("up to %d at once with a concurrency of 50", most)
		}
		if n := r.Counts("x"); n.Delivered != 3000 || n.Failed != 0 {
			t.Errorf("%+v", n)
		}
		r.CheckConsistency()
	})
}

// Each delivery of a batch has its own outcome.
func TestBatchOutcomesAreApart(t *testing.T) {
	c := &crate{}
	c.fate = func(ds []*tasks.Delivery) []error {
		errs := make([]error, len(ds))
		for i, d := range ds {
			switch d.ID {
			case "fails":
				if d.Attempt == 1 {
					errs[i] = errors.New("no luck")
				}
			case "dies":
				errs[i] = tasks.Kill(errors.New("never"))
			case "waits":
				errs[i] = tasks.RetryAfter(errors.New("not now"), time.Hour)
			case "later", "later2":
				errs[i] = tasks.ErrLater
			}
		}
		return errs
	}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c}, MaxInFlight: 100}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Kind: "crate", Lease: time.Minute, Retry: tasks.Retry{MinBackoff: 10 * time.Second, MaxBackoff: 10 * time.Second}})
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", true), nil)
		for _, id := range []string{"done", "fails", "later", "dies", "waits", "later2"} {
			r.Must(tasks.Request{ID: id, Topic: "x"})
		}
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", false), nil)
		rig.Pass(2 * time.Second)
		r.CheckConsistency()
		if got, _ := c.taken(); len(got) != 1 {
			t.Fatalf("batches %q", got)
		}
		_, err := r.Get(t.Context(), "done")
		rig.Want(t, "Get of the acknowledged one", err, tasks.ErrNotFound)
		for id, state := range map[string]tasks.State{"fails": tasks.Pending, "dies": tasks.Dead, "waits": tasks.Pending, "later": tasks.Delivering, "later2": tasks.Delivering} {
			if task := r.MustGet(id); task.State != state || task.Attempt != 1 {
				t.Errorf("%s is %v after %d attempts, want %v", id, task.State, task.Attempt, state)
			}
		}
		rig.Pass(30 * time.Second)
		_, err = r.Get(t.Context(), "fails")
		rig.Want(t, "Get of the one that failed once", err, tasks.ErrNotFound)
		rig.Pass(40 * time.Second) // the leases of those that are left to receipts end
		if n := r.Counts("x"); n.LeaseExpired != 2 {
			t.Errorf("%d leases ran out, want 2", n.LeaseExpired)
		}
		r.CheckConsistency()
	})
}

// A batch fails as a whole when its deliverer panics, ends its goroutine, or does not
// say what has become of each.
func TestBatchFaults(t *testing.T) {
	for name, fault := range map[string]func(ds []*tasks.Delivery) []error{
		"panic":    func([]*tasks.Delivery) []error { panic("oh dear") },
		"Goexit":   func([]*tasks.Delivery) []error { runtime.Goexit(); return nil },
		"too few":  func(ds []*tasks.Delivery) []error { return make([]error, len(ds)-1) },
		"too many": func(ds []*tasks.Delivery) []error { return make([]error, len(ds)+1) },
		"none":     func([]*tasks.Delivery) []error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := &crate{fate: fault}
			rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c}}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", tasks.TopicSettings{Kind: "crate", Retry: tasks.Retry{MaxAttempts: 3}})
				for i := range 40 {
					r.Must(tasks.Request{ID: fmt.Sprint("t", i), Topic: "x"})
				}
				rig.Pass(time.Minute)
				for i := range 40 {
					if task := r.MustGet(fmt.Sprint("t", i)); task.State != tasks.Dead || task.Attempt != 3 || task.LastError == "" {
						t.Fatalf("%v after %d attempts: %q", task.State, task.Attempt, task.LastError)
					}
				}
				if n := r.Counts("x"); n.Failed != 120 || n.Died != 40 || name != "Goexit" && n.Panicked != 120 {
					t.Errorf("%+v", n)
				}
				r.CheckConsistency()
			})
		})
	}
}

// A batch that outlives its leases settles nothing, and its tasks come again.
func TestBatchOutlivesItsLease(t *testing.T) {
	c := &crate{}
	var slow bool
	c.fate = func(ds []*tasks.Delivery) []error {
		if !slow {
			slow = true
			time.Sleep(10 * time.Second)
		}
		return make([]error, len(ds))
	}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c}}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Kind: "crate", Lease: 3 * time.Second})
		r.Must(tasks.Request{ID: "a", Topic: "x"})
		rig.Pass(8 * time.Second)
		if task := r.MustGet("a"); task.Attempt != 1 || task.LastError != "the lease ran out" {
			t.Errorf("%+v", task)
		}
		rig.Pass(time.Minute)
		wantGone(r, "a")
		if n := r.Counts("x"); n.LeaseExpired != 1 || n.Delivered != 1 {
			t.Errorf("%+v", n)
		}
		r.CheckConsistency()
	})
}

func wantGone(r *rig.Rig, id string) {
	r.T.Helper()
	_, err := r.Get(r.T.Context(), id)
	rig.Want(r.T, "Get("+id+")", err, tasks.ErrNotFound)
}

// Attempts that are counted before they begin are recorded together, and a process that
// ends in a batch has used up one of each.
func TestBatchesCountCrashes(t *testing.T) {
	c := &crate{}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c}}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Kind: "crate", CountCrashes: true, Retry: tasks.Retry{MaxAttempts: 2}})
		for i := range 20 {
			r.Must(tasks.Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Second})
		}
		rig.Pass(time.Second)
		for range 2 {
			rig.Pass(500 * time.Millisecond) // in the middle of a batch
			r.Crash()
		}
		rig.Pass(5 * time.Second)
		for i := range 20 {
			r.InLedger(fmt.Sprint("t", i), recovery.Dead)
		}
		if got, _ := c.taken(); len(got) != 2 {
			t.Errorf("batches %q", got)
		}
		// Without a ledger nothing is delivered, and nothing is lost.
		r.Must(tasks.Request{ID: "late", Topic: "x", Delay: time.Second})
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		rig.Pass(time.Minute)
		if got, _ := c.taken(); len(got) != 0 {
			t.Errorf("without their claims: %q", got)
		}
		r.Faulty.Heal()
		rig.Pass(time.Minute)
		wantGone(r, "late")
		r.CheckConsistency()
	})
}

// A backlog raises also a topic that the program has brought along, and its batches
// with it.
func TestBacklogRaisesBatches(t *testing.T) {
	c := &crate{}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c}, Topics: map[string]tasks.TopicSettings{"x": crates()}, SweepBacklog: 1000, SweepMaxConcurrency: 1000, MaxInFlight: 900},
		func(t *testing.T, r *rig.Rig) {
			for range 8 {
				many(r, "x", 800)
			}
			rig.Pass(2 * time.Second)
			c.taken()
			rig.Pass(2 * time.Second)
			if got, most := c.taken(); most != 900 {
				t.Errorf("up to %d at once, as far as MaxInFlight allows; batches %d", most, len(got))
			}
			rig.Pass(time.Minute)
			if n := r.Counts("x"); n.Delivered != 6400 {
				t.Errorf("%+v", n)
			}
			r.CheckConsistency()
		})
}

// Scarce places are shared by weight also between topics that deliver batches and others,
// to the last of them.
func TestBatchesShareByWeight(t *testing.T) {
	t.Parallel()
	all := map[string]*crate{"light": {}, "heavy": {}}
	var ways []tasks.Way
	for kind, c := range all {
		ways = append(ways, kinded{c, tasks.Kind(kind)})
	}
	rig.Bubble(t, tasks.Config{Ways: ways, MaxDeliveries: 40}, func(t *testing.T, r *rig.Rig) {
		var single slowHandler
		r.MustSetTopic("light", tasks.TopicSettings{Kind: "light"})
		r.MustSetTopic("heavy", tasks.TopicSettings{Kind: "heavy", Weight: 3})
		r.MustHandle("single", single.handler)
		backlogOf(r, 4000, "light")
		rig.Pass(500 * time.Millisecond)
		backlogOf(r, 4000, "heavy", "single")
		rig.Pass(10 * time.Second)
		for name, c := range all {
			c.mu.Lock()
			if fair := map[string]int{"light": 8, "heavy": 24}[name]; c.now != fair {
				t.Errorf("%s: %d at once, want %d", name, c.now, fair)
			}
			c.mu.Unlock()
		}
		if n := single.running.Load(); n != 8 {
			t.Errorf("single: %d at once, want 8", n)
		}
		r.CheckConsistency()
		rig.Pass(time.Hour)
		for _, name := range []string{"light", "heavy", "single"} {
			if n := r.Counts(name); n.Delivered != 4000 {
				t.Errorf("%s: %+v", name, n)
			}
		}
		r.CheckConsistency()
	})
}

// A kinded crate is a way of its own kind.
type kinded struct {
	*crate
	kind tasks.Kind
}

func (k kinded) Kind() tasks.Kind { return k.kind }

// When a way that takes no batches takes over, in the same measure, each task gets a
// delivery of its own.
func TestSinglesAfterBatches(t *testing.T) {
	c, p := &crate{}, &rig.Postal{}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c, p}}, func(t *testing.T, r *rig.Rig) {
		set, other := crates(), to("rome")
		set.Concurrency, other.Concurrency = 8, 8
		r.MustSetTopic("x", set)
		many(r, "x", 100)
		rig.Pass(1500 * time.Millisecond)
		r.MustSetTopic("x", other)
		rig.Pass(time.Minute)
		batches, _ := c.taken()
		if n := r.Counts("x"); n.Delivered != 100 || n.Failed != 0 || len(batches) > 6 {
			t.Errorf("%d batches, then %+v", len(batches), n)
		}
		if sent := len(p.Sent); sent < 60 {
			t.Errorf("%d were delivered singly", sent)
		}
		r.CheckConsistency()
	})
}

// Places of a batch that went to another topic come back when that is done, while the
// batches go on.
func TestBatchesGetTheirPlacesBack(t *testing.T) {
	c := &crate{}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c}, MaxDeliveries: 4, SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		set := crates()
		set.Concurrency = 4
		r.MustSetTopic("x", set)
		r.MustHandle("other", (&slowHandler{}).handler)
		many(r, "x", 100)
		rig.Pass(500 * time.Millisecond)
		r.Must(tasks.Request{Topic: "other"})
		rig.Pass(2 * time.Second)
		if n := r.Counts("other").Delivered; n != 1 {
			t.Fatalf("%d of the other topic were delivered", n)
		}
		c.taken()
		rig.Pass(3 * time.Second)
		if _, most := c.taken(); most != 4 {
			t.Errorf("%d at once; want all 4 places for the only topic", most)
		}
		r.CheckConsistency()
	})
}
