package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// A Rig is a scheduler under test, on a memory ledger that fails as it is told.
// Its Scheduler is another one after each restart.
type Rig struct {
	*tasks.Scheduler
	T      testing.TB
	Cfg    tasks.Config
	Clock  *SteppedClock
	Log    *Logged
	Mem    *memledger.Ledger // the handle in use
	Faulty *ledgertest.Faulty
	Before func() // runs before each open, when faulty is set; or nil

	Delivery tasks.Delivery // the one that the test is about
	Parts    Parts
	Rescues  bool // the sweep will find something
}

// New starts a scheduler whose clock can be stepped; it is closed with the test.
func New(t testing.TB, cfg tasks.Config, options ...memledger.Option) *Rig {
	t.Helper()
	return On(t, cfg, memledger.New(append(options, memledger.Strict())...))
}

// On is New on a ledger that may hold something already.
func On(t testing.TB, cfg tasks.Config, mem *memledger.Ledger) *Rig {
	t.Helper()
	r := &Rig{T: t, Cfg: cfg, Clock: &SteppedClock{}, Log: &Logged{}, Mem: mem}
	r.Cfg.Clock = r.Clock.Now
	r.Cfg.Log = slog.New(slog.NewTextHandler(r.Log, nil))
	r.Open()
	t.Cleanup(func() {
		r.Faulty.Heal()
		_ = r.Close(context.Background()) // some tests have lost the ledger
	})
	return r
}

// Open starts a process on the ledger.
func (r *Rig) Open() {
	r.T.Helper()
	r.Faulty = ledgertest.Wrap(r.Mem)
	if r.Before != nil {
		r.Before()
	}
	var err error
	if r.Scheduler, err = OpenWith(r.T.Context(), r.Faulty, r.Cfg, r.Parts); err != nil {
		r.T.Fatal("Open:", err)
	}
}

// Crash ends the scheduler as kill -9 would: from one moment to the next nothing
// reaches the ledger any more. The process that comes after it starts at once.
func (r *Rig) Crash() {
	r.T.Helper()
	r.Cut()
	r.Open()
}

// Cut is the first half of Crash: it leaves no process.
func (r *Rig) Cut() {
	r.Mem.Crash()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = r.Close(ctx) // its goroutines; what they say goes nowhere
	r.Mem = r.Mem.Reopen()
}

// Restart closes the scheduler cleanly and opens another one.
func (r *Rig) Restart() {
	r.T.Helper()
	r.Shut()
	r.Open()
}

// Shut closes the scheduler cleanly and opens no other.
func (r *Rig) Shut() {
	r.T.Helper()
	if err := r.Close(context.Background()); err != nil {
		r.T.Fatal("Close:", err)
	}
	r.Mem = r.Mem.Reopen()
}

// FakeTime runs a test with fake time. There, a test that waits for what does not come never ends:
// the scheduler's tickers keep the clock going. After five real minutes this ends the run, and says
// which test it was.
func FakeTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	guard := time.AfterFunc(5*time.Minute, func() { panic(t.Name() + " waits for what does not come") })
	defer guard.Stop()
	synctest.Test(t, test)
}

// Bubble runs a test with fake time, on a rig.
func Bubble(t *testing.T, cfg tasks.Config, test func(t *testing.T, r *Rig)) {
	t.Helper()
	FakeTime(t, func(t *testing.T) {
		r := New(t, cfg)
		synctest.Wait() // for replay
		test(t, r)
		r.WantNoRescue()
		WantCounted(t, r.Engine())
	})
}

// WantNoRescue fails the test if the sweep has found what it finds only after a fault. A step of
// the clock is none.
func (r *Rig) WantNoRescue() {
	r.T.Helper()
	s := r.Stats()
	if s.MissedWakes != 0 && !r.Rescues {
		r.T.Errorf("the sweep found %d topics that no event had woken", s.MissedWakes)
	}
	if s.Rescued != 0 && !r.Rescues {
		r.T.Errorf("the sweep has rescued %d tasks", s.Rescued)
	}
}

// Pass lets fake time pass, and then everything that it has started come to rest.
func Pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A SteppedClock is the time plus what it was stepped by.
type SteppedClock struct {
	Offset atomic.Int64
}

// Now is the time on this clock.
func (c *SteppedClock) Now() time.Time { return time.Now().Add(time.Duration(c.Offset.Load())) }

// Step moves the clock, backwards too.
func (c *SteppedClock) Step(d time.Duration) { c.Offset.Add(int64(d)) }

// Logged keeps what was logged.
type Logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// All is everything that was logged.
func (l *Logged) All() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Has reports whether a text was logged.
func (l *Logged) Has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// Count is how often a text was logged.
func (l *Logged) Count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// Must schedules a task that has to be accepted.
func (r *Rig) Must(req tasks.Request) tasks.Task {
	r.T.Helper()
	task, err := r.Schedule(r.T.Context(), req)
	if err != nil {
		r.T.Fatalf("Schedule(%q): %v", req.ID, err)
	}
	return task
}

