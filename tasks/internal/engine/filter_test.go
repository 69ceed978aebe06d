package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// found reads all pages of a query. Between two pages it may ask another node.
func found(t *testing.T, next func() *Scheduler, q Query) (all []Task, pages int) {
	t.Helper()
	for range rig.MostPages {
		page, err := next().List(t.Context(), q)
		if err != nil {
			t.Fatalf("List(%+v): %v", q, err)
		}
		if n := len(page.Tasks); n > cmp.Or(q.Limit, 100) {
			t.Fatalf("List(%+v): a page of %d tasks", q, n)
		}
		pages++
		all = append(all, page.Tasks...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all, pages
		}
	}
	t.Fatalf("List(%+v) does not end", q)
	return nil, 0
}

// selects is the model of a query.
func selects(q *Query, t *Task) bool {
	in := func(at, from, to time.Time) bool {
		return !at.Before(from) && (to.IsZero() || at.Before(to))
	}
	window := in(t.Next, q.DueFrom, q.DueTo)
	if q.State == Dead {
		window = in(t.Died, q.DiedFrom, q.DiedTo)
	}
	return window && (q.Topic == "" || t.Topic == q.Topic) && (q.Group == "" || t.Group == q.Group) &&
		(q.State == 0 && t.State != Dead || t.State == q.State || q.State == Retrying && t.State == Pending && t.Attempt > 0) && strings.HasPrefix(t.ID, q.IDPrefix) &&
		strings.Contains(strings.ToUpper(t.LastError), strings.ToUpper(q.Error)) &&
		(q.ErrorLike == "" || task.LikeError(t.LastError) == task.LikeError(q.ErrorLike)) &&
		(q.Reason == "" || t.Reason == q.Reason)
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// filtersMatchModel makes random tasks and compares random queries with the model. next returns a
// scheduler to ask.
func filtersMatchModel(t *testing.T, next func() *Scheduler) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	failures := []string{"Timeout after 5s", "Timeout after 77s", "connection refused", "TIMEOUT", "no such order", "élan"}
	for i := range 300 {
		r := Request{
			ID:    fmt.Sprintf("%s%03d", pick(rng, "order-", "order-4", "o", "Order-", "bill:"), i),
			Topic: pick(rng, "x", "x", "y"), Group: pick(rng, "", "a", "b"), Delay: time.Duration(rng.IntN(60_000)) * time.Millisecond,
		}
		if _, err := next().Schedule(t.Context(), r); err != nil {
			t.Fatal("Schedule:", err)
		}
	}
	for range 30 {
		rig.Pass(time.Second)
		ds, err := next().Reserve(t.Context(), pick(rng, "x", "y"), 1+rng.IntN(8), 0, time.Hour)
		if err != nil {
			t.Fatal("Reserve:", err)
		}
		for i := range ds {
			v := Verdict{Verb: pick(rng, Bury, Release), Reason: pick(rng, failures...)}
			if later := time.Duration(rng.IntN(100)) * time.Second; v.Verb == Release {
				v.Delay = &later
			}
			if rng.IntN(6) == 0 {
				continue // stays delivering
			}
			if _, err := next().Settle(t.Context(), v, []string{ds[i].Receipt()}); err != nil {
				t.Fatal("Settle:", err)
			}
		}
	}
	rig.Pass(time.Second)
	everything, _ := found(t, next, Query{Limit: 1000})
	for _, topic := range []string{"x", "y"} {
		dead, _ := found(t, next, Query{Topic: topic, State: Dead, Limit: 1000})
		everything = append(everything, dead...)
	}
	if len(everything) != 300 {
		t.Fatalf("%d tasks", len(everything))
	}
	slices.SortFunc(everything, func(a, b Task) int { return strings.Compare(a.ID, b.ID) })
	some := 0
	for range 400 {
		q := Query{Topic: pick(rng, "", "x", "y"), State: pick(rng, 0, Pending, Retrying, Ready, Delivering, Dead), Limit: pick(rng, 1, 7, 1000)}
		if q.State == Dead {
			q.Topic = pick(rng, "x", "y")
		}
		q.Group = pick(rng, "", "", "a")
		one := pick(rng, everything...)
		if rng.IntN(2) == 0 {
			q.IDPrefix = pick(rng, one.ID, one.ID[:1+rng.IntN(len(one.ID))], "order-", "none")
		}
		if rng.IntN(2) == 0 {
			q.Error = pick(rng, "timeout", "TIME", "refused", "É", "o", "none")
		}
		if rng.IntN(3) == 0 {
			q.ErrorLike = pick(rng, "Timeout after 1234s", "Timeout after #", "connection refused", "timeout", "(none)")
		}
		from, to := &q.DueFrom, &q.DueTo
		at := one.Next
		if q.State == Dead {
			from, to, at = &q.DiedFrom, &q.DiedTo, one.Died
			q.Reason = pick(rng, "", "", Buried, Exhausted)
		}
		if rng.IntN(2) == 0 && !at.IsZero() {
			*from = at.Add(time.Duration(rng.IntN(3)-1) * 500 * time.Microsecond)
		}
		if rng.IntN(2) == 0 && !at.IsZero() {
			*to = at.Add(pick(rng, 600*time.Microsecond, time.Millisecond, 10*time.Second))
		}
		var wanted []Task
		for i := range everything {
			if selects(&q, &everything[i]) {
				wanted = append(wanted, everything[i])
			}
		}
		slices.SortFunc(wanted, func(a, b Task) int {
			if q.State == Dead {
				a.Next, b.Next = a.Died, b.Died
			}
			return query.CompareRefs((&query.Listed{Task: a, At: a.Next.UnixMilli()}).Ref(), (&query.Listed{Task: b, At: b.Next.UnixMilli()}).Ref())
		})
		some += min(1, len(wanted))
		if got, _ := found(t, next, q); !slices.Equal(rig.IDsOf(got), rig.IDsOf(wanted)) {
			t.Errorf("%+v: listed %v, want %v", q, rig.IDsOf(got), rig.IDsOf(wanted))
		}
	}
	// Nothing is looked at behind the end of a window.
	end := slices.MinFunc(everything, func(a, b Task) int { return a.Next.Compare(b.Next) }).Next
	if got, n := found(t, next, Query{DueTo: end, Limit: 1}); got != nil || n != 1 {
		t.Errorf("before the first task %v, on %d pages", rig.IDsOf(got), n)
	}
	if some < 40 {
		t.Errorf("only %d queries have selected tasks", some)
	}
}

