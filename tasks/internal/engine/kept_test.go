package engine_test

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
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Tests of TopicSettings.KeepFinished.

// wantKept fails the test unless these, and no others, are kept of a topic: by the list and by the
// counts. None of them may count as dead.
func wantKept(r *rig.Rig, topic string, ids ...string) {
	r.T.Helper()
	page, err := r.List(r.T.Context(), Query{Topic: topic, State: Finished})
	rig.Want(r.T, "List", err, nil)
	c := r.Counts(topic)
	if got := rig.IDsOf(page.Tasks); fmt.Sprint(got) != fmt.Sprint(ids) || c.Finished != int64(len(ids)) || c.Dead != 0 {
		r.T.Fatalf("of %s are kept %v, counted %d, %d dead; want %v", topic, got, c.Finished, c.Dead, ids)
	}
}

// A finished task is read with its outcome for as long as its topic says, across restarts, and
// counts neither as dead nor as pending. Then its id is free.
func TestKeptFinishedTask(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		made := r.Finish("delivered", "x")
		at := r.Clock.Now()
		r.Must(Request{ID: "cancelled", Topic: "x", Delay: time.Minute})
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		r.Must(Request{ID: "skipped", Topic: "x", MaxLateness: time.Second})
		rig.Pass(time.Minute)
		r.Pull("x")
		r.Finish("other", "y")
		for _, again := range []func(){func() {}, r.Restart, r.Crash} {
			again()
			rig.Pass(time.Second)
			wantKept(r, "x", "cancelled", "delivered", "skipped")
			for id, outcome := range map[string]Outcome{
				"delivered": OutcomeDelivered, "cancelled": OutcomeCancelled, "skipped": OutcomeSkipped,
			} {
				if got := r.MustGet(id); got.State != Finished || got.Outcome != outcome || got.Reason != "" || !got.Died.IsZero() {
					t.Errorf("%s: %+v", id, got)
				}
			}
			got := r.MustGet("delivered")
			if !got.Finished.Equal(at.Truncate(time.Millisecond)) || !got.Due.Equal(made.Due) || got.Attempt != 1 || string(got.Payload) != "delivered" {
				t.Errorf("%+v", got)
			}
			_, err := r.Get(t.Context(), "other")
			rig.Want(t, "Get of a task that is not kept", err, ErrNotFound)
			if n := r.Stats().Total; n.Pending+n.Ready+n.Delivering+n.Dead != 0 || n.Finished != 3 || !n.DeadOldest.IsZero() {
				t.Errorf("counts %+v", n)
			}
			r.CheckConsistency()
		}
		for _, topic := range r.Admin().Topics() {
			if topic.Name != "x" && topic.Name != "y" {
				t.Errorf("there is a topic %q", topic.Name)
			}
		}
		rig.Pass(time.Hour)
		wantKept(r, "x")
		for _, id := range []string{"delivered", "cancelled", "skipped"} {
			r.InLedger(id, recovery.Nowhere)
			_, err := r.Get(t.Context(), id)
			rig.Want(t, "Get", err, ErrNotFound)
			r.Must(Request{ID: id, Topic: "x", Delay: time.Hour})
		}
		r.CheckConsistency()
	})
}

