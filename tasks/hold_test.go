package tasks_test

import (
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// hold holds a task that has to be holdable.
func (r *rig) hold(id string) Task {
	r.t.Helper()
	task, err := r.Hold(r.t.Context(), id)
	want(r.t, "Hold "+id, err, nil)
	return task
}

// resume resumes a task that has to exist.
func (r *rig) resume(id string) Task {
	r.t.Helper()
	task, err := r.Resume(r.t.Context(), id)
	want(r.t, "Resume "+id, err, nil)
	return task
}

// wantHeld wants just these ids to be held, of all topics.
func (r *rig) wantHeld(what string, ids ...string) {
	r.t.Helper()
	list := r.pages(Query{State: Held, Limit: 1000})
	if got := idsOf(list); !slices.Equal(got, ids) {
		r.t.Errorf("%s: %q are listed as held; want %q", what, got, ids)
	}
	for _, task := range list {
		if task.State != Held || task.HeldAt.IsZero() {
			r.t.Errorf("%s: %s is %v since %v", what, task.ID, task.State, task.HeldAt)
		}
	}
	if n := r.Stats().Total; n.Held != int64(len(ids)) || n.Pending < n.Held {
		r.t.Errorf("%s: %d of %d pending tasks are counted as held; want %d", what, n.Held, n.Pending, len(ids))
	}
	r.checkConsistency()
}

// wantLeft wants a task to be held with so much time left.
func (r *rig) wantLeft(what string, task Task, left time.Duration) {
	r.t.Helper()
	if task.State != Held || task.Remaining != left {
		r.t.Errorf("%s: %s is %v, %v are left; want %v", what, task.ID, task.State, task.Remaining, left)
	}
}

// A held task has the time left that it had, whatever happens to the process meanwhile.
func TestHold(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		made := r.must(Request{ID: "a", Topic: "x", Delay: 30 * time.Minute})
		r.must(Request{ID: "b", Topic: "x", Delay: time.Hour})
		pass(10 * time.Minute)
		held := r.hold("a")
		r.wantLeft("held", held, 20*time.Minute)
		if held.Revision != 2 || !held.Due.Equal(made.Due) || !held.Next.Equal(made.Due) || !held.HeldAt.Equal(r.clock.now()) {
			t.Errorf("held: %+v", held)
		}
		pass(time.Minute)
		again := r.hold("a") // an answer may have been lost
		r.wantLeft("held again", again, 20*time.Minute)
		if again.Revision != 2 || !again.HeldAt.Equal(held.HeldAt) {
			t.Errorf("held again: %+v", again)
		}
		r.wantHeld("held", "a")
		if f := r.inLedger("a", recovery.Pending); f.Next != record.HeldUntil || f.Due != made.Due.UnixMilli() {
			t.Errorf("in the ledger: %+v", f)
		}

		pass(5 * time.Hour)
		r.pull("x", "b")
		for _, end := range []func(){r.restart, r.crash} {
			end()
			pass(time.Hour)
			r.wantHeld("after a restart", "a")
			r.wantLeft("after a restart", r.get("a"), 20*time.Minute)
		}
		r.clock.step(-3 * time.Hour)
		pass(2 * time.Second)

		now := r.clock.now()
		resumed := r.resume("a")
		if due := now.Add(20 * time.Minute); resumed.State != Pending || !resumed.Due.Equal(due) || !resumed.Next.Equal(due) || resumed.Revision != 3 || !resumed.HeldAt.IsZero() || resumed.Remaining != 0 {
			t.Errorf("resumed: %+v", resumed)
		}
		if again := r.resume("a"); again.Revision != 3 || !again.Due.Equal(resumed.Due) {
			t.Errorf("resumed again: %+v", again)
		}
		r.wantHeld("resumed")
		pass(20*time.Minute - time.Millisecond)
		r.pull("x")
		pass(time.Millisecond)
		if d := r.pull("x", "a")[0]; d.Attempt != 1 {
			t.Errorf("delivered: %+v", d)
		}
	})
}