// Pages together are what the model selects.
func TestFiltersMatchModel(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		filtersMatchModel(t, func() *Scheduler { return r.Scheduler })
	})
}

func TestFiltersMatchModelAtAllNodes(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		i := 0
		filtersMatchModel(t, func() *Scheduler {
			i++
			return f.Nodes[i%len(f.Nodes)].Scheduler
		})
	})
}

// A call looks at a bounded number of tasks. Few of many are found all the same, page by page, with
// other calls in between.
func TestFilterLooksAtBoundedTasks(t *testing.T) {
	t.Parallel()
	const pages, number = 3, 2*query.LooksAtOnce + query.LooksAtOnce/2
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		var ids []string
		batch := make([]Request, 0, MaxBatch)
		for i := range number {
			id := fmt.Sprintf("t%05d", i)
			if i%12_345 == 77 {
				id = fmt.Sprintf("few%05d", i)
				ids = append(ids, id)
			}
			// Many are due at the same time.
			batch = append(batch, Request{ID: id, Topic: "x", Delay: time.Hour + time.Duration(i/20_000)*time.Second})
			if len(batch) == MaxBatch || i == number-1 {
				_, err := r.ScheduleBatch(t.Context(), batch)
				rig.Want(t, "ScheduleBatch", err, nil)
				batch = batch[:0]
			}
		}
		now := func() *Scheduler { return r.Scheduler }
		for _, limit := range []int{1, 1000} {
			got, n := found(t, now, Query{IDPrefix: "few", Limit: limit})
			if !slices.Equal(rig.IDsOf(got), ids) || limit == 1000 && n != pages {
				t.Errorf("limit %d: %v on %d pages, want %v, with limit 1000 on %d", limit, rig.IDsOf(got), n, ids, pages)
			}
		}
		if got, n := found(t, now, Query{Error: "none"}); got != nil || n != pages {
			t.Errorf("%v on %d pages, want nothing on %d", rig.IDsOf(got), n, pages)
		}
		// The tasks outside of a window are not looked at.
		from := r.MustGet("t40001").Next
		if got, n := found(t, now, Query{IDPrefix: "few", DueFrom: from}); len(got) != 1 || n != 1 {
			t.Errorf("%v on %d pages, want the last one on 1", rig.IDsOf(got), n)
		}
		if got, n := found(t, now, Query{IDPrefix: "few", DueTo: r.MustGet("t20000").Next}); len(got) != 2 || n != 1 {
			t.Errorf("%v on %d pages, want the first two on 1", rig.IDsOf(got), n)
		}
	})
}

