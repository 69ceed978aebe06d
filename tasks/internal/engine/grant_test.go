package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Each verb refuses a topic that the grant does not allow. A task of such a topic does not exist
// for it, wherever it is, but that its id is taken. What is about many tasks is about those of the
// other topics.
func TestGrantAtEveryNode(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		limited := rig.OwnTopics(ctx)
		f.Each(func(what string, owner, asked *rig.Node, task Task) {
			foreign := Request{Topic: "foreign", Group: "g", Delay: time.Hour}
			if strings.HasPrefix(task.ID, "order-") {
				foreign.ID = "chosen-" + task.ID
			}
			f := owner.Must(foreign)
			refused := func(verb string, err error) {
				t.Helper()
				rig.Want(t, what+": "+verb, err, ErrNotGranted)
			}
			hidden := func(state string) {
				t.Helper()
				hiddenFrom(limited, t, what+": "+state, asked, f.ID)
			}
			hidden("pending")
			if got := asked.MustGet(f.ID); got.Revision != f.Revision || got.Topic != "foreign" {
				t.Errorf("%s: the task has become %+v", what, got)
			}

			o := owner.Must(Request{Topic: "own.a", Group: "g", Delay: time.Hour})
			page, err := asked.List(limited, Query{Group: "g"})
			rig.Want(t, "List", err, nil)
			if len(page.Tasks) != 1 || page.Tasks[0].ID != o.ID {
				t.Errorf("%s: listed %v", what, page.Tasks)
			}
			gone, err := asked.CancelGroup(limited, "g")
			rig.Want(t, "CancelGroup", err, nil)
			if gone.Cancelled != 1 || asked.MustGet(f.ID).ID != f.ID {
				t.Errorf("%s: cancelled %+v of the group", what, gone)
			}

			_, err = asked.Fire(ctx, f.ID)
			rig.Want(t, "Fire", err, nil)
			hidden("ready")
			ds, err := owner.Reserve(ctx, "foreign", 1, time.Second, time.Minute)
			rig.Want(t, "Reserve", err, nil)
			if len(ds) != 1 {
				t.Fatalf("%s: reserved %d", what, len(ds))
			}
			for _, v := range []Verb{Release, Extend, Bury, Ack} {
				settled, err := asked.Settle(limited, Verdict{Verb: v}, []string{ds[0].Receipt()})
				rig.Want(t, "Settle", err, nil)
				refused(fmt.Sprint("verb ", v), settled[0].Err)
			}
			hidden("delivering")
			settled, err := asked.Settle(ctx, Verdict{Verb: Bury}, []string{ds[0].Receipt()})
			rig.Want(t, "Settle", errors.Join(err, settled[0].Err), nil)
			hidden("dead")
			rig.Want(t, "Cancel", asked.Cancel(ctx, f.ID), nil)
			absentFrom(limited, t, what+": cancelled", asked, f.ID)

			_, err = asked.Schedule(limited, foreign)
			refused("Schedule", err)
			results, err := asked.ScheduleBatch(limited, []Request{foreign, {Topic: "own.b", Delay: time.Hour}})
			rig.Want(t, "ScheduleBatch", err, nil)
			refused("ScheduleBatch", results[0].Err)
			rig.Want(t, "ScheduleBatch", results[1].Err, nil)
			_, err = asked.Reserve(limited, "foreign", 1, 0, 0)
			refused("Reserve", err)
			_, err = asked.List(limited, Query{Topic: "foreign"})
			refused("List", err)
			_, err = asked.Admin().DeadTasks(limited, "foreign", 0, "")
			refused("DeadTasks", err)
			_, err = asked.Admin().Forecast(limited, Outlook{Topic: "foreign", Window: time.Hour, Step: time.Hour})
			refused("Forecast", err)
			_, err = asked.Admin().Purge(limited, "foreign")
			refused("Purge", err)
			_, err = asked.Admin().Requeue(limited, "foreign", Requeue{})
			refused("Requeue", err)
			_, err = asked.Admin().DeleteDead(limited, "foreign", nil)
			refused("DeleteDead", err)
		})
	})
}