// Pull reserves what is ready of a topic, and wants just these ids, in this order.
func (r *Rig) Pull(topic string, want ...string) []tasks.Delivery {
	r.T.Helper()
	ds, err := r.Reserve(r.T.Context(), topic, tasks.MaxReserve, 0, 0)
	if err != nil {
		r.T.Fatalf("Reserve(%q): %v", topic, err)
	}
	got := make([]string, len(ds))
	for i := range ds {
		got[i] = ds[i].ID
	}
	if !slices.Equal(got, want) {
		r.T.Fatalf("reserved %q; want %q", got, want)
	}
	return ds
}

// One schedules a task that is due now and reserves it.
func (r *Rig) One(id, topic string) tasks.Delivery {
	r.T.Helper()
	r.Must(tasks.Request{ID: id, Topic: topic, Payload: []byte(`{}`)})
	return r.Pull(topic, id)[0]
}

// SettleOne settles one delivery and returns the answer.
func (r *Rig) SettleOne(v tasks.Verdict, d tasks.Delivery) tasks.Settled {
	r.T.Helper()
	answers, err := r.Settle(r.T.Context(), v, []string{d.Receipt()})
	if err != nil {
		r.T.Fatal("Settle:", err)
	}
	return answers[0]
}

// Ack acknowledges, which has to be recorded.
func (r *Rig) Ack(d tasks.Delivery) {
	r.T.Helper()
	if a := r.SettleOne(tasks.Verdict{Verb: tasks.Ack}, d); a.Err != nil || !a.Recorded {
		r.T.Fatalf("Ack of %s: %+v", d.ID, a)
	}
}

// MustGet returns a task that has to exist.
func (r *Rig) MustGet(id string) tasks.Task {
	r.T.Helper()
	task, err := r.Get(r.T.Context(), id)
	if err != nil {
		r.T.Fatalf("Get(%q): %v", id, err)
	}
	return task
}

// Fill schedules tasks with payloads of one size, named prefix0, prefix1 and so on, until memory
// takes no more of them, and returns how many it took. Config.MaxBytes must be 16 MiB at most.
func (r *Rig) Fill(prefix, topic string, payload int) (taken int) {
	r.T.Helper()
	if r.Cfg.MaxBytes == 0 || r.Cfg.MaxBytes > 16<<20 {
		r.T.Fatalf("memory has room for %d bytes", r.Cfg.MaxBytes)
	}
	for ; taken <= int(r.Cfg.MaxBytes)/(payload+16); taken++ {
		_, err := r.Schedule(r.T.Context(), tasks.Request{ID: fmt.Sprint(prefix, taken), Topic: topic, Delay: time.Hour, Payload: make([]byte, payload)})
		if errors.Is(err, tasks.ErrOverloaded) {
			return taken
		}
		Want(r.T, "Schedule", err, nil)
	}
	r.T.Fatal("memory takes more than Config.MaxBytes")
	return taken
}

// MostPages is more than any list, export or queue of a test has: what does not end is a failure of
// that test, and no time-out of all tests.
const MostPages = 10_000

// Want fails the test unless err is one of that kind; nil wants no error.
func Want(t testing.TB, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s = %v; want %v", what, err, kind)
	}
}

// Held is where the ledger has the record of an id, and what it says.
func (r *Rig) Held(id string) (recovery.Spot, record.Fields) {
	r.T.Helper()
	var spot recovery.Spot
	var f record.Fields
	take := func(e recovery.Entry) {
		if spot.Place != recovery.Nowhere {
			r.T.Fatalf("the ledger has %q twice", id)
		}
		spot = e.Spot
		var err error
		if f, err = record.Decode(bytes.Clone(e.Data)); err != nil {
			r.T.Fatalf("the record of %q: %v", id, err)
		}
	}
	err := errors.Join(
		r.Mem.Find(context.Background(), id, take),
		r.Mem.GetDead(context.Background(), []string{id}, func(_ int, e recovery.Entry) { take(e) }))
	if err != nil {
		r.T.Fatal("reading the ledger:", err)
	}
	return spot, f
}

// InLedger fails the test unless the ledger has the id in this place.
func (r *Rig) InLedger(id string, place recovery.Place) record.Fields {
	r.T.Helper()
	spot, f := r.Held(id)
	if spot.Place != place {
		r.T.Fatalf("the ledger has %q at %+v; want place %d", id, spot, place)
	}
	return f
}

// MustSetTopic sets a topic up.
func (r *Rig) MustSetTopic(name string, settings tasks.TopicSettings) {
	r.T.Helper()
	if _, err := r.SetTopic(r.T.Context(), name, settings, -1); err != nil {
		r.T.Fatalf("SetTopic(%q): %v", name, err)
	}
}

// Counts returns the figures of a topic.
func (r *Rig) Counts(name string) tasks.Counts {
	r.T.Helper()
	topic, err := r.Topic(name)
	if err != nil {
		r.T.Fatalf("Topic(%q): %v", name, err)
	}
	return topic.Counts
}

// Ptr returns a pointer to a value.
func Ptr[T any](v T) *T { return &v }

// A Collection is what handlers report to a test.
type Collection[T any] struct {
	mu  sync.Mutex
	all []T
}

// Add adds a value.
func (c *Collection[T]) Add(v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, v)
}

// List returns a copy of what there is.
func (c *Collection[T]) List() []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// Begun returns a delivery as its node knows it.
func Begun(d tasks.Delivery) *engine.Delivery { return d.Token().(*engine.Delivery) }