// Without the setting a finished task leaves nothing in the ledger, and nothing is allocated for
// the index of those that are kept.
func TestNothingIsKeptWithoutTheSetting(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{})
		r.Finish("delivered", "x")
		r.Must(Request{ID: "cancelled", Topic: "x", Delay: time.Minute})
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		r.Must(Request{ID: "skipped", Topic: "x", MaxLateness: time.Second})
		rig.Pass(time.Minute)
		r.Pull("x")
		rig.Pass(0)
		if pendings, deads := r.Dump(); len(pendings)+len(deads) != 0 {
			t.Errorf("in the ledger: %v, %v", pendings, deads)
		}
		e := r.Engine()
		rig.Mutex(e).Lock()
		defer rig.Mutex(e).Unlock()
		for _, topic := range e.TopicTable.ByNumber {
			if strings.HasSuffix(topic.Name, rig.KeptSuffix) {
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
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		r.Finish("t", "x")
		same, other := Request{ID: "t", Topic: "x", Payload: []byte("t")}, Request{ID: "t", Topic: "x", Payload: []byte("u")}
		for _, again := range []func(){func() {}, r.Restart, r.Crash} {
			again()
			synctest.Wait()
			task, err := r.Schedule(t.Context(), same)
			rig.Want(t, "the same request", err, nil)
			if !task.Repeated || task.State != Finished || task.Outcome != OutcomeDelivered {
				t.Errorf("%+v", task)
			}
			_, err = r.Schedule(t.Context(), other)
			rig.Want(t, "another request", err, ErrExists)
			results, err := r.ScheduleBatch(t.Context(), []Request{same, {ID: "new", Topic: "y", Delay: time.Minute}})
			rig.Want(t, "a batch", err, nil)
			for _, res := range results {
				rig.Want(t, "in a batch: "+res.ID, res.Err, nil)
				if finished := res.ID == "t"; res.Finished != finished {
					t.Errorf("%+v", res)
				}
			}
			results, err = r.ScheduleBatch(t.Context(), []Request{other, {Topic: "y"}})
			rig.Want(t, "a batch", err, nil)
			rig.Want(t, "another request in a batch", results[0].Err, ErrExists)
			rig.Want(t, "a request with an id that Lapse makes", results[1].Err, nil)
		}
		wantKept(r, "x", "t")
		if n := r.Counts("x"); n.Pending+n.Ready != 0 {
			t.Errorf("%+v", n)
		}
		rig.Pass(time.Hour + aFewSweeps)
		task := r.Must(same)
		if task.Repeated || task.State != Pending {
			t.Errorf("%+v", task)
		}
		r.CheckConsistency()
	})
}

// The last attempt of a finished task that is kept is its delivery. Where none was made, only those
// that have failed are told.
func TestDeliveryOfAKeptTask(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{KeepFinished: time.Hour, Retry: Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
		for _, id := range []string{"at once", "later", "cancelled"} {
			r.Must(Request{ID: strings.ReplaceAll(id, " ", "-"), Topic: "x"})
			d := reserveAs(r, "worker-1", "x")
			rig.Pass(10 * time.Millisecond)
			if id == "at once" {
				r.Ack(d)
				continue
			}
			r.SettleOne(Verdict{Verb: Release, Reason: "no stock"}, d)
			if id == "cancelled" {
				rig.Want(t, "Cancel", r.Cancel(t.Context(), id), nil)
				continue
			}
			rig.Pass(2 * time.Second)
			d = reserveAs(r, "worker-2", "x")
			rig.Pass(20 * time.Millisecond)
			r.Ack(d)
		}
		for range 2 {
			attempted(r, "delivered at once", "at-once", "1 delivered by worker-1 in 10ms: ")
			attempted(r, "delivered later", "later", "1 failed by worker-1 in 10ms: no stock", "2 delivered by worker-2 in 20ms: ")
			attempted(r, "cancelled", "cancelled", "1 failed by worker-1 in 10ms: no stock")
			page, err := r.List(t.Context(), Query{Topic: "x", State: Finished})
			rig.Want(t, "List", err, nil)
			if len(page.Tasks) != 3 || len(page.Tasks[1].Attempts) != 2 {
				t.Errorf("listed %+v", page.Tasks)
			}
			r.Restart()
		}
		r.CheckConsistency()
	})
}

// Replace puts a new task in the place of one that is kept, and says that there was none to
// replace.
func TestReplaceOfAKeptTask(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		r.Finish("t", "x")
		_, err := r.Replace(WithVersion(t.Context(), AnyVersion), Request{ID: "t", Topic: "x"})
		rig.Want(t, "Replace of a task that must exist", err, ErrRevision)
		wantKept(r, "x", "t")
		for range 2 {
			task, err := r.Replace(t.Context(), Request{ID: "t", Topic: "x", Payload: []byte("t")})
			rig.Want(t, "Replace", err, nil)
			if task.Repeated || task.State != Pending || task.Revision != 1 {
				t.Errorf("%+v", task)
			}
			wantKept(r, "x")
			r.InLedger("t", recovery.Pending)
			r.Ack(r.Pull("x", "t")[0])
			wantKept(r, "x", "t")
		}
		r.CheckConsistency()
		if n := r.Counts("x"); n.Cancelled != 0 || n.Expired != 0 {
			t.Errorf("counts %+v", n)
		}
	})
}

