package tasks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
)

// Tests of TopicSettings.KeepFinished.

// keepsFor sets up how long a topic keeps its finished tasks.
func (r *rig) keepsFor(topic string, keep time.Duration) {
	r.t.Helper()
	r.topic(topic, TopicSettings{KeepFinished: keep})
}

// finish has a task of a topic delivered.
func (r *rig) finish(id, topic string) Task {
	r.t.Helper()
	task := r.must(Request{ID: id, Topic: topic, Payload: []byte(id)})
	r.ack(r.pull(topic, id)[0])
	return task
}

// wantKept fails the test unless these, and no others, are kept of a topic: by the list and by the
// counts. None of them may count as dead.
func (r *rig) wantKept(topic string, ids ...string) {
	r.t.Helper()
	page, err := r.List(r.t.Context(), Query{Topic: topic, State: Finished})
	want(r.t, "List", err, nil)
	c := r.counts(topic)
	if got := idsOf(page.Tasks); fmt.Sprint(got) != fmt.Sprint(ids) || c.Finished != int64(len(ids)) || c.Dead != 0 {
		r.t.Fatalf("of %s are kept %v, counted %d, %d dead; want %v", topic, got, c.Finished, c.Dead, ids)
	}
}

// A finished task is read with its outcome for as long as its topic says, across restarts, and
// counts neither as dead nor as pending. Then its id is free.
func TestKeptFinishedTask(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		made := r.finish("delivered", "x")
		at := r.clock.now()
		r.must(Request{ID: "cancelled", Topic: "x", Delay: time.Minute})
		want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		r.must(Request{ID: "skipped", Topic: "x", MaxLateness: time.Second})
		pass(time.Minute)
		r.pull("x")
		r.finish("other", "y")
		for _, again := range []func(){func() {}, r.restart, r.crash} {
			again()
			pass(time.Second)
			r.wantKept("x", "cancelled", "delivered", "skipped")
			for id, outcome := range map[string]Outcome{
				"delivered": OutcomeDelivered, "cancelled": OutcomeCancelled, "skipped": OutcomeSkipped,
			} {
				if got := r.get(id); got.State != Finished || got.Outcome != outcome || got.Reason != "" || !got.Died.IsZero() {
					t.Errorf("%s: %+v", id, got)
				}
			}
			got := r.get("delivered")
			if !got.Finished.Equal(at.Truncate(time.Millisecond)) || !got.Due.Equal(made.Due) || got.Attempt != 1 || string(got.Payload) != "delivered" {
				t.Errorf("%+v", got)
			}
			_, err := r.Get(t.Context(), "other")
			want(t, "Get of a task that is not kept", err, ErrNotFound)
			if n := r.Stats().Total; n.Pending+n.Ready+n.Delivering+n.Dead != 0 || n.Finished != 3 || !n.DeadOldest.IsZero() {
				t.Errorf("counts %+v", n)
			}
			r.checkConsistency()
		}
		for _, topic := range r.Topics() {
			if topic.Name != "x" && topic.Name != "y" {
				t.Errorf("there is a topic %q", topic.Name)
			}
		}
		pass(time.Hour)
		r.wantKept("x")
		for _, id := range []string{"delivered", "cancelled", "skipped"} {
			r.inLedger(id, recovery.Nowhere)
			_, err := r.Get(t.Context(), id)
			want(t, "Get", err, ErrNotFound)
			r.must(Request{ID: id, Topic: "x", Delay: time.Hour})
		}
		r.checkConsistency()
	})
}

// Without the setting a finished task leaves nothing in the ledger, and nothing is allocated for
// the index of those that are kept.
func TestNothingIsKeptWithoutTheSetting(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{})
		r.finish("delivered", "x")
		r.must(Request{ID: "cancelled", Topic: "x", Delay: time.Minute})
		want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		r.must(Request{ID: "skipped", Topic: "x", MaxLateness: time.Second})
		pass(time.Minute)
		r.pull("x")
		pass(0)
		if pendings, deads := r.dump(); len(pendings)+len(deads) != 0 {
			t.Errorf("in the ledger: %v, %v", pendings, deads)
		}
		e := r.Engine()
		Mutex(e).Lock()
		defer Mutex(e).Unlock()
		for _, topic := range e.TopicTable.ByNumber {
			if strings.HasSuffix(topic.Name, keptSuffix) {
				t.Errorf("there is a topic %q", topic.Name)
			}
		}
		if set, err := json.Marshal(TopicSettings{}.Stored()); err != nil || strings.Contains(string(set), "KeepFinished") {
			t.Errorf("the stored settings are %s, %v", set, err)
		}
	})
}

