package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// fails makes an attempt of a task that fails. The next one follows after the delay.
func fails(r *rig.Rig, id string, delay time.Duration) {
	r.T.Helper()
	d := r.Pull(r.MustGet(id).Topic, id)[0]
	if a := r.SettleOne(Verdict{Verb: Release, Delay: &delay}, d); a.Err != nil || !a.Recorded {
		r.T.Fatalf("Release of %s: %+v", id, a)
	}
}

// retrying wants just these ids to be retrying, of all topics.
func retrying(r *rig.Rig, what string, ids ...string) {
	r.T.Helper()
	list := r.Pages(Query{State: Retrying, Limit: 1000})
	if got := rig.IDsOf(list); !slices.Equal(got, ids) {
		r.T.Errorf("%s: %q are listed as retrying; want %q", what, got, ids)
	}
	for _, task := range list {
		if task.State != Pending && task.State != Held || task.Attempt == 0 {
			r.T.Errorf("%s: %s is %v, after %d attempts", what, task.ID, task.State, task.Attempt)
		}
	}
	if n := r.Stats().Total; n.Retrying != int64(len(ids)) || n.Pending < n.Retrying {
		r.T.Errorf("%s: %d of %d pending tasks are counted as retrying; want %d", what, n.Retrying, n.Pending, len(ids))
	}
	r.CheckConsistency()
}

// A task is retrying from its first failed attempt on, for as long as it is pending.
func TestRetrying(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "fresh", Topic: "y", Delay: time.Hour})
		r.Must(Request{ID: "a", Topic: "x"})
		r.Must(Request{ID: "never", Topic: "x", Delay: time.Hour})
		retrying(r, "before an attempt")
		fails(r, "a", time.Minute)
		retrying(r, "after an attempt", "a")
		rig.Pass(time.Minute)
		retrying(r, "ready again")
		fails(r, "a", time.Minute)
		retrying(r, "after two attempts", "a")

		_, err := r.Reschedule(t.Context(), "a", Move{Delay: rig.Ptr(time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		retrying(r, "moved", "a")
		_, err = r.Fire(t.Context(), "a")
		rig.Want(t, "Fire", err, nil)
		retrying(r, "fired")
		fails(r, "a", time.Minute)
		r.Restart()
		rig.Pass(0)
		retrying(r, "after a restart", "a")
		r.Crash()
		rig.Pass(0)
		retrying(r, "after a crash", "a")

		// A PUT makes another task of it, here of another topic.
		_, err = r.Replace(t.Context(), Request{ID: "a", Topic: "z", Delay: time.Minute})
		rig.Want(t, "Replace", err, nil)
		retrying(r, "replaced")
		rig.Pass(time.Minute)
		fails(r, "a", time.Minute)
		if r.Counts("x").Retrying != 0 || r.Counts("z").Retrying != 1 {
			t.Errorf("of the topics: %d, %d", r.Counts("x").Retrying, r.Counts("z").Retrying)
		}

		// A return is no attempt.
		r.Must(Request{ID: "b", Topic: "x"})
		if a := r.SettleOne(Verdict{Verb: Return}, r.Pull("x", "b")[0]); a.Err != nil {
			t.Fatal(a.Err)
		}
		rig.Pass(0)
		retrying(r, "returned", "a")
		fails(r, "b", time.Minute)
		retrying(r, "released", "a", "b")
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "a"), nil)
		retrying(r, "cancelled", "b")
		_, err = r.Admin().Purge(t.Context(), "x")
		rig.Want(t, "Purge", err, nil)
		retrying(r, "purged")
	})
}

// A dead task that is requeued has all of its attempts before it.
func TestRequeuedIsNotRetrying(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 2}})
		r.Must(Request{ID: "a", Topic: "x"})
		fails(r, "a", time.Minute)
		retrying(r, "failed once", "a")
		rig.Pass(time.Minute)
		fails(r, "a", time.Minute)
		retrying(r, "dead")
		_, err := r.Admin().Requeue(t.Context(), "x", Requeue{Delay: time.Minute})
		rig.Want(t, "Requeue", err, nil)
		retrying(r, "requeued")
		rig.Pass(time.Minute)
		fails(r, "a", time.Minute)
		retrying(r, "failed again", "a")
		_, err = r.Admin().KillTopic(t.Context(), "x", -1)
		rig.Want(t, "KillTopic", err, nil)
		retrying(r, "its topic deleted")
	})
}

