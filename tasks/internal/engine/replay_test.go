package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// replaying runs a test on a rig whose replay is held up before its first page:
// the ledger has n tasks of the topic "x", t0 to t<n-1>, in an hour. resume lets
// replay go on.
func replaying(t *testing.T, n int, test func(t *testing.T, r *rig.Rig, resume func())) {
	for name, options := range rig.Kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rig.On(t, Config{}, memledger.New(options...))
				for i := range n {
					r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
				}
				r.Shut()
				faulty := ledgertest.Wrap(r.Mem)
				step := ledgertest.Scan
				if name == "Nominating" {
					step = ledgertest.Page // its ids are nominated already
				}
				reached, resume := faulty.Hold(step)
				r.Faulty = faulty
				var err error
				if r.Scheduler, err = Open(t.Context(), faulty, r.Cfg); err != nil {
					t.Fatal(err)
				}
				<-reached
				test(t, r, resume)
				resume()
				rig.Pass(time.Second)
				r.CheckConsistency()
			})
		})
	}
}

// An id that replay has not reached is looked up: there is no false 404.
func TestAskedForWhileReplaying(t *testing.T) {
	ctx := context.Background()
	for name, ask := range map[string]func(r *rig.Rig, id string) error{
		"Get":    func(r *rig.Rig, id string) error { _, err := r.Get(ctx, id); return err },
		"Cancel": func(r *rig.Rig, id string) error { return r.Cancel(ctx, id) },
		"Fire":   func(r *rig.Rig, id string) error { _, err := r.Fire(ctx, id); return err },
		"Reschedule": func(r *rig.Rig, id string) error {
			_, err := r.Reschedule(ctx, id, Move{Delay: rig.Ptr(time.Minute)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			replaying(t, 3, func(t *testing.T, r *rig.Rig, _ func()) {
				rig.Want(t, "known", ask(r, "t1"), nil)
				rig.Want(t, "unknown", ask(r, "t99"), ErrNotFound)
				if r.Readiness().Ready {
					t.Error("replay is over")
				}
			})
		})
	}
}

// While a node alone reads its tasks, no list is a part of them told as all: it waits, and is
// refused when that takes too long. Figures say that they are of a part.
func TestListsWhileReplaying(t *testing.T) {
	lists := map[string]Query{"all": {}, "of a topic": {Topic: "x"}, "of a state": {State: Pending}, "by id": {IDPrefix: "t"}, "brief": {Brief: true}}
	figures := func(r *rig.Rig) map[string]Reach {
		_, stats, err := r.Admin().FleetStats(r.T.Context())
		rig.Want(r.T, "FleetStats", err, nil)
		_, totals, err := r.Admin().FleetTotals(r.T.Context())
		rig.Want(r.T, "FleetTotals", err, nil)
		_, topics, err := r.Admin().FleetTopics(r.T.Context(), TopicQuery{})
		rig.Want(r.T, "FleetTopics", err, nil)
		f, forecast, err := r.Admin().FleetForecast(r.T.Context(), Outlook{Window: time.Hour, Step: time.Hour})
		rig.Want(r.T, "FleetForecast", err, nil)
		if f.Complete != (len(forecast.Missing) == 0) {
			r.T.Errorf("a forecast without %v is complete: %v", forecast.Missing, f.Complete)
		}
		return map[string]Reach{"FleetStats": stats, "FleetTotals": totals, "FleetTopics": topics, "FleetForecast": forecast, "OwnReach": r.Admin().OwnReach()}
	}
	replaying(t, 3, func(t *testing.T, r *rig.Rig, resume func()) {
		for name, q := range lists {
			_, err := r.List(t.Context(), q)
			rig.Want(t, "a list "+name, err, ErrReplaying)
		}
		_, _, err := r.Admin().FleetTopic(t.Context(), "x")
		rig.Want(t, "a topic that was not met yet", err, ErrReplaying)
		for name, reach := range figures(r) {
			if len(reach.Nodes) != 0 || len(reach.Missing) != 1 || !errors.Is(reach.Missing[0], ErrReplaying) {
				t.Errorf("%s says that it is of %v without %v", name, reach.Nodes, reach.Missing)
			}
		}
		type listed struct {
			what string
			page Page
			err  error
		}
		pages := make(chan listed, len(lists))
		for name, q := range lists {
			go func() {
				page, err := r.List(t.Context(), q)
				pages <- listed{name, page, err}
			}()
		}
		synctest.Wait()
		resume()
		for range lists {
			if l := <-pages; l.err != nil || len(l.page.Tasks) != 3 {
				t.Errorf("a list %s that has waited has %d tasks of 3, %v", l.what, len(l.page.Tasks), l.err)
			}
		}
		for name, reach := range figures(r) {
			if len(reach.Nodes) != 1 || len(reach.Missing) != 0 {
				t.Errorf("after replay %s says that it is of %v without %v", name, reach.Nodes, reach.Missing)
			}
		}
	})
}

func TestScheduleWhileReplaying(t *testing.T) {
	replaying(t, 2, func(t *testing.T, r *rig.Rig, resume func()) {
		_, err := r.Schedule(t.Context(), Request{ID: "t0", Topic: "y"})
		rig.Want(t, "Schedule of an id that exists", err, ErrExists)
		again := r.Must(Request{ID: "t1", Topic: "x", Delay: time.Hour})
		if !again.Repeated {
			t.Error("the same request again was not recognised")
		}
		r.Must(Request{ID: "new", Topic: "x", Delay: time.Hour})
		r.Must(Request{Topic: "x", Delay: time.Hour})
		results, err := r.ScheduleBatch(t.Context(), []Request{{ID: "t0", Topic: "y"}, {ID: "t1", Topic: "x", Delay: time.Hour}, {ID: "new2", Topic: "x"}})
		rig.Want(t, "ScheduleBatch", err, nil)
		rig.Want(t, "t0", results[0].Err, ErrExists)
		rig.Want(t, "t1", results[1].Err, nil)
		rig.Want(t, "new2", results[2].Err, nil)
		resume()
		rig.Pass(time.Second)
		if c := r.Counts("x"); c.Pending+c.Ready != 5 {
			t.Errorf("%d pending, %d ready; want 5 together", c.Pending, c.Ready)
		}
	})
}

// A look-up that fails must not hide its id from the replay that is under way.
func TestFailedLookUpWhileReplaying(t *testing.T) {
	replaying(t, 3, func(t *testing.T, r *rig.Rig, resume func()) {
		reached, release := r.Faulty.Hold(ledgertest.Find)
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan struct{})
		go func() { _, _ = r.Get(ctx, "t1"); close(answered) }()
		<-reached
		resume() // replay passes the id while it is being looked up
		synctest.Wait()
		cancel()
		<-answered
		release()
		rig.Pass(time.Second)
		if task := r.MustGet("t1"); task.State != Pending {
			t.Errorf("state %v", task.State)
		}
		rig.Pass(time.Hour)
		ds, err := r.Reserve(t.Context(), "x", 10, 0, 0)
		if err != nil || len(ds) != 3 {
			t.Errorf("%d of 3 delivered, %v", len(ds), err)
		}
	})
}