// A request for a task with the id of one that is kept is a repeat if it is the same, and a
// conflict if it is not: one by one and in a batch, before and after a restart.
func TestRepeatOfAKeptTask(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		r.finish("t", "x")
		same, other := Request{ID: "t", Topic: "x", Payload: []byte("t")}, Request{ID: "t", Topic: "x", Payload: []byte("u")}
		for _, again := range []func(){func() {}, r.restart, r.crash} {
			again()
			synctest.Wait()
			task, err := r.Schedule(t.Context(), same)
			want(t, "the same request", err, nil)
			if !task.Repeated || task.State != Finished || task.Outcome != OutcomeDelivered {
				t.Errorf("%+v", task)
			}
			_, err = r.Schedule(t.Context(), other)
			want(t, "another request", err, ErrExists)
			results, err := r.ScheduleBatch(t.Context(), []Request{same, {ID: "new", Topic: "y", Delay: time.Minute}})
			want(t, "a batch", err, nil)
			for _, res := range results {
				want(t, "in a batch: "+res.ID, res.Err, nil)
				if finished := res.ID == "t"; res.Finished != finished {
					t.Errorf("%+v", res)
				}
			}
			results, err = r.ScheduleBatch(t.Context(), []Request{other, {Topic: "y"}})
			want(t, "a batch", err, nil)
			want(t, "another request in a batch", results[0].Err, ErrExists)
			want(t, "a request with an id that Lapse makes", results[1].Err, nil)
		}
		r.wantKept("x", "t")
		if n := r.counts("x"); n.Pending+n.Ready != 0 {
			t.Errorf("%+v", n)
		}
		pass(time.Hour + aFewSweeps)
		task := r.must(same)
		if task.Repeated || task.State != Pending {
			t.Errorf("%+v", task)
		}
		r.checkConsistency()
	})
}

// The last attempt of a finished task that is kept is its delivery. Where none was made, only those
// that have failed are told.
func TestDeliveryOfAKeptTask(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{KeepFinished: time.Hour, Retry: Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
		for _, id := range []string{"at once", "later", "cancelled"} {
			r.must(Request{ID: strings.ReplaceAll(id, " ", "-"), Topic: "x"})
			d := r.reserveAs("worker-1", "x")
			pass(10 * time.Millisecond)
			if id == "at once" {
				r.ack(d)
				continue
			}
			r.settle(Verdict{Verb: Release, Reason: "no stock"}, d)
			if id == "cancelled" {
				want(t, "Cancel", r.Cancel(t.Context(), id), nil)
				continue
			}
			pass(2 * time.Second)
			d = r.reserveAs("worker-2", "x")
			pass(20 * time.Millisecond)
			r.ack(d)
		}
		for range 2 {
			r.attempted("delivered at once", "at-once", "1 delivered by worker-1 in 10ms: ")
			r.attempted("delivered later", "later", "1 failed by worker-1 in 10ms: no stock", "2 delivered by worker-2 in 20ms: ")
			r.attempted("cancelled", "cancelled", "1 failed by worker-1 in 10ms: no stock")
			page, err := r.List(t.Context(), Query{Topic: "x", State: Finished})
			want(t, "List", err, nil)
			if len(page.Tasks) != 3 || len(page.Tasks[1].Attempts) != 2 {
				t.Errorf("listed %+v", page.Tasks)
			}
			r.restart()
		}
		r.checkConsistency()
	})
}

