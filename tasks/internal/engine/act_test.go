package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// acted calls Act until there is no cursor, and returns what was done in all.
func acted(t *testing.T, next func() *Scheduler, a Act) (all Acted) {
	t.Helper()
	for range rig.MostPages {
		done, err := next().Admin().Act(t.Context(), a)
		if err != nil {
			t.Fatalf("Act(%+v): %v", a, err)
		}
		if !a.Dry && a.Query.Limit > 0 && done.Matched > a.Query.Limit {
			t.Fatalf("Act(%+v) has changed %d tasks", a, done.Matched)
		}
		all.Matched, all.Done, all.Failed = all.Matched+done.Matched, all.Done+done.Done, append(all.Failed, done.Failed...)
		if a.Query.Cursor = done.Cursor; done.Cursor == "" {
			return all
		}
	}
	t.Fatalf("Act(%+v) does not end", a)
	return all
}

// A twin has the same tasks in two places. One gets the acts, the other one call for each task.
type twin struct {
	t     *testing.T
	rng   *rand.Rand
	nodes []*Scheduler // that get the acts, of one fleet
	other *Scheduler
}

func (w *twin) both() []*Scheduler { return []*Scheduler{w.one(), w.other} }

func (w *twin) one() *Scheduler { return pick(w.rng, w.nodes...) }

// fill makes tasks in all states.
func (w *twin) fill(number int) {
	for i := range number {
		r := Request{
			ID:    fmt.Sprintf("%s%03d", pick(w.rng, "order-", "bill:"), i),
			Topic: pick(w.rng, "x", "y"), Group: pick(w.rng, "", "a", "b"),
		}
		attempted := i < number/3
		if !attempted {
			r.Delay = 10*time.Second + time.Duration(i*500)*time.Millisecond
		}
		later := time.Duration(10+w.rng.IntN(100)) * time.Second
		v := Verdict{Verb: pick(w.rng, Bury, Release), Reason: pick(w.rng, "timeout", "refused")}
		if v.Verb == Release {
			v.Delay = &later
		}
		settled := w.rng.IntN(5) > 0
		both := w.both()
		for _, s := range both {
			_, err := s.Schedule(w.t.Context(), r)
			rig.Want(w.t, "Schedule", err, nil)
		}
		if !attempted {
			continue
		}
		rig.Pass(10 * time.Millisecond)
		for _, s := range both {
			ds, err := s.Reserve(w.t.Context(), r.Topic, 1, 0, time.Hour)
			if rig.Want(w.t, "Reserve", err, nil); len(ds) != 1 || ds[0].ID != r.ID {
				w.t.Fatalf("reserved %+v, want %s", ds, r.ID)
			}
			if settled {
				_, err = s.Settle(w.t.Context(), v, []string{ds[0].Receipt()})
				rig.Want(w.t, "Settle", err, nil)
			}
		}
	}
	rig.Pass(40 * time.Second)
}