// A page that was read before a task was finished must not bring it back.
func TestFinishedWhileReplaying(t *testing.T) {
	t.Parallel()
	replaying(t, 3, func(t *testing.T, r *rig.Rig, resume func()) {
		_, err := r.Fire(t.Context(), "t1")
		rig.Want(t, "Fire", err, nil)
		r.Ack(r.Pull("x", "t1")[0])
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t2"), nil)
		resume()
		rig.Pass(2 * time.Hour)
		r.Pull("x", "t0")
	})
}

// A ledger that cannot look up by id makes the caller wait for the end of replay.
func TestReplayingWithoutFinder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{})
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		r.Shut()
		r.Faulty = ledgertest.Wrap(r.Mem)
		_, resume := r.Faulty.Hold(ledgertest.Scan)
		var err error
		if r.Scheduler, err = Open(t.Context(), struct{ recovery.Ledger }{r.Faulty}, r.Cfg); err != nil {
			t.Fatal(err)
		}
		_, err = r.Get(t.Context(), "t")
		rig.Want(t, "Get", err, ErrReplaying)
		_, err = r.Schedule(t.Context(), Request{ID: "t", Topic: "x"})
		rig.Want(t, "Schedule", err, ErrReplaying)
		answer := make(chan error)
		go func() { _, err := r.Get(t.Context(), "t"); answer <- err }()
		rig.Pass(time.Second)
		resume()
		rig.Want(t, "Get", <-answer, nil)
	})
}

