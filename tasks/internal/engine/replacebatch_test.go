package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// replaceBatch replaces tasks, and returns the results.
func replaceBatch(t *testing.T, s *Scheduler, requests ...Request) []Result {
	t.Helper()
	results, err := s.ReplaceBatch(t.Context(), requests)
	if rig.Want(t, "ReplaceBatch", err, nil); len(results) != len(requests) {
		t.Fatalf("%d results of %d requests", len(results), len(requests))
	}
	return results
}

// A batch replaces tasks of all states and creates the others, each request for itself, with one
// batch of the ledger for all of them.
func TestReplaceBatch(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{MaxPayload: 100}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{})
		r.MustSetTopic("keeps", TopicSettings{KeepFinished: 10 * time.Hour})
		open := r.One("open", "x")
		r.One("left", "x")
		r.Bury("x", "dead", "grave")
		r.Finish("kept", "keeps")
		r.Finish("over", "keeps")
		r.Must(Request{ID: "pending", Topic: "x", Delay: time.Hour})
		hold(r, r.Must(Request{ID: "held", Topic: "x", Delay: time.Hour}).ID)
		r.Must(Request{ID: "ready", Topic: "x"})
		put := func(id string, supersede bool) Request {
			return Request{ID: id, Topic: "x", Delay: 2 * time.Hour, Payload: []byte(id), Supersede: supersede}
		}
		requests := []Request{
			put("new", false), put("pending", false), put("held", true), put("ready", false), put("open", true),
			put("left", false), put("dead", true), put("grave", false), put("kept", true), put("over", false),
			put("also-new", true), put("", false), {ID: "large", Topic: "x", Payload: make([]byte, 101)},
			{ID: "new held", Topic: "x", Held: true},
		}
		results := replaceBatch(t, r.Scheduler, requests...)
		kinds := map[string]error{"left": ErrDelivering, "grave": ErrDead, "large": ErrTooLarge, "new held": ErrInvalid}
		repeated := []string{"pending", "held", "ready", "open", "dead"}
		for i, res := range results {
			id := requests[i].ID
			rig.Want(t, id, res.Err, kinds[id])
			if id != "" && res.ID != id || res.ID == "" || res.Repeated != slices.Contains(repeated, id) || res.Spooled {
				t.Errorf("%q: %+v", id, res)
			}
			if res.Err != nil {
				continue
			}
			got := r.MustGet(res.ID)
			if left := got.Due.Sub(r.Clock.Now()); got.State != Pending || string(got.Payload) != id || left.Round(time.Second) != 2*time.Hour {
				t.Errorf("%q has become %+v", id, got)
			}
			r.InLedger(res.ID, recovery.Pending)
		}
		stale(r, "superseded", open)
		for id, state := range map[string]State{"left": Delivering, "grave": Dead} {
			if got := r.MustGet(id); got.State != state || got.Revision != 1 {
				t.Errorf("%s has become %+v", id, got)
			}
		}
		wantKept(r, "keeps")
		r.CheckConsistency()
		r.Crash()
		rig.Pass(3 * time.Hour)
		ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		var ids []string
		for _, d := range ds {
			ids = append(ids, d.ID)
		}
		all := []string{"left", "new", "pending", "held", "ready", "open", "also-new", results[11].ID, "dead", "kept", "over"}
		slices.Sort(ids)
		slices.Sort(all)
		if !slices.Equal(ids, all) {
			t.Errorf("delivered: %q; want %q", ids, all)
		}
	})
}

// However many tasks there are, all are with the ledger before it has answered for one: new ones,
// such as wait, and such as are delivered.
func TestReplaceBatchWritesOnce(t *testing.T) {
	bubbleOn(t, Config{}, func(t *testing.T, r *rig.Rig) {
		const count = 1000
		requests := make([]Request, count)
		for i := range requests {
			requests[i] = Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Second, Supersede: true}
		}
		for _, what := range []string{"new", "waiting", "ready", "delivered"} {
			switch what {
			case "ready":
				rig.Pass(time.Minute)
			case "delivered":
				rig.Pass(time.Minute)
				ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 0)
				if rig.Want(t, "Reserve", err, nil); len(ds) != count {
					t.Fatalf("%d are reserved", len(ds))
				}
			}
			before := r.Faulty.Calls(ledgertest.Apply)
			_, release := r.Faulty.Hold(ledgertest.Apply)
			done := make(chan []Result, 1)
			go func() { done <- replaceBatch(t, r.Scheduler, requests...) }()
			synctest.Wait()
			release()
			for i, res := range <-done {
				if rig.Want(t, what, res.Err, nil); res.Repeated != (what != "new") || res.ID != requests[i].ID {
					t.Fatalf("%s: %+v", what, res)
				}
			}
			// The first batch begins before all tasks have joined it.
			if n := r.Faulty.Calls(ledgertest.Apply) - before; n > 2 {
				t.Errorf("%s: %d batches were written", what, n)
			}
			r.CheckConsistency()
		}
	}, memledger.Shards(1))
}