// everything lists all tasks, by id.
func (w *twin) everything(s *Scheduler) (all []Task) {
	now := func() *Scheduler { return s }
	all, _ = found(w.t, now, Query{Limit: 1000})
	for _, topic := range []string{"x", "y"} {
		dead, _ := found(w.t, now, Query{Topic: topic, State: Dead, Limit: 1000})
		all = append(all, dead...)
	}
	slices.SortFunc(all, func(a, b Task) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// query is a random one that selects by something.
func (w *twin) query(dead bool, one Task) Query {
	q := Query{Topic: pick(w.rng, "x", "y"), Limit: pick(w.rng, 1, 3, 1000)}
	if w.rng.IntN(2) == 0 {
		q.IDPrefix = pick(w.rng, "order-", "bill:", one.ID)
	}
	if w.rng.IntN(3) == 0 {
		q.Error = pick(w.rng, "timeout", "REF")
	}
	if w.rng.IntN(4) == 0 {
		q.ErrorLike = pick(w.rng, "timeout", "refused", "(none)")
	}
	q.Group = pick(w.rng, "", "", "a")
	if dead {
		q.Reason = pick(w.rng, "", Buried, Exhausted)
		return q
	}
	q.State = pick(w.rng, 0, Pending, Retrying, Ready, Delivering)
	if w.rng.IntN(2) == 0 {
		q.Topic, q.DueFrom = "", one.Next.Add(-250*time.Millisecond)
	}
	return q
}

// single does with one task what an act does with many.
func (w *twin) single(a *Act, one *Task) (err error) {
	s, ctx := w.other, w.t.Context()
	switch a.Action {
	case CancelAction:
		if one.State == Dead {
			return ErrDead
		}
		err = s.Cancel(ctx, one.ID)
	case MoveAction:
		if a.Shift != 0 {
			alone := Act{Action: MoveAction, Shift: a.Shift, IDs: []string{one.ID}}
			for range 2 {
				var got Acted
				got, err = s.Admin().Act(ctx, alone)
				if alone.Query.Cursor = got.Cursor; len(got.Failed) > 0 {
					err = got.Failed[0].Err
				}
			}
			if err == nil {
				now := w.get(one.ID)
				if !now.Due.Equal(one.Due.Add(a.Shift)) || !now.Next.Equal(one.Next.Add(a.Shift)) {
					w.t.Errorf("%v: %+v is %+v", a.Shift, one, now)
				}
			}
			return err
		}
		_, err = s.Reschedule(ctx, one.ID, Move{Due: a.Due})
	case FireAction:
		_, err = s.Fire(ctx, one.ID)
	case RequeueAction:
		if one.State != Dead {
			return ErrNotDead
		}
		_, err = s.Admin().Requeue(ctx, one.Topic, Requeue{IDs: []string{one.ID}, Due: a.Due})
	case DeleteAction:
		if one.State != Dead {
			return ErrNotDead
		}
		_, err = s.Admin().DeleteDead(ctx, one.Topic, []string{one.ID})
	}
	return err
}

// run compares random acts with single calls.
func (w *twin) run(acts int) {
	selected, refused := 0, 0
	for n := range acts {
		have := w.everything(w.other)
		if len(have) == 0 {
			break
		}
		now := time.Now()
		a := Act{Action: pick(w.rng, CancelAction, MoveAction, MoveAction, FireAction, RequeueAction, DeleteAction)}
		switch {
		case a.Action == MoveAction && n%2 == 0:
			a.Shift = pick(w.rng, -time.Hour, -time.Second, time.Millisecond, time.Minute, 48*time.Hour)
		case a.Action == MoveAction, a.Action == RequeueAction && n%2 == 0:
			a.Due = now.Add(time.Duration(w.rng.IntN(100)-10) * time.Second)
		}
		q := w.query(a.Action.Dead(), pick(w.rng, have...))
		byID := w.rng.IntN(4) == 0
		if a.Query = q; byID {
			a.Query = Query{}
			for range 5 {
				a.IDs = append(a.IDs, pick(w.rng, have...).ID)
			}
		}
		dry := a
		dry.Dry = true
		counted := acted(w.t, w.one, dry)
		got := acted(w.t, w.one, a)
		q.State = map[bool]State{true: Dead, false: q.State}[a.Action.Dead()]
		failed := make(map[string]error)
		wanted := 0
		for i := range have {
			one := &have[i]
			if byID && !slices.Contains(a.IDs, one.ID) || !byID && !selects(&q, one) {
				continue
			}
			selected++
			if err := w.single(&a, one); err != nil {
				failed[one.ID] = err
				refused++
			} else {
				wanted++
			}
		}
		if got.Done != wanted || got.Matched != wanted+len(failed) || len(got.Failed) != len(failed) {
			w.t.Fatalf("%+v: %+v, want %d done and %v refused", a, got, wanted, failed)
		}
		if counted.Matched != got.Matched {
			w.t.Errorf("%+v: %d were counted, %d found", a, counted.Matched, got.Matched)
		}
		for _, r := range got.Failed {
			if !errors.Is(r.Err, failed[r.ID]) || failed[r.ID] == nil {
				w.t.Errorf("%+v: %s was refused with %v, want %v", a, r.ID, r.Err, failed[r.ID])
			}
		}
		rig.Pass(3 * time.Second)
		w.compare(&a)
	}
	if selected < acts || refused < acts/10 {
		w.t.Errorf("only %d tasks were selected, %d of them refused", selected, refused)
	}
}

// get returns a task as it is at the other.
func (w *twin) get(id string) Task {
	t, err := w.other.Get(w.t.Context(), id)
	rig.Want(w.t, "Get", err, nil)
	return t
}

// compare compares both places. A single call may come a moment later.
func (w *twin) compare(a *Act) {
	w.t.Helper()
	left, right := w.everything(w.one()), w.everything(w.other)
	if !slices.Equal(rig.IDsOf(left), rig.IDsOf(right)) {
		w.t.Fatalf("%+v: %v, want %v", a, rig.IDsOf(left), rig.IDsOf(right))
	}
	near := func(a, b time.Time) bool { return a.Sub(b).Abs() < 2*time.Second }
	for i := range left {
		l, r := &left[i], &right[i]
		if l.State != r.State || !near(l.Due, r.Due) || !near(l.Next, r.Next) || l.Attempt != r.Attempt || l.Topic != r.Topic || l.Group != r.Group {
			w.t.Fatalf("%+v: %+v, want %+v", a, l, r)
		}
	}
}

// An act on many does what single calls do, and a dry one counts what it would do.
func TestActsMatchSingleCalls(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		other := rig.New(t, Config{})
		defer other.Shut()
		w := &twin{t: t, rng: rand.New(rand.NewPCG(seed, 0)), nodes: []*Scheduler{r.Scheduler}, other: other.Scheduler}
		w.fill(200)
		w.run(60)
	})
}

