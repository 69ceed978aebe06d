package engine_test

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A task that is created held has what was asked for left, is counted, and waits for ever, also
// after a restart. Resumed, it is delivered when that has passed.
func TestHeldRequest(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		rig.Pass(300 * time.Microsecond) // of a millisecond
		created := r.Clock.Now()
		wantLeft(r, "nothing", r.Must(Request{ID: "a", Topic: "x", Held: true}), 0)
		wantLeft(r, "a delay", r.Must(Request{ID: "b", Topic: "x", Held: true, Delay: time.Hour}), time.Hour)
		got := r.Must(Request{ID: "c", Topic: "x", Held: true, Due: created.Truncate(time.Millisecond).Add(time.Minute)})
		if got.State != Held || got.Remaining > time.Minute || got.Remaining < time.Minute-time.Millisecond {
			t.Errorf("a deadline: %+v", got)
		}
		wantLeft(r, "a past deadline", r.Must(Request{ID: "d", Topic: "x", Held: true, Due: created.Add(-time.Hour)}), 0)
		results, err := r.ScheduleBatch(ctx, []Request{{ID: "e", Topic: "x", Held: true, Delay: time.Second}, {ID: "f", Topic: "x", Delay: 24 * time.Hour}})
		rig.Want(t, "ScheduleBatch", err, nil)
		rig.Want(t, "a result", results[0].Err, nil)
		rig.Want(t, "a result", results[1].Err, nil)
		replaced, err := r.Replace(ctx, Request{ID: "f", Topic: "x", Held: true, Delay: time.Minute})
		rig.Want(t, "Replace", err, nil)
		if wantLeft(r, "replaced", replaced, time.Minute); !replaced.Repeated || replaced.Revision != 2 {
			t.Errorf("replaced: %+v", replaced)
		}
		all := []string{"a", "b", "c", "d", "e", "f"}
		wantHeld(r, "created", all...)
		for _, end := range []func(){r.Restart, r.Crash, func() {}} {
			end()
			rig.Pass(5 * time.Hour)
			wantHeld(r, "much later", all...)
			r.Pull("x")
		}
		wantLeft(r, "much later", r.MustGet("b"), time.Hour)

		resume(r, "a")
		resume(r, "b")
		_, err = r.Reschedule(ctx, "c", Move{Delay: rig.Ptr(2 * time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		_, err = r.Fire(ctx, "d")
		rig.Want(t, "Fire", err, nil)
		replaced, err = r.Replace(ctx, Request{ID: "e", Topic: "x", Delay: 3 * time.Hour})
		if rig.Want(t, "Replace", err, nil); replaced.State != Pending {
			t.Errorf("replaced: %+v", replaced)
		}
		wantHeld(r, "resumed", "f")
		rig.Pass(time.Millisecond)
		for _, d := range r.Pull("x", "a", "d") {
			r.Ack(d)
		}
		for _, id := range []string{"b", "c", "e"} {
			rig.Pass(time.Hour)
			r.Ack(r.Pull("x", id)[0])
		}
		rig.Want(t, "Cancel", r.Cancel(ctx, "f"), nil)
		wantHeld(r, "at the end")
	})
}

// Whether a request is held is a part of it. Requests that are not held have the fingerprints that
// they had before.
func TestFingerprintsOfRequests(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		one := Request{ID: "a", Topic: "x", Delay: time.Hour, Payload: []byte("1")}
		two := Request{ID: "b", Topic: "x", Due: time.Unix(1e9, 0), Group: "g", Headers: map[string]string{"k": "v"}}
		for print, req := range map[uint64]Request{0xe8c5089a11a81103: one, 0x25a2fbe64bbf2e8e: two} {
			req.Supersede = true // which is no part of it
			r.Must(req)
			if got := r.InLedger(req.ID, recovery.Pending).Fingerprint; got != print {
				t.Errorf("%s: %#x; want %#x", req.ID, got, print)
			}
			req.Held = true
			_, err := r.Schedule(ctx, req)
			rig.Want(t, "Schedule of a held one", err, ErrExists)
		}
		three := Request{ID: "c", Topic: "x", Held: true}
		r.Must(three)
		if again := r.Must(three); !again.Repeated || again.State != Held {
			t.Errorf("again: %+v", again)
		}
		three.Held = false
		_, err := r.Schedule(ctx, three)
		rig.Want(t, "Schedule of one that is not held", err, ErrExists)
	})
}

// Schedule does not supersede.
func TestScheduleIgnoresSupersede(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{})
		d := r.One("open", "x")
		r.Bury("x", "dead")
		for id, kind := range map[string]error{"open": ErrExists, "dead": ErrDead} {
			req := Request{ID: id, Topic: "x", Delay: time.Hour, Supersede: true}
			_, err := r.Schedule(t.Context(), req)
			rig.Want(t, "Schedule of "+id, err, kind)
			results, err := r.ScheduleBatch(t.Context(), []Request{req})
			rig.Want(t, "ScheduleBatch", err, nil)
			rig.Want(t, "ScheduleBatch of "+id, results[0].Err, kind)
		}
		r.Ack(d)
		r.CheckConsistency()
	})
}

// Any node creates held tasks, at whichever node they belong.
func TestHeldRequestAtAllNodes(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Nodes[0], f.Nodes[1]
		held := func(id string) Request { return Request{ID: id, Topic: "x", Held: true, Delay: time.Minute} }
		ids := []string{b.IDAt(0), b.IDAt(1), b.IDAt(2)}
		made, err := a.Schedule(ctx, held(ids[0]))
		if rig.Want(t, "Schedule", err, nil); made.State != Held || made.Node != "b" {
			t.Errorf("made: %+v", made)
		}
		results, err := a.ScheduleBatch(ctx, []Request{held(ids[1]), {ID: b.IDAt(0), Topic: "y", Delay: time.Hour}})
		rig.Want(t, "ScheduleBatch", err, nil)
		rig.Want(t, "a result", results[0].Err, nil)
		rig.Want(t, "a result", results[1].Err, nil)
		made, err = a.Replace(ctx, held(ids[2]))
		if rig.Want(t, "Replace", err, nil); made.State != Held {
			t.Errorf("made: %+v", made)
		}
		rig.Pass(time.Hour)
		if got := b.Stats().Total.Held; got != 3 {
			t.Errorf("%d are held", got)
		}
		for _, id := range ids {
			if got := a.MustGet(id); got.State != Held || got.Remaining != time.Minute {
				t.Errorf("%s: %+v", id, got)
			}
		}
		_, err = a.Replace(ctx, Request{ID: ids[0], Topic: "x", Delay: time.Hour})
		rig.Want(t, "Replace by one that is not held", err, nil)
		b.Check()
	})
}
