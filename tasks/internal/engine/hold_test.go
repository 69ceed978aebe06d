package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// hold holds a task that has to be holdable.
func hold(r *rig.Rig, id string) Task {
	r.T.Helper()
	task, err := r.Hold(r.T.Context(), id)
	rig.Want(r.T, "Hold "+id, err, nil)
	return task
}

// resume resumes a task that has to exist.
func resume(r *rig.Rig, id string) Task {
	r.T.Helper()
	task, err := r.Resume(r.T.Context(), id)
	rig.Want(r.T, "Resume "+id, err, nil)
	return task
}

// wantHeld wants just these ids to be held, of all topics.
func wantHeld(r *rig.Rig, what string, ids ...string) {
	r.T.Helper()
	list := r.Pages(Query{State: Held, Limit: 1000})
	if got := rig.IDsOf(list); !slices.Equal(got, ids) {
		r.T.Errorf("%s: %q are listed as held; want %q", what, got, ids)
	}
	for _, task := range list {
		if task.State != Held || task.HeldAt.IsZero() {
			r.T.Errorf("%s: %s is %v since %v", what, task.ID, task.State, task.HeldAt)
		}
	}
	if n := r.Stats().Total; n.Held != int64(len(ids)) || n.Pending < n.Held {
		r.T.Errorf("%s: %d of %d pending tasks are counted as held; want %d", what, n.Held, n.Pending, len(ids))
	}
	r.CheckConsistency()
}

// wantLeft wants a task to be held with so much time left.
func wantLeft(r *rig.Rig, what string, task Task, left time.Duration) {
	r.T.Helper()
	if task.State != Held || task.Remaining != left {
		r.T.Errorf("%s: %s is %v, %v are left; want %v", what, task.ID, task.State, task.Remaining, left)
	}
}

// A held task has the time left that it had, whatever happens to the process meanwhile.
func TestHold(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		made := r.Must(Request{ID: "a", Topic: "x", Delay: 30 * time.Minute})
		r.Must(Request{ID: "b", Topic: "x", Delay: time.Hour})
		rig.Pass(10 * time.Minute)
		held := hold(r, "a")
		wantLeft(r, "held", held, 20*time.Minute)
		if held.Revision != 2 || !held.Due.Equal(made.Due) || !held.Next.Equal(made.Due) || !held.HeldAt.Equal(r.Clock.Now()) {
			t.Errorf("held: %+v", held)
		}
		rig.Pass(time.Minute)
		again := hold(r, "a") // an answer may have been lost
		wantLeft(r, "held again", again, 20*time.Minute)
		if again.Revision != 2 || !again.HeldAt.Equal(held.HeldAt) {
			t.Errorf("held again: %+v", again)
		}
		wantHeld(r, "held", "a")
		if f := r.InLedger("a", recovery.Pending); f.Next != record.HeldUntil || f.Due != made.Due.UnixMilli() {
			t.Errorf("in the ledger: %+v", f)
		}

		rig.Pass(5 * time.Hour)
		r.Pull("x", "b")
		for _, end := range []func(){r.Restart, r.Crash} {
			end()
			rig.Pass(time.Hour)
			wantHeld(r, "after a restart", "a")
			wantLeft(r, "after a restart", r.MustGet("a"), 20*time.Minute)
		}
		r.Clock.Step(-3 * time.Hour)
		rig.Pass(2 * time.Second)

		now := r.Clock.Now()
		resumed := resume(r, "a")
		if due := now.Add(20 * time.Minute); resumed.State != Pending || !resumed.Due.Equal(due) || !resumed.Next.Equal(due) || resumed.Revision != 3 || !resumed.HeldAt.IsZero() || resumed.Remaining != 0 {
			t.Errorf("resumed: %+v", resumed)
		}
		if again := resume(r, "a"); again.Revision != 3 || !again.Due.Equal(resumed.Due) {
			t.Errorf("resumed again: %+v", again)
		}
		wantHeld(r, "resumed")
		rig.Pass(20*time.Minute - time.Millisecond)
		r.Pull("x")
		rig.Pass(time.Millisecond)
		if d := r.Pull("x", "a")[0]; d.Attempt != 1 {
			t.Errorf("delivered: %+v", d)
		}
	})
}