// absentFrom checks that calls about an id that create nothing are answered as for one that was
// never given.
func absentFrom(ctx context.Context, t *testing.T, what string, asked *rig.Node, id string) {
	t.Helper()
	for verb, call := range map[string]func(id string) error{
		"Get":        func(id string) error { _, err := asked.Get(ctx, id); return err },
		"Fire":       func(id string) error { _, err := asked.Fire(ctx, id); return err },
		"Hold":       func(id string) error { _, err := asked.Hold(ctx, id); return err },
		"Resume":     func(id string) error { _, err := asked.Resume(ctx, id); return err },
		"Reschedule": func(id string) error { _, err := asked.Reschedule(ctx, id, Move{Payload: []byte("1")}); return err },
		"Cancel":     func(id string) error { return asked.Cancel(ctx, id) },
		"CancelOnce": func(id string) error { return asked.Admin().CancelOnce(ctx, id) },
		"Cancel of a version": func(id string) error {
			return asked.Cancel(WithVersion(ctx, Version{Revision: 7}), id)
		},
		"Act": func(id string) error {
			a, err := asked.Admin().Act(ctx, Act{Action: FireAction, IDs: []string{id}})
			if err == nil && len(a.Failed) == 1 {
				err = a.Failed[0].Err
			}
			return err
		},
	} {
		err, absent := call(id), call("absent-"+id)
		if !errors.Is(err, ErrNotFound) || absent == nil || err.Error() != absent.Error() {
			t.Errorf("%s: %s: %v, and of an id that does not exist %v", what, verb, err, absent)
		}
	}
}

// hiddenFrom is absentFrom of a task that is there: its id is taken, and no more is told.
func hiddenFrom(ctx context.Context, t *testing.T, what string, asked *rig.Node, id string) {
	t.Helper()
	absentFrom(ctx, t, what, asked, id)
	r := Request{ID: id, Topic: "own.a", Delay: time.Hour}
	_, err := asked.Schedule(ctx, r)
	_, replaced := asked.Replace(ctx, r)
	superseding := r
	superseding.Supersede = true
	_, superseded := asked.Replace(ctx, superseding)
	batch, failed := asked.ScheduleBatch(ctx, []Request{r})
	rig.Want(t, what, failed, nil)
	for verb, err := range map[string]error{"Schedule": err, "Replace": replaced, "Replace with Supersede": superseded, "ScheduleBatch": batch[0].Err} {
		if !errors.Is(err, ErrExists) || verb != "ScheduleBatch" && !errors.Is(err, ErrTaken) || err.Error() != ErrExists.Error() {
			t.Errorf("%s: %s: %v", what, verb, err)
		}
	}
}

// A finished task that is kept is as much out of reach as one that waits: a caller who may not use
// its topic cannot replace it, at whichever node it asks.
func TestGrantOfKeptTasks(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		cfg := Config{Topics: map[string]TopicSettings{"foreign": {KeepFinished: time.Hour}, "own.a": {KeepFinished: time.Hour}}}
		a, b := f.Join("a", 1, cfg), f.Join("b", 1, cfg)
		rig.Pass(3 * time.Second)
		ctx, limited := t.Context(), rig.OwnTopics(t.Context())
		for _, topic := range []string{"foreign", "own.a"} {
			a.Must(Request{ID: topic, Topic: topic, Delay: time.Hour})
			rig.Want(t, "Cancel", a.Cancel(ctx, topic), nil)
		}
		for _, asked := range []*rig.Node{a, b} {
			hiddenFrom(limited, t, "kept", asked, "foreign")
			if got := asked.MustGet("foreign"); got.State != Finished || got.Topic != "foreign" {
				t.Errorf("the task has become %+v", got)
			}
		}
		got, err := b.Replace(limited, Request{ID: "own.a", Topic: "own.b", Delay: time.Hour})
		rig.Want(t, "Replace", err, nil)
		if got.State != Pending {
			t.Errorf("the task has become %+v", got)
		}
	})
}

func TestForecastOfAGrant(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for i, topic := range []string{"own.a", "own.b", "other", "own", "own.a"} {
			_, err := r.Schedule(t.Context(), Request{ID: fmt.Sprint("t", i), Topic: topic, Delay: time.Minute})
			rig.Want(t, "Schedule", err, nil)
		}
		f, err := r.Admin().Forecast(rig.OwnTopics(t.Context()), Outlook{Window: time.Hour, Step: time.Hour})
		rig.Want(t, "Forecast", err, nil)
		if f.Counts[0] != 3 {
			t.Errorf("the forecast counts %v, want 3", f.Counts)
		}
	})
}