// A call reads dead tasks of a bounded size.
func TestFilterReadsBoundedBytes(t *testing.T) {
	t.Parallel()
	const number, size = 80, 500 << 10
	rig.Bubble(t, Config{MaxPayload: 1 << 20}, func(t *testing.T, r *rig.Rig) {
		payload := []byte(`"` + strings.Repeat("p", size) + `"`)
		for i := range number {
			d := deliverOne(r, t, Request{ID: fmt.Sprintf("t%02d", i), Topic: "x", Payload: payload})
			r.SettleOne(Verdict{Verb: Bury, Reason: fmt.Sprint("failure ", i)}, d)
		}
		got, pages := found(t, func() *Scheduler { return r.Scheduler }, Query{Topic: "x", State: Dead, Error: "FAILURE 79"})
		if len(got) != 1 || got[0].ID != "t79" || pages != 3 {
			t.Errorf("%v on %d pages, want t79 on 3", rig.IDsOf(got), pages)
		}
		rig.Pass(time.Minute)
		d := deliverOne(r, t, Request{ID: "later", Topic: "x"})
		r.SettleOne(Verdict{Verb: Bury, Reason: "another"}, d)
		for _, q := range []Query{{DiedFrom: time.Now()}, {DiedTo: time.Now().Add(-time.Hour)}} {
			q.Topic, q.State, q.Error = "x", Dead, "another"
			got, pages := found(t, func() *Scheduler { return r.Scheduler }, q)
			if pages != 1 || len(got) == 1 != q.DiedTo.IsZero() {
				t.Errorf("%+v: %v on %d pages", q, rig.IDsOf(got), pages)
			}
		}
	})
}