// A new deadline ends a hold: nothing of it is left in the record, and the task comes at that time,
// also after a restart.
func TestMoveEndsAHold(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.must(Request{ID: "a", Topic: "x", Delay: time.Hour})
		r.hold("a")
		moved, err := r.Reschedule(t.Context(), "a", Move{Delay: ptr(2 * time.Hour)})
		if want(t, "Reschedule", err, nil); moved.State != Pending || !moved.HeldAt.IsZero() || moved.Remaining != 0 {
			t.Errorf("moved: %+v", moved)
		}
		if f := r.inLedger("a", recovery.Pending); f.Flags&record.Held != 0 || f.HeldAt != 0 || f.HeldNext != 0 {
			t.Errorf("in the ledger: %+v", f)
		}
		r.crash()
		r.wantHeld("moved")
		pass(2*time.Hour - time.Second)
		r.pull("x")
		pass(time.Second)
		r.pull("x", "a")
	})
}

// Which tasks can be held, and what is answered for the others.
func TestHoldOfEachState(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		ctx := t.Context()
		for _, call := range []func(id string) error{
			func(id string) error { _, err := r.Hold(ctx, id); return err },
			func(id string) error { _, err := r.Resume(ctx, id); return err },
		} {
			want(t, "of an unknown id", call("nobody"), ErrNotFound)
		}

		d := r.one("a", "x")
		_, err := r.Hold(ctx, "a")
		want(t, "Hold while it is delivered", err, ErrDelivering)
		if got := r.resume("a"); got.State != Delivering || got.Revision != 1 {
			t.Errorf("Resume while it is delivered: %+v", got)
		}
		r.settle(Verdict{Verb: Bury, Reason: "no such order"}, d)
		_, err = r.Hold(ctx, "a")
		want(t, "Hold of a dead task", err, ErrDead)
		_, err = r.Resume(ctx, "a")
		want(t, "Resume of a dead task", err, ErrDead)

		// Ready, in a topic that is paused. It was late by a minute, and is so again.
		r.topic("y", TopicSettings{Paused: true})
		made := r.must(Request{ID: "b", Topic: "y"})
		pass(time.Minute)
		r.wantLeft("a ready task", r.hold("b"), 0)
		r.wantHeld("a ready task", "b")
		if c := r.counts("y"); c.Ready != 0 || !c.ReadyOldest.IsZero() {
			t.Errorf("held: %+v", c)
		}
		pass(time.Hour)
		if got := r.resume("b"); !got.Due.Equal(made.Due.Add(time.Hour)) {
			t.Errorf("resumed: due %v; want an hour after %v", got.Due, made.Due)
		}
		want(t, "PauseTopic", r.PauseTopic(ctx, "y", false), nil)
		pass(0)
		r.pull("y", "b")
		if got := r.counts("y").Lateness.Sum; got != time.Minute {
			t.Errorf("late by %v", got)
		}

		// A precondition is one of these calls, too.
		r.must(Request{ID: "c", Topic: "x", Delay: time.Hour})
		_, err = r.Hold(WithVersion(ctx, Version{Revision: 7, Created: r.get("c").Created}), "c")
		want(t, "Hold of another revision", err, ErrRevision)
		r.hold("c")
		_, err = r.Hold(WithVersion(ctx, Version{Revision: 1, Created: r.get("c").Created}), "c")
		want(t, "Hold again of another revision", err, ErrRevision)
		_, err = r.Resume(WithGrant(ctx, &Grant{Topics: []string{"y"}}), "c")
		want(t, "Resume of a topic that is not granted", err, ErrNotFound)
		if same := r.must(Request{ID: "c", Topic: "x", Delay: time.Hour}); !same.Repeated || same.State != Held {
			t.Errorf("created again: %+v", same)
		}
	})
}

// Hold of a task that is retrying holds until the next attempt, and what counts from the deadline
// stops with it.
func TestHoldWhileRetrying(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Retry: Retry{MaxAge: 10 * time.Minute}})
		made := r.must(Request{ID: "a", Topic: "x", MaxLateness: 5 * time.Minute})
		pass(0)
		r.fails("a", time.Minute)
		pass(20 * time.Second)
		r.wantLeft("held", r.hold("a"), 40*time.Second)
		r.retrying("held", "a")
		r.wantHeld("held", "a")
		pass(time.Hour)
		r.restart()
		pass(0)
		r.wantHeld("after a restart", "a")
		if got := r.resume("a"); !got.Due.Equal(made.Due.Add(time.Hour)) || !got.Next.Equal(r.clock.now().Add(40*time.Second)) || got.Attempt != 1 {
			t.Errorf("resumed: %+v", got)
		}
		r.retrying("resumed", "a")
		pass(40 * time.Second)
		r.fails("a", time.Minute) // neither too late nor too old
		pass(time.Minute)
		r.hold("a")
		pass(time.Hour)
		r.resume("a")
		pass(0)
		r.pull("x", "a")
	})
}