func TestPurgeByPrefix(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		for i := range 3000 {
			m := f.Nodes[i%2]
			m.Must(Request{Topic: fmt.Sprint("order.", i%700), Delay: time.Hour})
		}
		kept := f.Nodes[1].Must(Request{Topic: "order", Delay: time.Hour})
		got, err := f.Nodes[0].Admin().Purge(t.Context(), "order.*")
		rig.Want(t, "Purge", err, nil)
		if diff := cmp.Diff(Purged{Cancelled: 3000}, got); diff != "" {
			t.Error(diff)
		}
		if page, err := f.Nodes[0].List(t.Context(), Query{}); err != nil || len(page.Tasks) != 1 || page.Tasks[0].ID != kept.ID {
			t.Errorf("%d tasks are left, %v", len(page.Tasks), err)
		}
		for _, bad := range []string{"*", "**", "order.**", "or*der", ".*"} {
			_, err := f.Nodes[0].Admin().Purge(t.Context(), bad)
			rig.Want(t, bad, err, ErrInvalid)
		}
	})
}

// schedules schedules a task on some terms, and returns what came of it.
func schedules(ctx context.Context, r interface {
	Schedule(context.Context, Request) (Task, error)
}, topic string) error {
	_, err := r.Schedule(ctx, Request{Topic: topic, Delay: time.Hour})
	return err
}

// The bounds of a grant count what there is in its topics: also after a restart, and of what
// others have scheduled.
func TestBoundsOfAGrant(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := WithGrant(t.Context(), &Grant{Topics: []string{"own.*"}, MaxTopics: 2, MaxPending: 4})
		rig.Want(t, "before the first count", schedules(t.Context(), r, "own.a"), nil)
		rig.Want(t, "second", schedules(ctx, r, "own.b"), nil)
		rig.Want(t, "a topic too many", schedules(ctx, r, "own.c"), ErrQuota)
		rig.Want(t, "a topic too many", schedules(ctx, r, "own.c"), ErrOverloaded)
		_, err := r.Schedule(ctx, Request{ID: "t", Topic: "own.a", Delay: time.Hour})
		rig.Want(t, "third", err, nil)
		_, err = r.Replace(ctx, Request{ID: "t", Topic: "own.c", Delay: time.Hour})
		rig.Want(t, "a move into a topic too many", err, ErrQuota)
		rig.Want(t, "other callers", schedules(t.Context(), r, "own.b"), nil)
		rig.Want(t, "a task too many", schedules(ctx, r, "own.b"), ErrQuota)
		results, err := r.ScheduleBatch(ctx, []Request{{Topic: "own.a"}})
		rig.Want(t, "ScheduleBatch", errors.Join(err, results[0].Err), ErrQuota)
		rig.Want(t, "other topics", schedules(t.Context(), r, "foreign"), nil)

		r.Restart()
		synctest.Wait() // what replay has not read does not count yet
		rig.Want(t, "a task too many after a restart", schedules(ctx, r, "own.b"), ErrQuota)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t"), nil)
		rig.Want(t, "a topic too many after a restart", schedules(ctx, r, "own.c"), ErrQuota)
		rig.Want(t, "one for the one that is gone", schedules(ctx, r, "own.b"), nil)
		_, err = r.Admin().Purge(t.Context(), "own.a")
		rig.Want(t, "Purge", err, nil)
		rig.Want(t, "a topic for the one that is empty", schedules(ctx, r, "own.c"), nil)
		r.CheckQuotas()
	})
}

// A topic whose tasks are all dead still takes a place.
func TestDeadTopicsCount(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := WithGrant(t.Context(), &Grant{MaxTopics: 1})
		_, err := r.Schedule(ctx, Request{ID: "t", Topic: "a"})
		rig.Want(t, "Schedule", err, nil)
		ds, err := r.Reserve(t.Context(), "a", 1, time.Second, 0)
		rig.Want(t, "Reserve", err, nil)
		settled, err := r.Settle(t.Context(), Verdict{Verb: Bury}, []string{ds[0].Receipt()})
		rig.Want(t, "Settle", errors.Join(err, settled[0].Err), nil)
		rig.Want(t, "while it is dead", schedules(ctx, r, "b"), ErrQuota)
		r.Restart()
		synctest.Wait() // what replay has not read does not count yet
		rig.Want(t, "while it is dead, after a restart", schedules(ctx, r, "b"), ErrQuota)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t"), nil)
		rig.Want(t, "when it is gone", schedules(ctx, r, "b"), nil)
	})
}

// A creation that another node makes is bounded there.
func TestBoundsAmongNodes(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		ctx := WithGrant(t.Context(), &Grant{Topics: []string{"own.*"}, MaxPending: 2})
		for i := range 3 {
			_, err := a.Schedule(ctx, Request{ID: b.ShardID(0).NewID(), Topic: "own.a", Delay: time.Hour})
			if i < 2 {
				rig.Want(t, "Schedule", err, nil)
			} else {
				rig.Want(t, "Schedule", err, ErrQuota)
			}
		}
		results, err := a.ScheduleBatch(ctx, []Request{{ID: b.ShardID(0).NewID(), Topic: "own.a", Delay: time.Hour}})
		rig.Want(t, "ScheduleBatch", errors.Join(err, results[0].Err), ErrQuota)
		rig.Want(t, "at the node itself", schedules(ctx, a, "own.a"), nil)
	})
}