// Where an id stands several times, the last request that is no fault of its own counts, and all
// others before it have its answer: as if one were carried out after the other.
func TestReplaceBatchTakesTheLast(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{MaxPayload: 100}, func(t *testing.T, r *rig.Rig) {
		put := func(id, payload string) Request {
			return Request{ID: id, Topic: "x", Delay: time.Hour, Payload: []byte(payload)}
		}
		wrong := func(id string) Request { return Request{ID: id, Topic: "", Delay: time.Hour} }
		r.Must(put("a", "0"))
		results := replaceBatch(t, r.Scheduler, put("a", "1"), put("b", "1"), put("a", "2"), wrong("b"), put("b", "3"),
			put("b", "4"), wrong("b"), wrong("b"), put("c", "1"), wrong("d"), wrong("d"))
		faults := []int{3, 6, 7, 9, 10}
		repeated := []int{0, 2, 4, 5}
		for i, res := range results {
			if slices.Contains(faults, i) {
				rig.Want(t, fmt.Sprint("result ", i), res.Err, ErrInvalid)
			} else {
				rig.Want(t, fmt.Sprint("result ", i), res.Err, nil)
			}
			if res.Repeated != slices.Contains(repeated, i) {
				t.Errorf("result %d: %+v", i, res)
			}
		}
		for id, payload := range map[string]string{"a": "2", "b": "4", "c": "1"} {
			if got := r.MustGet(id); string(got.Payload) != payload {
				t.Errorf("%s: %q", id, got.Payload)
			}
		}
		_, err := r.Get(t.Context(), "d")
		rig.Want(t, "Get", err, ErrNotFound)
		if got := r.MustGet("a"); got.Revision != 2 {
			t.Errorf("a was written %d times", got.Revision-1)
		}

		many := make([]Request, MaxBatch)
		for i := range many {
			many[i] = put("e", fmt.Sprint(i))
		}
		for i, res := range replaceBatch(t, r.Scheduler, many...) {
			if rig.Want(t, "one of many", res.Err, nil); res.Repeated != (i > 0) {
				t.Fatalf("%d: %+v", i, res)
			}
		}
		if got := r.MustGet("e"); string(got.Payload) != fmt.Sprint(MaxBatch-1) || got.Revision != 1 {
			t.Errorf("e: %+v", got)
		}
		for i := range many {
			many[i] = wrong("f")
		}
		many[0] = put("f", "first")
		for i, res := range replaceBatch(t, r.Scheduler, many...) {
			if (res.Err == nil) != (i == 0) {
				t.Fatalf("%d: %+v", i, res)
			}
		}
		r.CheckConsistency()
	})
}

// What is refused as a whole.
func TestReplaceBatchRefused(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		_, err := r.ReplaceBatch(t.Context(), make([]Request, MaxBatch+1))
		rig.Want(t, "of too many", err, ErrInvalid)
		for _, v := range []Version{AnyVersion, {Revision: 1}} {
			_, err = r.ReplaceBatch(WithVersion(t.Context(), v), []Request{{ID: "t", Topic: "x"}})
			rig.Want(t, "of a version", err, ErrInvalid)
		}
		if results := replaceBatch(t, r.Scheduler); len(results) != 0 {
			t.Errorf("of none: %+v", results)
		}
		granted := WithGrant(t.Context(), &Grant{Topics: []string{"own.*"}, MaxPending: 2})
		r.Must(Request{ID: "foreign", Topic: "x", Delay: time.Hour})
		results, err := r.ReplaceBatch(granted, []Request{
			{ID: "foreign", Topic: "own.a"}, {ID: "a", Topic: "x"}, {ID: "a", Topic: "own.a"}, {ID: "b", Topic: "own.b"}, {ID: "c", Topic: "own.c"},
		})
		rig.Want(t, "ReplaceBatch", err, nil)
		for i, kind := range []error{ErrExists, ErrNotGranted, nil, nil, ErrQuota} {
			rig.Want(t, fmt.Sprint("result ", i), results[i].Err, kind)
		}
		r.CheckQuotas()
		r.CheckConsistency()
	})
}