func TestActsMatchSingleCallsAtAllNodes(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		other := rig.New(t, Config{})
		defer other.Shut()
		w := &twin{t: t, rng: rand.New(rand.NewPCG(seed, 0)), other: other.Scheduler}
		for _, n := range f.Nodes {
			w.nodes = append(w.nodes, n.Scheduler)
		}
		w.fill(200)
		w.run(40)
	})
}

// A task that has changed since it was selected is passed over, or refused for what it is now.
func TestActSelectsAgainAtTheOwner(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		replace := func(id, topic, group string) {
			_, err := r.Replace(t.Context(), Request{ID: id, Topic: topic, Group: group, Delay: time.Hour})
			rig.Want(t, "Replace", err, nil)
		}
		q := &query.List{Topic: "x", Group: "g", State: Pending, Filter: query.Filter{To: time.Now().Add(2 * time.Hour).UnixMilli()}}
		for _, c := range []struct {
			id     string
			change func(id string)
			wanted error
		}{
			{"same", func(string) {}, nil},
			{"cancelled", func(id string) { rig.Want(t, "Cancel", r.Cancel(t.Context(), id), nil) }, query.ErrNotSelected},
			{"topic", func(id string) { replace(id, "y", "g") }, query.ErrNotSelected},
			{"group", func(id string) { replace(id, "x", "") }, query.ErrNotSelected},
			{"moved", func(id string) {
				_, err := r.Reschedule(t.Context(), id, Move{Due: time.Now().Add(3 * time.Hour)})
				rig.Want(t, "Reschedule", err, nil)
			}, query.ErrNotSelected},
			{"ready", func(id string) {
				_, err := r.Fire(t.Context(), id)
				rig.Want(t, "Fire", err, nil)
				rig.Pass(time.Second)
			}, query.ErrNotSelected},
			{"again", func(id string) { replace(id, "x", "g") }, nil},
			{"never", nil, ErrNotFound},
		} {
			if c.change != nil {
				r.Must(Request{ID: c.id, Topic: "x", Group: "g", Delay: time.Hour})
				c.change(c.id)
			}
			got := r.Engine().Act(t.Context(), &query.Act{Action: CancelAction, Select: q}, []string{c.id})
			if !errors.Is(got[0], c.wanted) {
				t.Errorf("%s: %v, want %v", c.id, got[0], c.wanted)
			}
		}
	})
}

// A grant's acts are about its topics only.
func TestActsUnderAGrant(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for _, topic := range []string{"a.x", "b.x"} {
			r.Must(Request{ID: topic, Topic: topic, Group: "g", Delay: time.Hour})
			d := deliverOne(r, t, Request{ID: topic + ".dead", Topic: topic})
			r.SettleOne(Verdict{Verb: Bury}, d)
		}
		ctx := WithGrant(t.Context(), &Grant{Topics: []string{"a.*"}})
		_, err := r.Admin().Act(ctx, Act{Action: CancelAction, Query: Query{Topic: "b.x"}})
		rig.Want(t, "Act", err, ErrNotGranted)
		got, err := r.Admin().Act(ctx, Act{Action: FireAction, IDs: []string{"a.x", "b.x"}, Dry: true})
		if rig.Want(t, "Act", err, nil); got.Matched != 2 || got.Done != 0 || len(got.Failed) != 1 || !errors.Is(got.Failed[0].Err, ErrNotFound) {
			t.Errorf("fired %+v", got)
		}
		got, err = r.Admin().Act(ctx, Act{Action: DeleteAction, IDs: []string{"a.x.dead", "b.x.dead"}})
		if rig.Want(t, "Act", err, nil); got.Done != 1 || len(got.Failed) != 1 || got.Failed[0].ID != "b.x.dead" || !errors.Is(got.Failed[0].Err, ErrNotDead) {
			t.Errorf("deleted %+v", got)
		}
		if got := acted(t, func() *Scheduler { return r.Scheduler }, Act{Action: CancelAction, Query: Query{Group: "g"}, Dry: true}); got.Matched != 2 {
			t.Errorf("without a grant: %+v", got)
		}
		got, err = r.Admin().Act(ctx, Act{Action: CancelAction, Query: Query{Group: "g"}})
		if rig.Want(t, "Act", err, nil); got.Done != 1 || len(got.Failed) != 0 {
			t.Errorf("cancelled %+v", got)
		}
		r.MustGet("b.x")
	})
}