// So many different grants that the first ones are forgotten still count right.
func TestManyBounds(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for i := range 2*engine.AtOnce + 10 {
			rig.Want(t, "Schedule", schedules(t.Context(), r, fmt.Sprint("t", i)), nil)
		}
		for i := range engine.MaxQuotas + 50 {
			ctx := WithGrant(t.Context(), &Grant{Topics: []string{"own", fmt.Sprint("t", i), "t1*"}, MaxTopics: 1})
			rig.Want(t, "Schedule", schedules(ctx, r, "own"), ErrQuota)
		}
		if n := len(r.Engine().TopicTable.Quotas.ByPatterns); n != engine.MaxQuotas {
			t.Errorf("%d are kept", n)
		}
		r.CheckQuotas()
	})
}

// A caller that may only schedule leaves places for topics that are set up.
func TestReservedTopics(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{MaxPending: MaxTopics + MaxBatch}, func(t *testing.T, r *rig.Rig) {
		full := false
		for i := range MaxTopics/MaxBatch + 1 {
			requests := make([]Request, MaxBatch)
			for k := range requests {
				requests[k] = Request{Topic: fmt.Sprint("x", i, ".", k), Delay: time.Hour}
			}
			results, err := r.ScheduleBatch(t.Context(), requests)
			rig.Want(t, "ScheduleBatch", err, nil)
			full = full || errors.Is(results[0].Err, ErrOverloaded)
		}
		if !full || len(r.Engine().TopicTable.ByName) != MaxTopics-ReservedTopics {
			t.Fatalf("there are %d topics", len(r.Engine().TopicTable.ByName))
		}
		rig.Want(t, "one more topic", schedules(t.Context(), r, "new"), ErrOverloaded)
		_, err := r.SetTopic(t.Context(), "real", TopicSettings{Lease: time.Minute}, -1)
		rig.Want(t, "SetTopic", err, nil)
		rig.Want(t, "a task of that", schedules(t.Context(), r, "real"), nil)
		rig.Want(t, "an admin's", schedules(WithGrant(t.Context(), &Grant{Reserved: true}), r, "new"), nil)
		rig.Want(t, "Handle", r.Handle("handled", func(context.Context, *Delivery) error { return nil }), nil)
	})
}

func TestPatterns(t *testing.T) {
	for pattern, topics := range map[string][2][]string{
		"order":   {{"order"}, {"order.x", "orde", "x"}},
		"order.*": {{"order.", "order.x", "order.x.y"}, {"order", "xorder.x"}},
		"*":       {{"a", "order.x"}, nil},
	} {
		g := &Grant{Topics: []string{"never", pattern}}
		if wrong := CheckPattern(pattern); wrong != "" {
			t.Errorf("%q %s", pattern, wrong)
		}
		for i, list := range topics {
			for _, topic := range list {
				if g.Allows(topic) != (i == 0) {
					t.Errorf("%q for %q: %v", pattern, topic, i != 0)
				}
			}
		}
	}
	for _, bad := range []string{"", "**", "a*b", "*a", ".a", "a b", "ä*"} {
		if CheckPattern(bad) == "" {
			t.Errorf("%q is accepted", bad)
		}
	}
	if !(*Grant)(nil).Allows("x") || !new(Grant).Allows("x") {
		t.Error("no grant does not allow everything")
	}
}

// What was decided on a task changes no later one under its id, also if both were created within
// one millisecond.
func TestVersionOfAnotherTask(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		var last time.Time
		for range 2000 { // the clock of a bubble stands still
			task := r.Must(Request{ID: "again", Topic: "x", Delay: time.Hour})
			if !task.Created.After(last) {
				t.Fatalf("one task was created at %v, the next one at %v", last, task.Created)
			}
			if !last.IsZero() {
				_, err := r.Reschedule(WithVersion(t.Context(), Version{Revision: 1, Created: last}), "again", Move{Payload: []byte("1")})
				rig.Want(t, "Reschedule of an earlier task", err, ErrRevision)
			}
			last = task.Created
			rig.Want(t, "Cancel", r.Cancel(WithVersion(t.Context(), Version{Revision: 1, Created: last}), "again"), nil)
		}
	})
}

