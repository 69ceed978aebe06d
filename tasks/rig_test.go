package tasks_test

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
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// A rig is a scheduler under test, on a memory ledger that fails as it is told.
// Its Scheduler is another one after each restart.
type rig struct {
	*Scheduler
	t      testing.TB
	cfg    Config
	clock  *steppedClock
	log    *logged
	mem    *memledger.Ledger // the handle in use
	faulty *ledgertest.Faulty
	before func() // runs before each open, when faulty is set; or nil

	delivery Delivery // the one that the test is about
	parts    Parts
	rescues  bool // the sweep will find something
}

// newRig starts a scheduler whose clock can be stepped; it is closed with the test.
func newRig(t testing.TB, cfg Config, options ...memledger.Option) *rig {
	t.Helper()
	return rigOn(t, cfg, memledger.New(append(options, memledger.Strict())...))
}

// rigOn is newRig on a ledger that may hold something already.
func rigOn(t testing.TB, cfg Config, mem *memledger.Ledger) *rig {
	t.Helper()
	r := &rig{t: t, cfg: cfg, clock: &steppedClock{}, log: &logged{}, mem: mem}
	r.cfg.Clock = r.clock.now
	r.cfg.Log = slog.New(slog.NewTextHandler(r.log, nil))
	r.open()
	t.Cleanup(func() {
		r.faulty.Heal()
		_ = r.Close(context.Background()) // some tests have lost the ledger
	})
	return r
}

func (r *rig) open() {
	r.t.Helper()
	r.faulty = ledgertest.Wrap(r.mem)
	if r.before != nil {
		r.before()
	}
	var err error
	if r.Scheduler, err = OpenWith(r.t.Context(), r.faulty, r.cfg, r.parts); err != nil {
		r.t.Fatal("Open:", err)
	}
}

// crash ends the scheduler as kill -9 would: from one moment to the next nothing
// reaches the ledger any more. The process that comes after it starts at once.
func (r *rig) crash() {
	r.t.Helper()
	r.cut()
	r.open()
}

// cut is the first half of crash: it leaves no process.
func (r *rig) cut() {
	r.mem.Crash()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = r.Close(ctx) // its goroutines; what they say goes nowhere
	r.mem = r.mem.Reopen()
}

// restart closes the scheduler cleanly and opens another one.
func (r *rig) restart() {
	r.t.Helper()
	r.shut()
	r.open()
}

func (r *rig) shut() {
	r.t.Helper()
	if err := r.Close(context.Background()); err != nil {
		r.t.Fatal("Close:", err)
	}
	r.mem = r.mem.Reopen()
}

// fakeTime runs a test with fake time. There, a test that waits for what does not come never ends:
// the scheduler's tickers keep the clock going. After five real minutes this ends the run, and says
// which test it was.
func fakeTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	guard := time.AfterFunc(5*time.Minute, func() { panic(t.Name() + " waits for what does not come") })
	defer guard.Stop()
	synctest.Test(t, test)
}

// bubble runs a test with fake time, on a rig.
func bubble(t *testing.T, cfg Config, test func(t *testing.T, r *rig)) {
	t.Helper()
	fakeTime(t, func(t *testing.T) {
		r := newRig(t, cfg)
		synctest.Wait() // for replay
		test(t, r)
		r.wantNoRescue()
		wantCounted(t, r.Engine())
	})
}

// wantNoRescue fails the test if the sweep has found what it finds only after a fault. A step of
// the clock is none.
func (r *rig) wantNoRescue() {
	r.t.Helper()
	s := r.Stats()
	if s.MissedWakes != 0 && !r.rescues {
		r.t.Errorf("the sweep found %d topics that no event had woken", s.MissedWakes)
	}
	if s.Rescued != 0 && !r.rescues {
		r.t.Errorf("the sweep has rescued %d tasks", s.Rescued)
	}
}

// pass lets fake time pass, and then everything that it has started come to rest.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A steppedClock is the time plus what it was stepped by.
type steppedClock struct {
	offset atomic.Int64
}