// A kept task is neither moved, fired, requeued nor deleted, and a cancellation is answered as
// what has become of it, also when memory has forgotten that.
func TestChangesOfAKeptTask(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		r.Finish("delivered", "x")
		r.Must(Request{ID: "cancelled", Topic: "x", Delay: time.Minute})
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		for _, again := range []func(){func() {}, r.Crash} {
			again()
			synctest.Wait()
			ctx := t.Context()
			rig.Want(t, "Cancel of a cancelled task", r.Cancel(ctx, "cancelled"), nil)
			for _, id := range []string{"delivered", "cancelled"} {
				_, err := r.Reschedule(ctx, id, Move{Delay: rig.Ptr(time.Hour)})
				rig.Want(t, "Reschedule", err, ErrNotFound)
				_, err = r.Fire(ctx, id)
				rig.Want(t, "Fire", err, ErrNotFound)
				requeued, err := r.Admin().Requeue(ctx, "x", Requeue{IDs: []string{id}})
				rig.Want(t, "Requeue", err, nil)
				deleted, err := r.Admin().DeleteDead(ctx, "x", []string{id})
				rig.Want(t, "DeleteDead", err, nil)
				if requeued.Requeued != 0 || len(requeued.Unknown) != 1 || deleted != 0 {
					t.Errorf("%+v, deleted %d", requeued, deleted)
				}
			}
			rig.Want(t, "Cancel of a delivered task", r.Cancel(ctx, "delivered"), ErrNotFound)
			all, err := r.Admin().Requeue(ctx, "x", Requeue{})
			rig.Want(t, "Requeue of all", err, nil)
			purged, err := r.Admin().Purge(ctx, "x")
			rig.Want(t, "Purge", err, nil)
			if all.Requeued != 0 || purged.Cancelled != 0 {
				t.Errorf("%+v, %+v", all, purged)
			}
			wantKept(r, "x", "cancelled", "delivered")
		}
		r.CheckConsistency()
	})
}

// What an action does with ids of kept tasks: it passes over them, but a repeated cancellation
// counts as done.
func TestActionsOnKeptTasks(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		r.Finish("delivered", "x")
		r.Must(Request{ID: "cancelled", Topic: "x", Delay: time.Minute})
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		r.Crash()
		synctest.Wait()
		done, err := r.Admin().Act(t.Context(), Act{Action: CancelAction, IDs: []string{"delivered", "cancelled"}})
		rig.Want(t, "Act", err, nil)
		if done.Done != 1 || len(done.Failed) != 1 || done.Failed[0].ID != "delivered" {
			t.Errorf("%+v", done)
		}
		_, err = r.Admin().Act(t.Context(), Act{Action: FireAction, Query: Query{Topic: "x", State: Finished}})
		rig.Want(t, "Act on finished tasks", err, ErrInvalid)
		wantKept(r, "x", "cancelled", "delivered")
	})
}

// Kept tasks go when their topic keeps them no longer: by a shorter time, by 0, or because it is
// deleted. One that died of something else meanwhile stays.
func TestKeptTasksFollowTheSetting(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for _, topic := range []string{"shorter", "none", "deleted"} {
			r.KeepsFor(topic, 30*24*time.Hour)
			r.Finish(topic+"1", topic)
		}
		rig.Pass(time.Hour)
		for _, topic := range []string{"shorter", "none", "deleted"} {
			r.Finish(topic+"2", topic)
			r.Bury(topic, topic+"-dead")
		}
		r.KeepsFor("shorter", 30*time.Minute)
		r.KeepsFor("none", 0)
		rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(t.Context(), "deleted", -1), nil)
		rig.Pass(aFewSweeps)
		for id, place := range map[string]recovery.Place{
			"shorter1": recovery.Nowhere, "none1": recovery.Nowhere, "deleted1": recovery.Nowhere,
			"shorter2": recovery.Dead, "none2": recovery.Nowhere, "deleted2": recovery.Nowhere,
		} {
			r.InLedger(id, place)
		}
		for _, topic := range []string{"shorter", "none", "deleted"} {
			wantDead(r, topic, topic+"-dead")
		}
		if n := r.Stats().Total; n.Finished != 1 || n.Expired != 0 {
			t.Errorf("%+v", n)
		}
		r.CheckConsistency()
	})
}