// A new deadline ends a hold: nothing of it is left in the record, and the task comes at that time,
// also after a restart.
func TestMoveEndsAHold(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "a", Topic: "x", Delay: time.Hour})
		hold(r, "a")
		moved, err := r.Reschedule(t.Context(), "a", Move{Delay: rig.Ptr(2 * time.Hour)})
		if rig.Want(t, "Reschedule", err, nil); moved.State != Pending || !moved.HeldAt.IsZero() || moved.Remaining != 0 {
			t.Errorf("moved: %+v", moved)
		}
		if f := r.InLedger("a", recovery.Pending); f.Flags&record.Held != 0 || f.HeldAt != 0 || f.HeldNext != 0 {
			t.Errorf("in the ledger: %+v", f)
		}
		r.Crash()
		wantHeld(r, "moved")
		rig.Pass(2*time.Hour - time.Second)
		r.Pull("x")
		rig.Pass(time.Second)
		r.Pull("x", "a")
	})
}

// Which tasks can be held, and what is answered for the others.
func TestHoldOfEachState(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		for _, call := range []func(id string) error{
			func(id string) error { _, err := r.Hold(ctx, id); return err },
			func(id string) error { _, err := r.Resume(ctx, id); return err },
		} {
			rig.Want(t, "of an unknown id", call("nobody"), ErrNotFound)
		}

		d := r.One("a", "x")
		_, err := r.Hold(ctx, "a")
		rig.Want(t, "Hold while it is delivered", err, ErrDelivering)
		if got := resume(r, "a"); got.State != Delivering || got.Revision != 1 {
			t.Errorf("Resume while it is delivered: %+v", got)
		}
		r.SettleOne(Verdict{Verb: Bury, Reason: "no such order"}, d)
		_, err = r.Hold(ctx, "a")
		rig.Want(t, "Hold of a dead task", err, ErrDead)
		_, err = r.Resume(ctx, "a")
		rig.Want(t, "Resume of a dead task", err, ErrDead)

		// Ready, in a topic that is paused. It was late by a minute, and is so again.
		r.MustSetTopic("y", TopicSettings{Paused: true})
		made := r.Must(Request{ID: "b", Topic: "y"})
		rig.Pass(time.Minute)
		wantLeft(r, "a ready task", hold(r, "b"), 0)
		wantHeld(r, "a ready task", "b")
		if c := r.Counts("y"); c.Ready != 0 || !c.ReadyOldest.IsZero() {
			t.Errorf("held: %+v", c)
		}
		rig.Pass(time.Hour)
		if got := resume(r, "b"); !got.Due.Equal(made.Due.Add(time.Hour)) {
			t.Errorf("resumed: due %v; want an hour after %v", got.Due, made.Due)
		}
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(ctx, "y", false), nil)
		rig.Pass(0)
		r.Pull("y", "b")
		if got := r.Counts("y").Lateness.Sum; got != time.Minute {
			t.Errorf("late by %v", got)
		}

		// A precondition is one of these calls, too.
		r.Must(Request{ID: "c", Topic: "x", Delay: time.Hour})
		_, err = r.Hold(WithVersion(ctx, Version{Revision: 7, Created: r.MustGet("c").Created}), "c")
		rig.Want(t, "Hold of another revision", err, ErrRevision)
		hold(r, "c")
		_, err = r.Hold(WithVersion(ctx, Version{Revision: 1, Created: r.MustGet("c").Created}), "c")
		rig.Want(t, "Hold again of another revision", err, ErrRevision)
		_, err = r.Resume(WithGrant(ctx, &Grant{Topics: []string{"y"}}), "c")
		rig.Want(t, "Resume of a topic that is not granted", err, ErrNotFound)
		if same := r.Must(Request{ID: "c", Topic: "x", Delay: time.Hour}); !same.Repeated || same.State != Held {
			t.Errorf("created again: %+v", same)
		}
	})
}

// Hold of a task that is retrying holds until the next attempt, and what counts from the deadline
// stops with it.
func TestHoldWhileRetrying(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAge: 10 * time.Minute}})
		made := r.Must(Request{ID: "a", Topic: "x", MaxLateness: 5 * time.Minute})
		rig.Pass(0)
		fails(r, "a", time.Minute)
		rig.Pass(20 * time.Second)
		wantLeft(r, "held", hold(r, "a"), 40*time.Second)
		retrying(r, "held", "a")
		wantHeld(r, "held", "a")
		rig.Pass(time.Hour)
		r.Restart()
		rig.Pass(0)
		wantHeld(r, "after a restart", "a")
		if got := resume(r, "a"); !got.Due.Equal(made.Due.Add(time.Hour)) || !got.Next.Equal(r.Clock.Now().Add(40*time.Second)) || got.Attempt != 1 {
			t.Errorf("resumed: %+v", got)
		}
		retrying(r, "resumed", "a")
		rig.Pass(40 * time.Second)
		fails(r, "a", time.Minute) // neither too late nor too old
		rig.Pass(time.Minute)
		hold(r, "a")
		rig.Pass(time.Hour)
		resume(r, "a")
		rig.Pass(0)
		r.Pull("x", "a")
	})
}