// A replay that has read nothing yet says for how long, and one that is over how long it took.
func TestElapsedBeforeTheFirstPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{})
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		r.Shut()
		r.Faulty = ledgertest.Wrap(r.Mem)
		_, resume := r.Faulty.Hold(ledgertest.Scan)
		var err error
		if r.Scheduler, err = Open(t.Context(), r.Faulty, r.Cfg); err != nil {
			t.Fatal(err)
		}
		rig.Pass(7 * time.Second)
		if got := r.Readiness(); got.Elapsed != 7*time.Second || got.Replayed != 0 {
			t.Errorf("after 7 s it tells %+v", got)
		}
		resume()
		rig.Pass(5 * time.Second)
		if got := r.Readiness(); got.Elapsed != 7*time.Second || got.Replayed != 1 {
			t.Errorf("afterwards it tells %+v", got)
		}
	})
}

// What is overdue is delivered while replay still runs, the oldest first.
func TestOverdueIsDeliveredDuringReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{})
		var ids []string
		for i := range 200 {
			id := fmt.Sprintf("t%03d", i)
			r.Must(Request{ID: id, Topic: "x", Delay: time.Duration(i+1) * time.Second})
			ids = append(ids, id)
		}
		r.Shut()
		rig.Pass(time.Hour)
		r.Faulty = ledgertest.Wrap(r.Mem)
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Page, Nth: 3}) // and so it starts anew
		var err error
		if r.Scheduler, err = Open(t.Context(), r.Faulty, r.Cfg); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if r.Readiness().Ready {
			t.Fatal("replay is over")
		}
		first, err := r.Reserve(t.Context(), "x", 1000, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		if len(first) == 0 {
			t.Fatal("nothing is delivered during replay")
		}
		rig.Pass(time.Second)
		rest, err := r.Reserve(t.Context(), "x", 1000, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		var got []string
		for _, d := range append(first, rest...) {
			got = append(got, d.ID)
		}
		if !slices.Equal(got, ids) {
			t.Errorf("delivered in the order %v", got)
		}
	})
}

func TestReplayKeepsWhatItCannotRead(t *testing.T) {
	for name, options := range rig.Kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memledger.New(options...)
				plant(t, mem, map[string][]byte{
					"newer": recordFixture(t, "newer.rec"), "cut": recordFixture(t, "damaged-cut.rec"),
					"flags": recordFixture(t, "damaged-flags.rec"), "good": recordFixture(t, "minimal.rec"),
				})
				r := rig.On(t, Config{}, mem)
				rig.Pass(time.Second)
				if n := r.Stats().UnknownRecords; n != 3 {
					t.Errorf("%d unknown records, want 3", n)
				}
				r.MustGet("good")
				if !r.Log.Has("newer version") || !r.Log.Has("cannot be read") {
					t.Error("they are not in the log")
				}
				// Their ids belong to them, until a version comes that can read them.
				for _, id := range []string{"newer", "cut", "flags"} {
					_, err := r.Schedule(t.Context(), Request{ID: id, Topic: "x"})
					rig.Want(t, "Schedule", err, ErrUnavailable)
					rig.Want(t, "Cancel", r.Cancel(t.Context(), id), ErrUnavailable)
				}
				pendings, _ := r.Dump()
				if len(pendings) != 4 {
					t.Errorf("the ledger has %d of 4 records", len(pendings))
				}
			})
		})
	}
}