// While the settings of a topic cannot be read, its finished tasks stay.
func TestKeptWhileSettingsAreIllegible(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		r.Finish("t", "x")
		_, revision, err := r.Mem.Setting(t.Context(), "topic/x")
		rig.Want(t, "Setting", err, nil)
		_, err = r.Mem.PutSetting(t.Context(), "topic/x", revision, []byte("{"))
		rig.Want(t, "PutSetting", err, nil)
		r.Restart()
		rig.Pass(2 * time.Hour)
		r.InLedger("t", recovery.Dead)
		if got := r.MustGet("t"); got.State != Finished {
			t.Errorf("%+v", got)
		}
		r.KeepsFor("x", time.Hour)
		rig.Pass(aFewSweeps)
		r.InLedger("t", recovery.Nowhere)
	})
}

// At most Config.MaxPending finished tasks are kept. Beyond that they are deleted at once.
func TestKeptTasksAreBounded(t *testing.T) {
	rig.Bubble(t, Config{MaxPending: 3}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		for i := range 5 {
			r.Finish(fmt.Sprint("t", i), "x")
			rig.Pass(time.Second)
		}
		wantKept(r, "x", "t0", "t1", "t2")
		r.InLedger("t3", recovery.Nowhere)
		if !r.Log.Has("finished tasks are not kept") {
			t.Error(r.Log.All())
		}
		rig.Pass(time.Hour)
		wantKept(r, "x")
		r.Finish("t5", "x")
		wantKept(r, "x", "t5")
		r.CheckConsistency()
	})
}

// A ledger that takes no new tasks keeps those that finish all the same, and an order that is
// repeated is not done twice.
func TestKeptWithoutRoom(t *testing.T) {
	bubbleOn(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		d := r.One("acked", "x")
		r.Must(Request{ID: "cancelled", Topic: "x", Delay: time.Hour})
		r.Faulty.SetCondition(recovery.ErrFull)
		r.Faulty.SetFull(true)
		rig.Pass(time.Second)
		r.Ack(d)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		wantKept(r, "x", "acked", "cancelled")
		if again := r.Must(Request{ID: "acked", Topic: "x", Payload: []byte(`{}`)}); !again.Repeated || again.State != Finished {
			t.Errorf("repeated: %+v", again)
		}
		r.Crash()
		rig.Pass(time.Second)
		wantKept(r, "x", "acked", "cancelled")
		r.CheckConsistency()
	})
}

// A task that finishes while only the spool has it is not kept; once the ledger has it, it is.
func TestSpooledTasksAreNotKept(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		r.KeepsFor("x", time.Hour)
		r.Away()
		first, second := r.Spooled("x", 0), r.Spooled("x", time.Minute)
		r.Ack(r.Pull("x", first)[0])
		_, err := r.Get(t.Context(), first)
		rig.Want(t, "Get", err, ErrNotFound)
		r.Faulty.Heal()
		rig.Pass(2 * time.Minute)
		r.Ack(r.Pull("x", second)[0])
		wantKept(r.Rig, "x", second)
	})
}

// Acknowledgements of an outage are kept when they are recorded.
func TestKeptAfterAnOutage(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		d := r.One("acked", "x")
		r.Must(Request{ID: "cancelled", Topic: "x", Delay: time.Hour})
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		if a := r.SettleOne(Verdict{Verb: Ack}, d); a.Err != nil || a.Recorded {
			t.Errorf("%+v", a)
		}
		rig.Want(t, "Cancel", r.Cancel(context.Background(), "cancelled"), ErrUnknown)
		r.Faulty.Heal()
		rig.Pass(time.Minute)
		wantKept(r, "x", "acked", "cancelled")
		r.CheckConsistency()
	})
}