// A change that names a version is made to that one only, wherever the task is.
func TestVersionAtEveryNode(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		f.Each(func(what string, owner, asked *rig.Node, task Task) {
			is := func(v Task) context.Context {
				return WithVersion(t.Context(), Version{Revision: v.Revision, Created: v.Created})
			}
			other := []context.Context{
				WithVersion(t.Context(), Version{Revision: task.Revision + 1, Created: task.Created}),
				WithVersion(t.Context(), Version{Revision: task.Revision, Created: task.Created.Add(time.Millisecond)}),
			}
			put := Request{ID: task.ID, Topic: task.Topic, Delay: time.Hour, Payload: []byte(`"put"`)}
			for _, ctx := range other {
				_, err := asked.Fire(ctx, task.ID)
				rig.Want(t, what+": Fire", err, ErrRevision)
				_, err = asked.Reschedule(ctx, task.ID, Move{Payload: []byte("1")})
				rig.Want(t, what+": Reschedule", err, ErrRevision)
				_, err = asked.Replace(ctx, put)
				rig.Want(t, what+": Replace", err, ErrRevision)
				rig.Want(t, what+": Cancel", asked.Cancel(ctx, task.ID), ErrRevision)
			}
			if got := asked.MustGet(task.ID); got.Revision != task.Revision {
				t.Errorf("%s: it has become %+v", what, got)
			}
			moved, err := asked.Reschedule(is(task), task.ID, Move{Payload: []byte("1")})
			rig.Want(t, what+": Reschedule", err, nil)
			moved, err = asked.Replace(is(moved), put)
			rig.Want(t, what+": Replace", err, nil)
			if !moved.Repeated {
				t.Errorf("%s: it is not replaced", what)
			}
			_, err = asked.Replace(WithVersion(t.Context(), AnyVersion), put)
			rig.Want(t, what+": Replace of any", err, nil)
			rig.Want(t, what+": Cancel of the version before", asked.Cancel(is(moved), task.ID), ErrRevision)
			rig.Want(t, what+": Cancel", asked.Cancel(is(asked.MustGet(task.ID)), task.ID), nil)
			for _, ctx := range []context.Context{is(moved), WithVersion(t.Context(), AnyVersion)} {
				_, err = asked.Replace(ctx, put)
				rig.Want(t, what+": Replace of what is gone", err, ErrRevision)
				_, err = asked.Fire(ctx, task.ID)
				rig.Want(t, what+": Fire of what is gone", err, ErrNotFound)
			}
		})
	})
}

// What the ledger does not tell of a dead task might be that it is foreign: nothing is told of it.
func TestGrantDuringOutage(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("foreign", "t")
		limited := rig.OwnTopics(t.Context())
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.GetDead, Times: -1})
		_, err := r.Reschedule(limited, "t", Move{Payload: []byte("1")})
		rig.Want(t, "Reschedule", err, ErrUnavailable)
		_, err = r.Schedule(limited, Request{ID: "t", Topic: "own.a"})
		rig.Want(t, "Schedule", err, ErrUnavailable)
		r.Faulty.Heal()
		_, err = r.Reschedule(limited, "t", Move{Payload: []byte("1")})
		rig.Want(t, "Reschedule", err, ErrNotFound)
		_, err = r.Schedule(limited, Request{ID: "t", Topic: "own.a"})
		rig.Want(t, "Schedule", err, ErrTaken)
	})
}

// A cancelled task keeps its topic from a caller of others, also once the topic is forgotten and
// another one has its number.
func TestGrantOfAForgottenTopic(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{MaxPending: MaxTopics}, func(t *testing.T, r *rig.Rig) {
		var ids []string
		for len(ids) < MaxTopics-ReservedTopics {
			var batch []Request
			for len(batch) < MaxBatch && len(ids) < MaxTopics-ReservedTopics {
				id := fmt.Sprint("foreign.", len(ids))
				ids, batch = append(ids, id), append(batch, Request{ID: id, Topic: id, Delay: time.Hour})
			}
			_, err := r.ScheduleBatch(t.Context(), batch)
			rig.Want(t, "ScheduleBatch", err, nil)
		}
		_, err := r.Admin().Purge(t.Context(), "foreign.*")
		rig.Want(t, "Purge", err, nil)
		for i := range 20 { // not all ends are remembered
			r.Must(Request{Topic: fmt.Sprint("own.", i), Delay: time.Hour})
		}
		for _, id := range ids {
			rig.Want(t, id, r.Cancel(rig.OwnTopics(t.Context()), id), ErrNotFound)
		}
	})
}