// Replace puts a new task in the place of one that is kept, and says that there was none to
// replace.
func TestReplaceOfAKeptTask(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		r.finish("t", "x")
		_, err := r.Replace(WithVersion(t.Context(), AnyVersion), Request{ID: "t", Topic: "x"})
		want(t, "Replace of a task that must exist", err, ErrRevision)
		r.wantKept("x", "t")
		for range 2 {
			task, err := r.Replace(t.Context(), Request{ID: "t", Topic: "x", Payload: []byte("t")})
			want(t, "Replace", err, nil)
			if task.Repeated || task.State != Pending || task.Revision != 1 {
				t.Errorf("%+v", task)
			}
			r.wantKept("x")
			r.inLedger("t", recovery.Pending)
			r.ack(r.pull("x", "t")[0])
			r.wantKept("x", "t")
		}
		r.checkConsistency()
		if n := r.counts("x"); n.Cancelled != 0 || n.Expired != 0 {
			t.Errorf("counts %+v", n)
		}
	})
}

// A kept task is neither moved, fired, requeued nor deleted, and a cancellation is answered as
// what has become of it, also when memory has forgotten that.
func TestChangesOfAKeptTask(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		r.finish("delivered", "x")
		r.must(Request{ID: "cancelled", Topic: "x", Delay: time.Minute})
		want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		for _, again := range []func(){func() {}, r.crash} {
			again()
			synctest.Wait()
			ctx := t.Context()
			want(t, "Cancel of a cancelled task", r.Cancel(ctx, "cancelled"), nil)
			for _, id := range []string{"delivered", "cancelled"} {
				_, err := r.Reschedule(ctx, id, Move{Delay: ptr(time.Hour)})
				want(t, "Reschedule", err, ErrNotFound)
				_, err = r.Fire(ctx, id)
				want(t, "Fire", err, ErrNotFound)
				requeued, err := r.Requeue(ctx, "x", Requeue{IDs: []string{id}})
				want(t, "Requeue", err, nil)
				deleted, err := r.DeleteDead(ctx, "x", []string{id})
				want(t, "DeleteDead", err, nil)
				if requeued.Requeued != 0 || len(requeued.Unknown) != 1 || deleted != 0 {
					t.Errorf("%+v, deleted %d", requeued, deleted)
				}
			}
			want(t, "Cancel of a delivered task", r.Cancel(ctx, "delivered"), ErrNotFound)
			all, err := r.Requeue(ctx, "x", Requeue{})
			want(t, "Requeue of all", err, nil)
			purged, err := r.Purge(ctx, "x")
			want(t, "Purge", err, nil)
			if all.Requeued != 0 || purged.Cancelled != 0 {
				t.Errorf("%+v, %+v", all, purged)
			}
			r.wantKept("x", "cancelled", "delivered")
		}
		r.checkConsistency()
	})
}

// What an action does with ids of kept tasks: it passes over them, but a repeated cancellation
// counts as done.
func TestActionsOnKeptTasks(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		r.finish("delivered", "x")
		r.must(Request{ID: "cancelled", Topic: "x", Delay: time.Minute})
		want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		r.crash()
		synctest.Wait()
		done, err := r.Act(t.Context(), Act{Action: CancelAction, IDs: []string{"delivered", "cancelled"}})
		want(t, "Act", err, nil)
		if done.Done != 1 || len(done.Failed) != 1 || done.Failed[0].ID != "delivered" {
			t.Errorf("%+v", done)
		}
		_, err = r.Act(t.Context(), Act{Action: FireAction, Query: Query{Topic: "x", State: Finished}})
		want(t, "Act on finished tasks", err, ErrInvalid)
		r.wantKept("x", "cancelled", "delivered")
	})
}

// Kept tasks go when their topic keeps them no longer: by a shorter time, by 0, or because it is
// deleted. One that died of something else meanwhile stays.
func TestKeptTasksFollowTheSetting(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		for _, topic := range []string{"shorter", "none", "deleted"} {
			r.keepsFor(topic, 30*24*time.Hour)
			r.finish(topic+"1", topic)
		}
		pass(time.Hour)
		for _, topic := range []string{"shorter", "none", "deleted"} {
			r.finish(topic+"2", topic)
			r.bury(topic, topic+"-dead")
		}
		r.keepsFor("shorter", 30*time.Minute)
		r.keepsFor("none", 0)
		want(t, "DeleteTopic", r.DeleteTopic(t.Context(), "deleted", -1), nil)
		pass(aFewSweeps)
		for id, place := range map[string]recovery.Place{
			"shorter1": recovery.Nowhere, "none1": recovery.Nowhere, "deleted1": recovery.Nowhere,
			"shorter2": recovery.Dead, "none2": recovery.Nowhere, "deleted2": recovery.Nowhere,
		} {
			r.inLedger(id, place)
		}
		for _, topic := range []string{"shorter", "none", "deleted"} {
			r.wantDead(topic, topic+"-dead")
		}
		if n := r.Stats().Total; n.Finished != 1 || n.Expired != 0 {
			t.Errorf("%+v", n)
		}
		r.checkConsistency()
	})
}

