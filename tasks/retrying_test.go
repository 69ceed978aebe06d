package tasks_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
)

// fails makes an attempt of a task that fails. The next one follows after the delay.
func (r *rig) fails(id string, delay time.Duration) {
	r.t.Helper()
	d := r.pull(r.get(id).Topic, id)[0]
	if a := r.settle(Verdict{Verb: Release, Delay: &delay}, d); a.Err != nil || !a.Recorded {
		r.t.Fatalf("Release of %s: %+v", id, a)
	}
}

// retrying wants just these ids to be retrying, of all topics.
func (r *rig) retrying(what string, ids ...string) {
	r.t.Helper()
	list := r.pages(Query{State: Retrying, Limit: 1000})
	if got := idsOf(list); !slices.Equal(got, ids) {
		r.t.Errorf("%s: %q are listed as retrying; want %q", what, got, ids)
	}
	for _, task := range list {
		if task.State != Pending && task.State != Held || task.Attempt == 0 {
			r.t.Errorf("%s: %s is %v, after %d attempts", what, task.ID, task.State, task.Attempt)
		}
	}
	if n := r.Stats().Total; n.Retrying != int64(len(ids)) || n.Pending < n.Retrying {
		r.t.Errorf("%s: %d of %d pending tasks are counted as retrying; want %d", what, n.Retrying, n.Pending, len(ids))
	}
	r.checkConsistency()
}

// A task is retrying from its first failed attempt on, for as long as it is pending.
func TestRetrying(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.must(Request{ID: "fresh", Topic: "y", Delay: time.Hour})
		r.must(Request{ID: "a", Topic: "x"})
		r.must(Request{ID: "never", Topic: "x", Delay: time.Hour})
		r.retrying("before an attempt")
		r.fails("a", time.Minute)
		r.retrying("after an attempt", "a")
		pass(time.Minute)
		r.retrying("ready again")
		r.fails("a", time.Minute)
		r.retrying("after two attempts", "a")

		_, err := r.Reschedule(t.Context(), "a", Move{Delay: ptr(time.Hour)})
		want(t, "Reschedule", err, nil)
		r.retrying("moved", "a")
		_, err = r.Fire(t.Context(), "a")
		want(t, "Fire", err, nil)
		r.retrying("fired")
		r.fails("a", time.Minute)
		r.restart()
		pass(0)
		r.retrying("after a restart", "a")
		r.crash()
		pass(0)
		r.retrying("after a crash", "a")

		// A PUT makes another task of it, here of another topic.
		_, err = r.Replace(t.Context(), Request{ID: "a", Topic: "z", Delay: time.Minute})
		want(t, "Replace", err, nil)
		r.retrying("replaced")
		pass(time.Minute)
		r.fails("a", time.Minute)
		if r.counts("x").Retrying != 0 || r.counts("z").Retrying != 1 {
			t.Errorf("of the topics: %d, %d", r.counts("x").Retrying, r.counts("z").Retrying)
		}

		// A return is no attempt.
		r.must(Request{ID: "b", Topic: "x"})
		if a := r.settle(Verdict{Verb: Return}, r.pull("x", "b")[0]); a.Err != nil {
			t.Fatal(a.Err)
		}
		pass(0)
		r.retrying("returned", "a")
		r.fails("b", time.Minute)
		r.retrying("released", "a", "b")
		want(t, "Cancel", r.Cancel(t.Context(), "a"), nil)
		r.retrying("cancelled", "b")
		_, err = r.Purge(t.Context(), "x")
		want(t, "Purge", err, nil)
		r.retrying("purged")
	})
}

// A dead task that is requeued has all of its attempts before it.
func TestRequeuedIsNotRetrying(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Retry: Retry{MaxAttempts: 2}})
		r.must(Request{ID: "a", Topic: "x"})
		r.fails("a", time.Minute)
		r.retrying("failed once", "a")
		pass(time.Minute)
		r.fails("a", time.Minute)
		r.retrying("dead")
		_, err := r.Requeue(t.Context(), "x", Requeue{Delay: time.Minute})
		want(t, "Requeue", err, nil)
		r.retrying("requeued")
		pass(time.Minute)
		r.fails("a", time.Minute)
		r.retrying("failed again", "a")
		_, err = r.KillTopic(t.Context(), "x", -1)
		want(t, "KillTopic", err, nil)
		r.retrying("its topic deleted")
	})
}