// A batch waits for changes of its tasks that are under way, and comes after them.
func TestReplaceBatchOfBusyTasks(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "moved", Topic: "x", Delay: time.Hour})
		r.Must(Request{ID: "cancelled", Topic: "x", Delay: time.Hour})
		d := r.One("acked", "x")
		dead := r.One("dead", "x")
		_, release := r.Faulty.Hold(ledgertest.Apply)
		others := []func() error{
			func() error {
				_, err := r.Reschedule(context.Background(), "moved", Move{Delay: rig.Ptr(time.Minute)})
				return err
			},
			func() error { return r.Cancel(context.Background(), "cancelled") },
			func() error { return r.SettleOne(Verdict{Verb: Ack}, d).Err },
			func() error { return r.SettleOne(Verdict{Verb: Bury}, dead).Err },
			func() error {
				_, err := r.Schedule(context.Background(), Request{ID: "created", Topic: "x"})
				return err
			},
		}
		errs := make(chan error, len(others))
		for _, other := range others {
			go func() { errs <- other() }()
		}
		synctest.Wait()
		ids := []string{"moved", "cancelled", "acked", "dead", "created", "new"}
		requests := make([]Request, len(ids))
		for i, id := range ids {
			requests[i] = Request{ID: id, Topic: "x", Delay: 2 * time.Hour, Supersede: true}
		}
		done := make(chan []Result, 1)
		go func() { done <- replaceBatch(t, r.Scheduler, requests...) }()
		synctest.Wait()
		if len(done) != 0 {
			t.Fatal("it did not wait")
		}
		release()
		for _, res := range <-done {
			if rig.Want(t, res.ID, res.Err, nil); res.Repeated != slices.Contains([]string{"moved", "dead", "created"}, res.ID) {
				t.Errorf("%+v", res)
			}
		}
		for range others {
			rig.Want(t, "another caller", <-errs, nil)
		}
		for _, id := range ids {
			if got := r.MustGet(id); got.State != Pending || !got.Due.Equal(r.Clock.Now().Add(2*time.Hour)) {
				t.Errorf("%s: %+v", id, got)
			}
		}
		r.CheckConsistency()
	})
}

// If the ledger does not answer, the outcome of what was sent is open, and what was not sent is
// taken back: also where a task is being delivered.
func TestReplaceBatchWithoutAnAnswer(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Lease: time.Hour})
		d := r.One("t", "x")
		r.Must(Request{ID: "u", Topic: "x", Delay: time.Hour})
		batch := func(kind error) {
			t.Helper()
			for _, res := range replaceBatch(t, r.Scheduler, Request{ID: "t", Topic: "x", Delay: time.Minute, Supersede: true}, Request{ID: "u", Topic: "x", Delay: time.Minute}, Request{ID: "v", Topic: "x", Delay: time.Minute}) {
				rig.Want(t, res.ID, res.Err, kind)
				if res.Repeated && kind != nil {
					t.Errorf("%+v", res)
				}
			}
		}
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go func() {
			_, _ = r.Schedule(context.Background(), Request{ID: "before", Topic: "other", Delay: time.Hour})
		}()
		synctest.Wait()
		batch(ErrUnavailable)
		release()
		rig.Pass(time.Second)
		r.CheckConsistency()
		for id, revision := range map[string]int64{"t": 1, "u": 1} {
			if got := r.MustGet(id); got.Revision != revision {
				t.Errorf("%s: %+v", id, got)
			}
		}
		rig.Want(t, "Extend", r.SettleOne(Verdict{Verb: Extend}, d).Err, nil)
		_, release = r.Faulty.Hold(ledgertest.Apply)
		batch(ErrUnknown)
		release()
		rig.Pass(time.Second)
		stale(r, "superseded", d)
		_, err := r.Get(t.Context(), "v")
		rig.Want(t, "Get of what was created for no caller", err, ErrNotFound)
		batch(nil)
		r.CheckConsistency()
	})
}