// While the settings of a topic cannot be read, its finished tasks stay.
func TestKeptWhileSettingsAreIllegible(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		r.finish("t", "x")
		_, revision, err := r.mem.Setting(t.Context(), "topic/x")
		want(t, "Setting", err, nil)
		_, err = r.mem.PutSetting(t.Context(), "topic/x", revision, []byte("{"))
		want(t, "PutSetting", err, nil)
		r.restart()
		pass(2 * time.Hour)
		r.inLedger("t", recovery.Dead)
		if got := r.get("t"); got.State != Finished {
			t.Errorf("%+v", got)
		}
		r.keepsFor("x", time.Hour)
		pass(aFewSweeps)
		r.inLedger("t", recovery.Nowhere)
	})
}

// At most Config.MaxPending finished tasks are kept. Beyond that they are deleted at once.
func TestKeptTasksAreBounded(t *testing.T) {
	bubble(t, Config{MaxPending: 3}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		for i := range 5 {
			r.finish(fmt.Sprint("t", i), "x")
			pass(time.Second)
		}
		r.wantKept("x", "t0", "t1", "t2")
		r.inLedger("t3", recovery.Nowhere)
		if !r.log.has("finished tasks are not kept") {
			t.Error(r.log.all())
		}
		pass(time.Hour)
		r.wantKept("x")
		r.finish("t5", "x")
		r.wantKept("x", "t5")
		r.checkConsistency()
	})
}

// A ledger that takes no new tasks keeps those that finish all the same, and an order that is
// repeated is not done twice.
func TestKeptWithoutRoom(t *testing.T) {
	bubbleOn(t, Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		d := r.one("acked", "x")
		r.must(Request{ID: "cancelled", Topic: "x", Delay: time.Hour})
		r.faulty.SetCondition(recovery.ErrFull)
		r.faulty.SetFull(true)
		pass(time.Second)
		r.ack(d)
		want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		r.wantKept("x", "acked", "cancelled")
		if again := r.must(Request{ID: "acked", Topic: "x", Payload: []byte(`{}`)}); !again.Repeated || again.State != Finished {
			t.Errorf("repeated: %+v", again)
		}
		r.crash()
		pass(time.Second)
		r.wantKept("x", "acked", "cancelled")
		r.checkConsistency()
	})
}

// A task that finishes while only the spool has it is not kept; once the ledger has it, it is.
func TestSpooledTasksAreNotKept(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		r.keepsFor("x", time.Hour)
		r.away()
		first, second := r.spooled("x", 0), r.spooled("x", time.Minute)
		r.ack(r.pull("x", first)[0])
		_, err := r.Get(t.Context(), first)
		want(t, "Get", err, ErrNotFound)
		r.faulty.Heal()
		pass(2 * time.Minute)
		r.ack(r.pull("x", second)[0])
		r.wantKept("x", second)
	})
}

// Acknowledgements of an outage are kept when they are recorded.
func TestKeptAfterAnOutage(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		d := r.one("acked", "x")
		r.must(Request{ID: "cancelled", Topic: "x", Delay: time.Hour})
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		if a := r.settle(Verdict{Verb: Ack}, d); a.Err != nil || a.Recorded {
			t.Errorf("%+v", a)
		}
		want(t, "Cancel", r.Cancel(context.Background(), "cancelled"), ErrUnknown)
		r.faulty.Heal()
		pass(time.Minute)
		r.wantKept("x", "acked", "cancelled")
		r.checkConsistency()
	})
}