// The attempt that was under way when the process ended has been made, if it was recorded.
func TestCrashedAttemptIsRetried(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{CountCrashes: true})
		r.must(Request{ID: "a", Topic: "x"})
		r.pull("x", "a")
		r.retrying("under way")
		r.crash()
		pass(0)
		r.retrying("ready again")
		_, err := r.Reschedule(t.Context(), "a", Move{Delay: ptr(time.Hour)})
		want(t, "Reschedule", err, nil)
		r.retrying("moved", "a")
	})
}

// Many retrying tasks are found page by page, among others that are pending.
func TestListRetrying(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		var ids []string
		for i := range 1000 {
			id := fmt.Sprintf("t%04d", i)
			r.must(Request{ID: id, Topic: "x", Group: "g"})
			ids = append(ids, id)
			r.must(Request{ID: fmt.Sprintf("u%04d", i), Topic: []string{"x", "y"}[i%2], Group: "g", Delay: time.Minute})
		}
		pass(0)
		for i, d := range r.pull("x", ids...) {
			r.settle(Verdict{Verb: Release, Delay: ptr(time.Duration(i+1) * time.Second)}, d)
		}
		for _, q := range []Query{{Limit: 1000}, {Topic: "x", Limit: 300}, {Group: "g", Limit: 100}, {Topic: "x", Group: "g", Limit: 7}} {
			q.State = Retrying
			if got := idsOf(r.pages(q)); !slices.Equal(got, ids) {
				t.Errorf("%+v lists %d; want %d in their order", q, len(got), len(ids))
			}
		}
		if got := r.pages(Query{State: Retrying, Topic: "y", Limit: 1000}); len(got) != 0 {
			t.Errorf("of another topic: %q", idsOf(got))
		}
	})
}

// A spooled task may be retrying too, and stays so when the ledger gets it.
func TestRetryingInTheSpool(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		r.away()
		id := r.spooled("x", 0)
		pass(0)
		r.settle(Verdict{Verb: Release, Delay: ptr(time.Hour)}, r.pull("x", id)[0])
		pass(time.Second)
		if n := r.Stats().Total; n.Retrying != 1 {
			t.Errorf("in the spool: %d", n.Retrying)
		}
		r.faulty.Heal()
		r.wantSpool(0, 1)
		r.retrying("in the ledger", id)
	}, memledger.Shards(4))
}

// The count goes with the shard, whether it is handed over or adopted, and the list is of all
// nodes, also of one that cannot tell retrying tasks from pending ones.
func TestRetryingAtAllNodes(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id, fresh := a.create(Request{ID: a.idAt(0), Topic: "x"}), a.create(Request{ID: a.idAt(0), Topic: "y", Delay: time.Minute})
		other := b.create(Request{ID: b.idAt(0), Topic: "z"})
		pass(0)
		fail := func(n *node, topic, id string, delay time.Duration) {
			answers, err := n.Settle(t.Context(), Verdict{Verb: Release, Delay: &delay}, []string{n.pullOwn(topic, id)[0].Receipt()})
			if err != nil || answers[0].Err != nil {
				t.Fatalf("release: %v, %+v", err, answers)
			}
		}
		fail(a, "x", id, time.Hour)
		fail(b, "z", other, 2*time.Hour)
		wantRetrying := func(what string, atA, atB int64) {
			t.Helper()
			for n, want := range map[*node]int64{a: atA, b: atB} {
				if n.dead {
					continue
				}
				if got := n.Stats().Total.Retrying; got != want {
					t.Errorf("%s: %s counts %d; want %d", what, n.name, got, want)
				}
				if got := n.pages(Query{State: Retrying}); !slices.Equal(got, []string{id, other}) {
					t.Errorf("%s: %s lists %q; want %q, %q", what, n.name, got, id, other)
				}
				n.check()
			}
		}
		wantRetrying("at first", 1, 1)

		b.keeps.Store(true)
		want(t, "hand-over", a.handTo(b), nil)
		pass(100 * time.Millisecond)
		wantRetrying("handed over", 0, 2)
		if got := b.get(fresh); got.Attempt != 0 || got.State != Pending {
			t.Errorf("the other task: %+v", got)
		}
		b.crash()
		a.adopt(b)
		wantRetrying("adopted", 2, 0)
	})
}