// What is wrong with an act is refused, and changes nothing.
func TestWrongActs(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		byTopic, soon := Query{Topic: "x"}, time.Now().Add(time.Minute)
		shift := Act{Action: MoveAction, Shift: time.Second, Query: byTopic}
		begun, err := r.Admin().Act(t.Context(), shift)
		rig.Want(t, "Act", err, nil)
		with := func(q Query, cursor string) Query { q.Cursor = cursor; return q }
		ahead := query.ActCursor{Stamp: uint64(time.Now().Add(4000*time.Second).UnixMilli()) << 22, Digest: query.DigestAct(&shift)}.Encode()
		for field, a := range map[string]Act{
			"action":        {Action: "drop", Query: byTopic},
			"filter":        {Action: CancelAction},
			"filter ":       {Action: DeleteAction, Query: Query{State: Dead}},
			"filter.topic":  {Action: DeleteAction, Query: Query{Reason: Buried}},
			"filter.state":  {Action: CancelAction, Query: Query{Topic: "x", State: Dead}},
			"filter.state ": {Action: DeleteAction, Query: Query{Topic: "x", State: Ready}},
			"filter.node":   {Action: CancelAction, Query: Query{Topic: "x", Node: "a"}},
			"filter.reason": {Action: CancelAction, Query: Query{Topic: "x", Reason: Buried}},
			"ids":           {Action: CancelAction, IDs: []string{}},
			"ids ":          {Action: CancelAction, IDs: make([]string, MaxActs+1)},
			"ids  ":         {Action: CancelAction, IDs: []string{"t"}, Query: byTopic},
			"ids   ":        {Action: CancelAction, IDs: []string{"!"}},
			"due_at":        {Action: MoveAction, Query: byTopic},
			"due_at ":       {Action: MoveAction, Query: byTopic, Due: soon, Shift: time.Second},
			"due_at  ":      {Action: CancelAction, Query: byTopic, Due: soon},
			"due_at   ":     {Action: MoveAction, Query: byTopic, Due: soon.Add(MaxAhead)},
			"shift":         {Action: FireAction, Query: byTopic, Shift: time.Second},
			"shift ":        {Action: MoveAction, Query: byTopic, Shift: MaxAhead + time.Second},
			"limit":         {Action: CancelAction, Query: Query{Topic: "x", Limit: MaxActs + 1}},
			"cursor":        {Action: MoveAction, Shift: time.Minute, Query: with(byTopic, begun.Cursor)},
			"cursor ":       {Action: MoveAction, Shift: time.Second, Query: with(Query{Topic: "y"}, begun.Cursor)},
			"cursor  ":      {Action: MoveAction, Shift: time.Second, Query: with(byTopic, "x")},
			"cursor   ":     {Action: MoveAction, Shift: time.Second, Query: with(byTopic, ahead)},
		} {
			_, err := r.Admin().Act(t.Context(), a)
			e := (*InvalidError)(nil)
			if !errors.As(err, &e) || e.Fields[0].Field != strings.TrimSpace(field) {
				t.Errorf("%s: %v", field, err)
			}
		}
		far := Act{Action: MoveAction, Shift: MaxAhead, Query: byTopic}
		if got := acted(t, func() *Scheduler { return r.Scheduler }, far); len(got.Failed) != 1 || !errors.Is(got.Failed[0].Err, ErrInvalid) {
			t.Errorf("beyond all deadlines: %+v", got)
		}
		if one := r.MustGet("t"); one.Revision != 1 {
			t.Errorf("it was changed: %+v", one)
		}
	})
}

// Of many tasks each call changes and counts a bounded number, and other callers get in between.
func TestActsOnManyAreBounded(t *testing.T) {
	t.Parallel()
	const number = 100_000
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		batch := make([]Request, 0, MaxBatch)
		for i := range number {
			if batch = append(batch, Request{Topic: "x", Delay: time.Hour}); len(batch) == MaxBatch {
				_, err := r.ScheduleBatch(t.Context(), batch)
				rig.Want(t, "ScheduleBatch", err, nil)
				batch = batch[:0]
			}
			_ = i
		}
		a := Act{Action: MoveAction, Due: time.Now().Add(2 * time.Hour), Query: Query{Topic: "x"}}
		calls := 0
		next := func() *Scheduler { calls++; return r.Scheduler }
		counted := a
		counted.Dry = true
		if got := acted(t, next, counted); got.Matched != number || got.Done != 0 || calls != number/query.LooksAtOnce {
			t.Errorf("counted %+v with %d calls", got, calls)
		}
		calls = 0
		// All of them have one deadline, before and after.
		if got := acted(t, next, a); got.Done != number || calls < number/MaxActs || calls > 2*number/MaxActs+1 {
			t.Errorf("moved %d, %d were refused, with %d calls", got.Done, len(got.Failed), calls)
		}
		if c := r.Counts("x"); c.Pending != number {
			t.Errorf("%d are pending", c.Pending)
		}
	})
}