// While replay runs, tasks that it has not met yet are found in the ledger, and replaced.
func TestReplaceBatchWhileReplaying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{})
		var requests []Request
		for i := range 50 {
			id := fmt.Sprint("t", i)
			requests = append(requests, Request{ID: id, Topic: "x", Delay: 2 * time.Hour, Supersede: true})
			if i%5 != 0 {
				r.Must(Request{ID: id, Topic: "x", Delay: time.Hour})
			}
		}
		r.Shut()
		r.Faulty = ledgertest.Wrap(r.Mem)
		_, release := r.Faulty.Hold(ledgertest.Scan)
		var err error
		r.Scheduler, err = Open(t.Context(), r.Faulty, r.Cfg)
		rig.Want(t, "Open", err, nil)
		for i, res := range replaceBatch(t, r.Scheduler, requests...) {
			if rig.Want(t, res.ID, res.Err, nil); res.Repeated != (i%5 != 0) {
				t.Errorf("%+v", res)
			}
		}
		release()
		rig.Pass(time.Second)
		for i, req := range requests {
			if got := r.MustGet(req.ID); got.Revision != map[bool]int64{true: 1, false: 2}[i%5 == 0] {
				t.Errorf("%+v", got)
			}
		}
		r.CheckConsistency()
	})
}

// Any node replaces tasks of all nodes with one batch, and creates those that none has.
func TestReplaceBatchAtAllNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		var requests []Request
		var open []Delivery
		add := func(id string) {
			requests = append(requests, Request{ID: id, Topic: "t", Delay: 2 * time.Hour, Payload: []byte(id), Supersede: true})
		}
		f.Each(func(_ string, _, asked *rig.Node, task Task) {
			if len(requests)%3 == 0 {
				_, err := asked.Fire(ctx, task.ID)
				rig.Want(t, "Fire", err, nil)
				ds := <-asked.StartReserve(ctx, "t", 1, time.Second, 0)
				asked.Want(ds, task.ID)
				open = append(open, ds[0])
			}
			add(task.ID)
		})
		known := len(requests)
		for i := range 20 {
			add(fmt.Sprint("new-", i))
		}
		for _, n := range f.Nodes {
			add(n.IDAt(0))
		}
		for round, n := range f.Nodes {
			for i, res := range replaceBatch(t, n.Scheduler, requests...) {
				if rig.Want(t, res.ID, res.Err, nil); res.ID != requests[i].ID || res.Repeated != (round > 0 || i < known) {
					t.Errorf("%s: %+v", n.Name, res)
				}
			}
			for _, d := range open {
				n.Stale("superseded", d)
			}
		}
		for i, req := range requests {
			got := f.Nodes[i%3].MustGet(req.ID)
			if revision := map[bool]int64{true: 4, false: 3}[i < known]; got.State != Pending || got.Revision < revision || string(got.Payload) != req.ID {
				t.Errorf("%+v", got)
			}
		}
		total := int64(0)
		for _, n := range f.Nodes {
			total += n.Stats().Total.Pending
			n.Check()
		}
		if total != int64(len(requests)) {
			t.Errorf("%d tasks; want %d", total, len(requests))
		}
	})
}

// Nodes that create and replace the same tasks together end with one task of each.
func TestReplaceBatchTogether(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		var requests []Request
		for i := range 100 {
			requests = append(requests, Request{ID: fmt.Sprint("order-", i), Topic: "t", Delay: time.Hour, Supersede: true})
		}
		const rounds = 5
		errs := make(chan error, rounds*len(f.Nodes))
		for _, n := range f.Nodes {
			for range rounds {
				go func() {
					results, err := n.ReplaceBatch(context.Background(), requests)
					for _, res := range results {
						err = errors.Join(err, res.Err)
					}
					errs <- err
				}()
			}
		}
		for range cap(errs) {
			rig.Want(t, "ReplaceBatch", <-errs, nil)
		}
		total := int64(0)
		for _, n := range f.Nodes {
			total += n.Stats().Total.Pending
			n.Check()
		}
		if total != int64(len(requests)) {
			t.Errorf("%d tasks; want %d", total, len(requests))
		}
		for i, req := range requests {
			if got := f.Nodes[i%3].MustGet(req.ID); got.Revision != rounds*int64(len(f.Nodes)) {
				t.Errorf("%s was written %d times", req.ID, got.Revision)
			}
		}
	})
}