// A resumed task may be as late as it might have been before, and is then skipped.
func TestHoldAndMaxLateness(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Paused: true})
		for _, id := range []string{"a", "b"} {
			r.must(Request{ID: id, Topic: "x", Delay: time.Minute, MaxLateness: 3 * time.Minute})
		}
		pass(30 * time.Second)
		r.hold("a")
		pass(90 * time.Second) // b is late by a minute
		r.hold("b")
		pass(time.Hour)
		r.resume("a")
		r.resume("b")
		pass(time.Minute) // a is late by 30 s, b by 2 min
		r.hold("b")
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", false), nil)
		pass(0)
		r.ack(r.pull("x", "a")[0])
		r.resume("b")
		pass(61 * time.Second)
		r.pull("x")
		if got := r.counts("x").Skipped; got != 1 {
			t.Errorf("%d skipped", got)
		}
	})
}

// A held task in its topic's spread has its place again, and one whose deadline has passed has what
// is left until its place.
func TestHoldAndSpread(t *testing.T) {
	const window = 10 * time.Second
	spreading(t, window, func(t *testing.T, r *rig, got *comings) {
		due := r.instant("x", 40, time.Minute)
		early, late := []string{"t0", "t1", "t2"}, []string(nil)
		pass(30 * time.Second)
		for _, id := range early {
			r.wantLeft("before the deadline", r.hold(id), 30*time.Second)
		}
		pass(31 * time.Second)
		left := map[string]time.Duration{}
		for i := 3; i < 40; i++ {
			if task := r.get("t" + string(rune('0'+i%10))); i < 10 && task.State == Pending {
				late = append(late, task.ID)
				left[task.ID] = place(task.ID, due, window).Sub(r.clock.now())
				r.wantLeft("after the deadline", r.hold(task.ID), 0)
			}
		}
		if len(late) == 0 {
			t.Fatal("none was in its window")
		}
		pass(time.Hour)
		r.restart()
		r.handle("x", got.handler)
		pass(time.Second)
		now := r.clock.now()
		for _, id := range slices.Concat(early, late) {
			r.resume(id)
			left[id] = max(left[id], 0)
		}
		for _, id := range early {
			left[id] = 30*time.Second + place(id, now, window).Sub(now)
		}
		pass(time.Minute)
		got.atPlace(40, window)
		for _, d := range got.list() {
			if wanted, was := left[d.ID]; was && (d.at.Sub(now) < wanted || d.at.Sub(now) > wanted+2*time.Millisecond) {
				t.Errorf("%s came after %v; want %v", d.ID, d.at.Sub(now), wanted)
			}
		}
	})
}

// A held task is no misfire, however long its deadline is over when a process reads it.
func TestHoldAndMisfire(t *testing.T) {
	for _, misfire := range []Misfire{MisfireSkip, MisfireCoalesce} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.topic("x", TopicSettings{Misfire: misfire})
			for _, id := range []string{"a", "b"} {
				r.must(Request{ID: id, Topic: "x", Group: "g", Delay: time.Minute})
				r.hold(id)
			}
			r.shut()
			pass(time.Hour)
			r.open()
			pass(0)
			r.wantHeld("after a restart", "a", "b")
			r.resume("a")
			r.resume("b")
			pass(time.Minute)
			r.pull("x", "a", "b")
		})
	}
}