// A resumed task may be as late as it might have been before, and is then skipped.
func TestHoldAndMaxLateness(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Paused: true})
		for _, id := range []string{"a", "b"} {
			r.Must(Request{ID: id, Topic: "x", Delay: time.Minute, MaxLateness: 3 * time.Minute})
		}
		rig.Pass(30 * time.Second)
		hold(r, "a")
		rig.Pass(90 * time.Second) // b is late by a minute
		hold(r, "b")
		rig.Pass(time.Hour)
		resume(r, "a")
		resume(r, "b")
		rig.Pass(time.Minute) // a is late by 30 s, b by 2 min
		hold(r, "b")
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", false), nil)
		rig.Pass(0)
		r.Ack(r.Pull("x", "a")[0])
		resume(r, "b")
		rig.Pass(61 * time.Second)
		r.Pull("x")
		if got := r.Counts("x").Skipped; got != 1 {
			t.Errorf("%d skipped", got)
		}
	})
}

// A held task in its topic's spread has its place again, and one whose deadline has passed has what
// is left until its place.
func TestHoldAndSpread(t *testing.T) {
	const window = 10 * time.Second
	spreading(t, window, func(t *testing.T, r *rig.Rig, got *comings) {
		due := instant(r, "x", 40, time.Minute)
		early, late := []string{"t0", "t1", "t2"}, []string(nil)
		rig.Pass(30 * time.Second)
		for _, id := range early {
			wantLeft(r, "before the deadline", hold(r, id), 30*time.Second)
		}
		rig.Pass(31 * time.Second)
		left := map[string]time.Duration{}
		for i := 3; i < 40; i++ {
			if task := r.MustGet("t" + string(rune('0'+i%10))); i < 10 && task.State == Pending {
				late = append(late, task.ID)
				left[task.ID] = place(task.ID, due, window).Sub(r.Clock.Now())
				wantLeft(r, "after the deadline", hold(r, task.ID), 0)
			}
		}
		if len(late) == 0 {
			t.Fatal("none was in its window")
		}
		rig.Pass(time.Hour)
		r.Restart()
		r.MustHandle("x", got.handler)
		rig.Pass(time.Second)
		now := r.Clock.Now()
		for _, id := range slices.Concat(early, late) {
			resume(r, id)
			left[id] = max(left[id], 0)
		}
		for _, id := range early {
			left[id] = 30*time.Second + place(id, now, window).Sub(now)
		}
		rig.Pass(time.Minute)
		got.atPlace(40, window)
		for _, d := range got.List() {
			if wanted, was := left[d.ID]; was && (d.at.Sub(now) < wanted || d.at.Sub(now) > wanted+2*time.Millisecond) {
				t.Errorf("%s came after %v; want %v", d.ID, d.at.Sub(now), wanted)
			}
		}
	})
}

// A held task is no misfire, however long its deadline is over when a process reads it.
func TestHoldAndMisfire(t *testing.T) {
	for _, misfire := range []Misfire{MisfireSkip, MisfireCoalesce} {
		rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
			r.MustSetTopic("x", TopicSettings{Misfire: misfire})
			for _, id := range []string{"a", "b"} {
				r.Must(Request{ID: id, Topic: "x", Group: "g", Delay: time.Minute})
				hold(r, id)
			}
			r.Shut()
			rig.Pass(time.Hour)
			r.Open()
			rig.Pass(0)
			wantHeld(r, "after a restart", "a", "b")
			resume(r, "a")
			resume(r, "b")
			rig.Pass(time.Minute)
			r.Pull("x", "a", "b")
		})
	}
}