// After a downgrade there may be a million such records: only the first are told.
func TestReplayTellsFewOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := map[string][]byte{}
		for i := range 100 {
			records[fmt.Sprint("newer", i)] = recordFixture(t, "newer.rec")
		}
		mem := memledger.New()
		plant(t, mem, records)
		r := rig.On(t, Config{}, mem)
		rig.Pass(time.Second)
		if told, n := r.Log.Count("it is kept"), r.Stats().UnknownRecords; n != 100 || told != engine.IllegibleLines || !r.Log.Has("only counted") {
			t.Errorf("%d of %d are told", told, n)
		}
	})
}

// plant puts records into a ledger.
func plant(t testing.TB, mem *memledger.Ledger, records map[string][]byte) {
	t.Helper()
	terms, err := mem.Adopt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, rec := range records {
		var b recovery.Batch
		b.Add(recovery.Change{ID: []byte(id), To: recovery.Spot{Place: recovery.Pending, At: 1}, Data: rec})
		if err := mem.Apply(t.Context(), terms.ShardOf([]byte(id)), &b); err != nil {
			t.Fatal(err)
		}
	}
	if err := mem.Close(); err != nil {
		t.Fatal(err)
	}
}

// The chosen ids of a batch are looked up together.
func TestBatchLooksUpTogether(t *testing.T) {
	replaying(t, 50, func(t *testing.T, r *rig.Rig, resume func()) {
		var requests []Request
		for i := range 200 {
			requests = append(requests, Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		}
		before := r.Faulty.Calls(ledgertest.Find)
		results, err := r.ScheduleBatch(t.Context(), requests)
		rig.Want(t, "ScheduleBatch", err, nil)
		for i, result := range results {
			rig.Want(t, result.ID, result.Err, nil)
			if i >= 50 {
				continue
			}
			if task := r.MustGet(result.ID); task.State != Pending {
				t.Errorf("%s is %v", result.ID, task.State)
			}
		}
		if n := r.Faulty.Calls(ledgertest.Find) - before; n != 1 {
			t.Errorf("%d look-ups for one batch", n)
		}
		resume()
		rig.Pass(time.Second)
		if c := r.Counts("x"); c.Pending != 200 {
			t.Errorf("%d pending of 200", c.Pending)
		}
	})
}

// A look-up of a batch that fails leaves nothing locked, and hides nothing.
func TestFailedLookUpOfBatch(t *testing.T) {
	replaying(t, 3, func(t *testing.T, r *rig.Rig, resume func()) {
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Find})
		requests := []Request{{ID: "t1", Topic: "x", Delay: time.Hour}, {ID: "new", Topic: "x", Delay: time.Hour}}
		results, err := r.ScheduleBatch(t.Context(), requests)
		rig.Want(t, "ScheduleBatch", err, nil)
		for _, result := range results {
			rig.Want(t, result.ID, result.Err, ErrUnavailable)
		}
		results, err = r.ScheduleBatch(t.Context(), requests)
		rig.Want(t, "ScheduleBatch again", err, nil)
		for _, result := range results {
			rig.Want(t, result.ID+" again", result.Err, nil)
		}
		resume()
		rig.Pass(time.Second)
		if c := r.Counts("x"); c.Pending != 4 {
			t.Errorf("%d pending of 4", c.Pending)
		}
	})
}

// recordFixture reads a record of the fixtures of package record.
func recordFixture(t testing.TB, name string) []byte {
	t.Helper()
	rec, err := os.ReadFile("../record/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}