// Each other change of a held task does what it does to any other.
func TestChangesOfHeldTasks(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		ctx := t.Context()
		held := func(id string) {
			r.must(Request{ID: id, Topic: "x", Group: "g", Delay: time.Minute, MaxLateness: time.Minute})
			r.hold(id)
		}
		held("a")
		pass(time.Hour)
		if got, err := r.Reschedule(ctx, "a", Move{Payload: []byte("1")}); err != nil || got.State != Held || got.Remaining != time.Minute || got.Revision != 3 {
			t.Errorf("another payload: %+v, %v", got, err)
		}
		r.wantHeld("another payload", "a")
		if got, err := r.Reschedule(ctx, "a", Move{Delay: ptr(2 * time.Minute)}); err != nil || got.State != Pending || !got.Due.Equal(r.clock.now().Add(2*time.Minute)) {
			t.Errorf("moved: %+v, %v", got, err)
		}
		r.wantHeld("moved")
		r.hold("a")
		got, err := r.Replace(ctx, Request{ID: "a", Topic: "y", Delay: time.Minute})
		if err != nil || got.State != Pending {
			t.Errorf("replaced: %+v, %v", got, err)
		}
		r.wantHeld("replaced")
		want(t, "Cancel", r.Cancel(ctx, "a"), nil)

		held("b")
		pass(time.Hour)
		if got, err := r.Fire(ctx, "b"); err != nil || !got.Due.Equal(r.clock.now()) {
			t.Errorf("fired: %+v, %v", got, err)
		}
		pass(0)
		r.ack(r.pull("x", "b")[0]) // not past its lateness

		held("c")
		want(t, "Cancel", r.Cancel(ctx, "c"), nil)
		r.wantHeld("cancelled")
		for _, end := range []func() error{
			func() error { _, err := r.CancelGroup(ctx, "g"); return err },
			func() error { _, err := r.Purge(ctx, "x"); return err },
			func() error { _, err := r.KillTopic(ctx, "x", -1); return err },
		} {
			held("d")
			want(t, "end", end(), nil)
			r.wantHeld("ended")
		}
		if n, err := r.Requeue(ctx, "x", Requeue{}); err != nil || n.Requeued != 1 {
			t.Errorf("requeued %+v, %v", n, err)
		}
		pass(0)
		r.wantHeld("requeued")
		r.pull("x", "d")
	})
}

// A held task falls due at no time that is known.
func TestHeldTasksFallDueNever(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.must(Request{ID: "a", Topic: "x", Delay: time.Minute})
		r.must(Request{ID: "b", Topic: "x", Delay: 10 * time.Minute})
		r.must(Request{ID: "c", Topic: "x", Delay: 5 * time.Minute})
		begin := r.clock.now()
		r.hold("a")
		if got := idsOf(r.pages(Query{Topic: "x", Limit: 1})); !slices.Equal(got, []string{"c", "b", "a"}) {
			t.Errorf("listed %q", got)
		}
		for _, q := range []Query{{DueFrom: begin}, {DueTo: begin.Add(time.Hour)}, {DueFrom: begin, DueTo: begin.Add(time.Hour)}} {
			if got := idsOf(r.pages(q)); !slices.Equal(got, []string{"c", "b"}) {
				t.Errorf("%+v lists %q", q, got)
			}
		}
		if got := idsOf(r.pages(Query{State: Pending})); len(got) != 3 {
			t.Errorf("pending: %q", got)
		}
		f, err := r.Forecast(t.Context(), Outlook{Window: time.Minute, Step: time.Minute})
		if err != nil || f.Held != 1 || f.Later != 2 || f.Counts[0] != 0 || f.Ready != 0 {
			t.Errorf("forecast %+v, %v", f, err)
		}
		pass(2 * time.Minute)
		if c := r.Stats().Total; c.Ready != 0 || !c.ReadyOldest.IsZero() || c.Recent.Max != 0 {
			t.Errorf("after its deadline: %+v", c)
		}
	})
}

// A shift moves the next attempt of a held task with its deadline, also if they differ: once it is
// resumed, both are later.
func TestShiftOfAHeldTask(t *testing.T) {
	for what, before := range map[string]func(r *rig, retry time.Duration){
		"never tried": func(*rig, time.Duration) {},
		"failed once": func(r *rig, retry time.Duration) {
			pass(time.Hour)
			r.settle(Verdict{Verb: Release, Delay: &retry}, r.pull("x", "t")[0])
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.must(Request{ID: "t", Topic: "x", Delay: time.Hour})
				before(r, time.Hour)
				held := r.hold("t")
				pass(10 * time.Minute)
				moved := Act{Action: MoveAction, Shift: 2 * time.Hour, IDs: []string{"t"}}
				for range 2 { // the first call only makes the stamp
					got, err := r.Act(t.Context(), moved)
					want(t, "Act", err, nil)
					moved.Query.Cursor = got.Cursor
				}
				r.wantLeft("shifted", r.get("t"), held.Remaining+2*time.Hour)
				resumed := r.resume("t")
				if later := held.Due.Add(2*time.Hour + 10*time.Minute); !resumed.Due.Equal(later) || !resumed.Next.Equal(r.clock.now().Add(3*time.Hour)) {
					t.Errorf("resumed: %+v; want it due at %v and next in 3 h", resumed, later)
				}
				pass(3*time.Hour - time.Millisecond)
				r.pull("x")
				pass(time.Millisecond)
				r.pull("x", "t")
			})
		})
	}
}