func (c *steppedClock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

func (c *steppedClock) step(d time.Duration) { c.offset.Add(int64(d)) }

// logged keeps what was logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// must schedules a task that has to be accepted.
func (r *rig) must(req Request) Task {
	r.t.Helper()
	task, err := r.Schedule(r.t.Context(), req)
	if err != nil {
		r.t.Fatalf("Schedule(%q): %v", req.ID, err)
	}
	return task
}

// pull reserves what is ready of a topic, and wants just these ids, in this order.
func (r *rig) pull(topic string, want ...string) []Delivery {
	r.t.Helper()
	ds, err := r.Reserve(r.t.Context(), topic, MaxReserve, 0, 0)
	if err != nil {
		r.t.Fatalf("Reserve(%q): %v", topic, err)
	}
	got := make([]string, len(ds))
	for i := range ds {
		got[i] = ds[i].ID
	}
	if !slices.Equal(got, want) {
		r.t.Fatalf("reserved %q; want %q", got, want)
	}
	return ds
}

// one schedules a task that is due now and reserves it.
func (r *rig) one(id, topic string) Delivery {
	r.t.Helper()
	r.must(Request{ID: id, Topic: topic, Payload: []byte(`{}`)})
	return r.pull(topic, id)[0]
}

// settle settles one delivery and returns the answer.
func (r *rig) settle(v Verdict, d Delivery) Settled {
	r.t.Helper()
	answers, err := r.Settle(r.t.Context(), v, []string{d.Receipt()})
	if err != nil {
		r.t.Fatal("Settle:", err)
	}
	return answers[0]
}

// ack acknowledges, which has to be recorded.
func (r *rig) ack(d Delivery) {
	r.t.Helper()
	if a := r.settle(Verdict{Verb: Ack}, d); a.Err != nil || !a.Recorded {
		r.t.Fatalf("Ack of %s: %+v", d.ID, a)
	}
}

// get returns a task that has to exist.
func (r *rig) get(id string) Task {
	r.t.Helper()
	task, err := r.Get(r.t.Context(), id)
	if err != nil {
		r.t.Fatalf("Get(%q): %v", id, err)
	}
	return task
}

// fill schedules tasks with payloads of one size, named prefix0, prefix1 and so on, until memory
// takes no more of them, and returns how many it took. Config.MaxBytes must be 16 MiB at most.
func (r *rig) fill(prefix, topic string, payload int) (taken int) {
	r.t.Helper()
	if r.cfg.MaxBytes == 0 || r.cfg.MaxBytes > 16<<20 {
		r.t.Fatalf("memory has room for %d bytes", r.cfg.MaxBytes)
	}
	for ; taken <= int(r.cfg.MaxBytes)/(payload+16); taken++ {
		_, err := r.Schedule(r.t.Context(), Request{ID: fmt.Sprint(prefix, taken), Topic: topic, Delay: time.Hour, Payload: make([]byte, payload)})
		if errors.Is(err, ErrOverloaded) {
			return taken
		}
		want(r.t, "Schedule", err, nil)
	}
	r.t.Fatal("memory takes more than Config.MaxBytes")
	return taken
}

// mostPages is more than any list, export or queue of a test has: what does not end is a failure of
// that test, and no time-out of all tests.
const mostPages = 10_000

// want fails the test unless err is one of that kind; nil wants no error.
func want(t testing.TB, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s = %v; want %v", what, err, kind)
	}
}

// held is where the ledger has the record of an id, and what it says.
func (r *rig) held(id string) (recovery.Spot, record.Fields) {
	r.t.Helper()
	var spot recovery.Spot
	var f record.Fields
	take := func(e recovery.Entry) {
		if spot.Place != recovery.Nowhere {
			r.t.Fatalf("the ledger has %q twice", id)
		}
		spot = e.Spot
		var err error
		if f, err = record.Decode(bytes.Clone(e.Data)); err != nil {
			r.t.Fatalf("the record of %q: %v", id, err)
		}
	}
	err := errors.Join(
		r.mem.Find(context.Background(), id, take),
		r.mem.GetDead(context.Background(), []string{id}, func(_ int, e recovery.Entry) { take(e) }))
	if err != nil {
		r.t.Fatal("reading the ledger:", err)
	}
	return spot, f
}

// inLedger fails the test unless the ledger has the id in this place.
func (r *rig) inLedger(id string, place recovery.Place) record.Fields {
	r.t.Helper()
	spot, f := r.held(id)
	if spot.Place != place {
		r.t.Fatalf("the ledger has %q at %+v; want place %d", id, spot, place)
	}
	return f
}

// topic sets a topic up.
func (r *rig) topic(name string, settings TopicSettings) {
	r.t.Helper()
	if _, err := r.SetTopic(r.t.Context(), name, settings, -1); err != nil {
		r.t.Fatalf("SetTopic(%q): %v", name, err)
	}
}

// counts returns the figures of a topic.
func (r *rig) counts(name string) Counts {
	r.t.Helper()
	topic, err := r.Topic(name)
	if err != nil {
		r.t.Fatalf("Topic(%q): %v", name, err)
	}
	return topic.Counts
}

func ptr[T any](v T) *T { return &v }

// A collection is what handlers report to a test.
type collection[T any] struct {
	mu  sync.Mutex
	all []T
}

func (c *collection[T]) add(v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, v)
}

func (c *collection[T]) list() []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// begun returns a delivery as its node knows it.
func begun(d Delivery) *engine.Delivery { return d.Token().(*engine.Delivery) }