// Each other change of a held task does what it does to any other.
func TestChangesOfHeldTasks(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		held := func(id string) {
			r.Must(Request{ID: id, Topic: "x", Group: "g", Delay: time.Minute, MaxLateness: time.Minute})
			hold(r, id)
		}
		held("a")
		rig.Pass(time.Hour)
		if got, err := r.Reschedule(ctx, "a", Move{Payload: []byte("1")}); err != nil || got.State != Held || got.Remaining != time.Minute || got.Revision != 3 {
			t.Errorf("another payload: %+v, %v", got, err)
		}
		wantHeld(r, "another payload", "a")
		if got, err := r.Reschedule(ctx, "a", Move{Delay: rig.Ptr(2 * time.Minute)}); err != nil || got.State != Pending || !got.Due.Equal(r.Clock.Now().Add(2*time.Minute)) {
			t.Errorf("moved: %+v, %v", got, err)
		}
		wantHeld(r, "moved")
		hold(r, "a")
		got, err := r.Replace(ctx, Request{ID: "a", Topic: "y", Delay: time.Minute})
		if err != nil || got.State != Pending {
			t.Errorf("replaced: %+v, %v", got, err)
		}
		wantHeld(r, "replaced")
		rig.Want(t, "Cancel", r.Cancel(ctx, "a"), nil)

		held("b")
		rig.Pass(time.Hour)
		if got, err := r.Fire(ctx, "b"); err != nil || !got.Due.Equal(r.Clock.Now()) {
			t.Errorf("fired: %+v, %v", got, err)
		}
		rig.Pass(0)
		r.Ack(r.Pull("x", "b")[0]) // not past its lateness

		held("c")
		rig.Want(t, "Cancel", r.Cancel(ctx, "c"), nil)
		wantHeld(r, "cancelled")
		for _, end := range []func() error{
			func() error { _, err := r.CancelGroup(ctx, "g"); return err },
			func() error { _, err := r.Admin().Purge(ctx, "x"); return err },
			func() error { _, err := r.Admin().KillTopic(ctx, "x", -1); return err },
		} {
			held("d")
			rig.Want(t, "end", end(), nil)
			wantHeld(r, "ended")
		}
		if n, err := r.Admin().Requeue(ctx, "x", Requeue{}); err != nil || n.Requeued != 1 {
			t.Errorf("requeued %+v, %v", n, err)
		}
		rig.Pass(0)
		wantHeld(r, "requeued")
		r.Pull("x", "d")
	})
}

// A held task falls due at no time that is known.
func TestHeldTasksFallDueNever(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "a", Topic: "x", Delay: time.Minute})
		r.Must(Request{ID: "b", Topic: "x", Delay: 10 * time.Minute})
		r.Must(Request{ID: "c", Topic: "x", Delay: 5 * time.Minute})
		begin := r.Clock.Now()
		hold(r, "a")
		if got := rig.IDsOf(r.Pages(Query{Topic: "x", Limit: 1})); !slices.Equal(got, []string{"c", "b", "a"}) {
			t.Errorf("listed %q", got)
		}
		for _, q := range []Query{{DueFrom: begin}, {DueTo: begin.Add(time.Hour)}, {DueFrom: begin, DueTo: begin.Add(time.Hour)}} {
			if got := rig.IDsOf(r.Pages(q)); !slices.Equal(got, []string{"c", "b"}) {
				t.Errorf("%+v lists %q", q, got)
			}
		}
		if got := rig.IDsOf(r.Pages(Query{State: Pending})); len(got) != 3 {
			t.Errorf("pending: %q", got)
		}
		f, err := r.Admin().Forecast(t.Context(), Outlook{Window: time.Minute, Step: time.Minute})
		if err != nil || f.Held != 1 || f.Later != 2 || f.Counts[0] != 0 || f.Ready != 0 {
			t.Errorf("forecast %+v, %v", f, err)
		}
		rig.Pass(2 * time.Minute)
		if c := r.Stats().Total; c.Ready != 0 || !c.ReadyOldest.IsZero() || c.Recent.Max != 0 {
			t.Errorf("after its deadline: %+v", c)
		}
	})
}

// A shift moves the next attempt of a held task with its deadline, also if they differ: once it is
// resumed, both are later.
func TestShiftOfAHeldTask(t *testing.T) {
	t.Parallel()
	for what, before := range map[string]func(r *rig.Rig, retry time.Duration){
		"never tried": func(*rig.Rig, time.Duration) {},
		"failed once": func(r *rig.Rig, retry time.Duration) {
			rig.Pass(time.Hour)
			r.SettleOne(Verdict{Verb: Release, Delay: &retry}, r.Pull("x", "t")[0])
		},
	} {
		t.Run(what, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
				before(r, time.Hour)
				held := hold(r, "t")
				rig.Pass(10 * time.Minute)
				moved := Act{Action: MoveAction, Shift: 2 * time.Hour, IDs: []string{"t"}}
				for range 2 { // the first call only makes the stamp
					got, err := r.Admin().Act(t.Context(), moved)
					rig.Want(t, "Act", err, nil)
					moved.Query.Cursor = got.Cursor
				}
				wantLeft(r, "shifted", r.MustGet("t"), held.Remaining+2*time.Hour)
				resumed := resume(r, "t")
				if later := held.Due.Add(2*time.Hour + 10*time.Minute); !resumed.Due.Equal(later) || !resumed.Next.Equal(r.Clock.Now().Add(3*time.Hour)) {
					t.Errorf("resumed: %+v; want it due at %v and next in 3 h", resumed, later)
				}
				rig.Pass(3*time.Hour - time.Millisecond)
				r.Pull("x")
				rig.Pass(time.Millisecond)
				r.Pull("x", "t")
			})
		})
	}
}