// The attempt that was under way when the process ended has been made, if it was recorded.
func TestCrashedAttemptIsRetried(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{CountCrashes: true})
		r.Must(Request{ID: "a", Topic: "x"})
		r.Pull("x", "a")
		retrying(r, "under way")
		r.Crash()
		rig.Pass(0)
		retrying(r, "ready again")
		_, err := r.Reschedule(t.Context(), "a", Move{Delay: rig.Ptr(time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		retrying(r, "moved", "a")
	})
}

// Many retrying tasks are found page by page, among others that are pending.
func TestListRetrying(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		var ids []string
		for i := range 1000 {
			id := fmt.Sprintf("t%04d", i)
			r.Must(Request{ID: id, Topic: "x", Group: "g"})
			ids = append(ids, id)
			r.Must(Request{ID: fmt.Sprintf("u%04d", i), Topic: []string{"x", "y"}[i%2], Group: "g", Delay: time.Minute})
		}
		rig.Pass(0)
		for i, d := range r.Pull("x", ids...) {
			r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Duration(i+1) * time.Second)}, d)
		}
		for _, q := range []Query{{Limit: 1000}, {Topic: "x", Limit: 300}, {Group: "g", Limit: 100}, {Topic: "x", Group: "g", Limit: 7}} {
			q.State = Retrying
			if got := rig.IDsOf(r.Pages(q)); !slices.Equal(got, ids) {
				t.Errorf("%+v lists %d; want %d in their order", q, len(got), len(ids))
			}
		}
		if got := r.Pages(Query{State: Retrying, Topic: "y", Limit: 1000}); len(got) != 0 {
			t.Errorf("of another topic: %q", rig.IDsOf(got))
		}
	})
}

// A spooled task may be retrying too, and stays so when the ledger gets it.
func TestRetryingInTheSpool(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		r.Away()
		id := r.Spooled("x", 0)
		rig.Pass(0)
		r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)}, r.Pull("x", id)[0])
		rig.Pass(time.Second)
		if n := r.Stats().Total; n.Retrying != 1 {
			t.Errorf("in the spool: %d", n.Retrying)
		}
		r.Faulty.Heal()
		r.WantSpool(0, 1)
		retrying(r.Rig, "in the ledger", id)
	}, memledger.Shards(4))
}

// The count goes with the shard, whether it is handed over or adopted, and the list is of all
// nodes, also of one that cannot tell retrying tasks from pending ones.
func TestRetryingAtAllNodes(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id, fresh := a.Create(Request{ID: a.IDAt(0), Topic: "x"}), a.Create(Request{ID: a.IDAt(0), Topic: "y", Delay: time.Minute})
		other := b.Create(Request{ID: b.IDAt(0), Topic: "z"})
		rig.Pass(0)
		fail := func(n *rig.Node, topic, id string, delay time.Duration) {
			answers, err := n.Settle(t.Context(), Verdict{Verb: Release, Delay: &delay}, []string{n.PullOwn(topic, id)[0].Receipt()})
			if err != nil || answers[0].Err != nil {
				t.Fatalf("release: %v, %+v", err, answers)
			}
		}
		fail(a, "x", id, time.Hour)
		fail(b, "z", other, 2*time.Hour)
		wantRetrying := func(what string, atA, atB int64) {
			t.Helper()
			for n, want := range map[*rig.Node]int64{a: atA, b: atB} {
				if n.Dead {
					continue
				}
				if got := n.Stats().Total.Retrying; got != want {
					t.Errorf("%s: %s counts %d; want %d", what, n.Name, got, want)
				}
				if got := n.Pages(Query{State: Retrying}); !slices.Equal(got, []string{id, other}) {
					t.Errorf("%s: %s lists %q; want %q, %q", what, n.Name, got, id, other)
				}
				n.Check()
			}
		}
		wantRetrying("at first", 1, 1)

		b.Keeps.Store(true)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(100 * time.Millisecond)
		wantRetrying("handed over", 0, 2)
		if got := b.MustGet(fresh); got.Attempt != 0 || got.State != Pending {
			t.Errorf("the other task: %+v", got)
		}
		b.Crash()
		a.Adopt(b)
		wantRetrying("adopted", 2, 0)
	})
}