// filtersProgress lists dead tasks of several nodes from a ledger that is slower than a call may
// read. hold keeps the ledger from answering.
func filtersProgress(t *testing.T, nodes []*Scheduler, hold func() (release func())) {
	const number = 9
	for i := range number {
		node, id := nodes[i%len(nodes)], fmt.Sprint("t", i)
		_, err := node.Schedule(t.Context(), Request{ID: id, Topic: "x"})
		rig.Want(t, "Schedule", err, nil)
		ds, err := node.Reserve(t.Context(), "x", 1, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		if len(ds) != 1 || ds[0].ID != id {
			t.Fatalf("reserved %+v, want %s", ds, id)
		}
		_, err = node.Settle(t.Context(), Verdict{Verb: Bury, Reason: fmt.Sprint("Failure ", i)}, []string{ds[0].Receipt()})
		rig.Want(t, "Settle", err, nil)
		rig.Pass(time.Second)
	}
	slow := func() *Scheduler {
		time.AfterFunc(2*time.Second, hold())
		return nodes[0]
	}
	middle, err := nodes[0].Get(t.Context(), "t4")
	rig.Want(t, "Get", err, nil)
	first, err := nodes[0].List(t.Context(), Query{Topic: "x", State: Dead, Limit: 2})
	rig.Want(t, "List", err, nil)
	for _, c := range []struct {
		q     Query
		first int // of those that are listed
	}{
		{Query{Reason: Buried}, 0},
		{Query{Error: "FAILURE 8"}, 8},
		{Query{Error: "none"}, number},
		{Query{IDPrefix: "t", DiedFrom: middle.Died}, 4},
		{Query{IDPrefix: "t", Cursor: first.Cursor}, 2},
	} {
		c.q.Topic, c.q.State = "x", Dead
		var wanted []string
		for i := c.first; i < number; i++ {
			wanted = append(wanted, fmt.Sprint("t", i))
		}
		if got, pages := found(t, slow, c.q); !slices.Equal(rig.IDsOf(got), wanted) || pages > number {
			t.Errorf("%+v: %v on %d pages, want %v on %d at most", c.q, rig.IDsOf(got), pages, wanted, number)
		}
	}
}

// Each page leads on, however late the ledger answers.
func TestFilterProgressesWithSlowLedger(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		filtersProgress(t, []*Scheduler{r.Scheduler}, func() func() {
			_, release := r.Faulty.Hold(ledgertest.ListDead)
			return release
		})
	})
}

func TestFilterProgressesWithSlowLedgerAtAllNodes(t *testing.T) {
	patient := Config{AnswerWithin: 10 * time.Second}
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		var nodes []*Scheduler
		for _, n := range f.Nodes {
			nodes = append(nodes, n.Scheduler)
		}
		filtersProgress(t, nodes, func() func() {
			var releases []func()
			for _, n := range f.Nodes {
				releases = append(releases, n.Member.Hold("ListDead"))
			}
			return func() {
				for _, release := range releases {
					release()
				}
			}
		})
	}, patient, patient, patient)
}

func deliverOne(r *rig.Rig, t *testing.T, req Request) Delivery {
	t.Helper()
	r.Must(req)
	return r.Pull(req.Topic, req.ID)[0]
}

func TestFilterFaults(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		now := time.Now()
		for _, c := range []struct {
			q      Query
			fields string
		}{
			{Query{IDPrefix: "-"}, "id_prefix"},
			{Query{IDPrefix: strings.Repeat("i", MaxIDBytes+1)}, "id_prefix"},
			{Query{Error: strings.Repeat("e", MaxErrorPart+1)}, "error"},
			{Query{DueFrom: now, DueTo: now}, "due_to"},
			{Query{DueTo: time.UnixMilli(0)}, "due_to"},
			{Query{Reason: Buried}, "reason"},
			{Query{DiedFrom: now, DiedTo: now.Add(1)}, "died_from died_to"},
			{Query{State: Dead, Topic: "x", DueFrom: now, DueTo: now.Add(1)}, "due_from due_to"},
			{Query{State: Dead, Topic: "x", Reason: "boredom"}, "reason"},
			{Query{State: Dead, Topic: "x", DiedFrom: now, DiedTo: now.Add(-1)}, "died_to"},
			{Query{State: Ready, IDPrefix: "-", Reason: Buried, DueFrom: now, DueTo: now}, "id_prefix reason due_to"},
		} {
			_, err := r.List(t.Context(), c.q)
			var e *InvalidError
			var fields []string
			if errors.As(err, &e) {
				for _, f := range e.Fields {
					fields = append(fields, f.Field)
				}
			}
			if got := strings.Join(fields, " "); got != c.fields {
				t.Errorf("%+v: %v; want faults of %s", c.q, err, c.fields)
			}
		}
		_, err := r.List(t.Context(), Query{
			IDPrefix: strings.Repeat("i", MaxIDBytes), Error: strings.Repeat("e", MaxErrorPart),
			DueFrom: time.Time{}.Add(1), DueTo: now,
		})
		rig.Want(t, "List", err, nil)
	})
}
