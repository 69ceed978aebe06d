package tasks_test

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
)

// A task that is created held has what was asked for left, is counted, and waits for ever, also
// after a restart. Resumed, it is delivered when that has passed.
func TestHeldRequest(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		ctx := t.Context()
		pass(300 * time.Microsecond) // of a millisecond
		created := r.clock.now()
		r.wantLeft("nothing", r.must(Request{ID: "a", Topic: "x", Held: true}), 0)
		r.wantLeft("a delay", r.must(Request{ID: "b", Topic: "x", Held: true, Delay: time.Hour}), time.Hour)
		got := r.must(Request{ID: "c", Topic: "x", Held: true, Due: created.Truncate(time.Millisecond).Add(time.Minute)})
		if got.State != Held || got.Remaining > time.Minute || got.Remaining < time.Minute-time.Millisecond {
			t.Errorf("a deadline: %+v", got)
		}
		r.wantLeft("a past deadline", r.must(Request{ID: "d", Topic: "x", Held: true, Due: created.Add(-time.Hour)}), 0)
		results, err := r.ScheduleBatch(ctx, []Request{{ID: "e", Topic: "x", Held: true, Delay: time.Second}, {ID: "f", Topic: "x", Delay: 24 * time.Hour}})
		want(t, "ScheduleBatch", err, nil)
		want(t, "a result", results[0].Err, nil)
		want(t, "a result", results[1].Err, nil)
		replaced, err := r.Replace(ctx, Request{ID: "f", Topic: "x", Held: true, Delay: time.Minute})
		want(t, "Replace", err, nil)
		if r.wantLeft("replaced", replaced, time.Minute); !replaced.Repeated || replaced.Revision != 2 {
			t.Errorf("replaced: %+v", replaced)
		}
		all := []string{"a", "b", "c", "d", "e", "f"}
		r.wantHeld("created", all...)
		for _, end := range []func(){r.restart, r.crash, func() {}} {
			end()
			pass(5 * time.Hour)
			r.wantHeld("much later", all...)
			r.pull("x")
		}
		r.wantLeft("much later", r.get("b"), time.Hour)

		r.resume("a")
		r.resume("b")
		_, err = r.Reschedule(ctx, "c", Move{Delay: ptr(2 * time.Hour)})
		want(t, "Reschedule", err, nil)
		_, err = r.Fire(ctx, "d")
		want(t, "Fire", err, nil)
		replaced, err = r.Replace(ctx, Request{ID: "e", Topic: "x", Delay: 3 * time.Hour})
		if want(t, "Replace", err, nil); replaced.State != Pending {
			t.Errorf("replaced: %+v", replaced)
		}
		r.wantHeld("resumed", "f")
		pass(time.Millisecond)
		for _, d := range r.pull("x", "a", "d") {
			r.ack(d)
		}
		for _, id := range []string{"b", "c", "e"} {
			pass(time.Hour)
			r.ack(r.pull("x", id)[0])
		}
		want(t, "Cancel", r.Cancel(ctx, "f"), nil)
		r.wantHeld("at the end")
	})
}

// Whether a request is held is a part of it. Requests that are not held have the fingerprints that
// they had before.
func TestFingerprintsOfRequests(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		ctx := t.Context()
		one := Request{ID: "a", Topic: "x", Delay: time.Hour, Payload: []byte("1")}
		two := Request{ID: "b", Topic: "x", Due: time.Unix(1e9, 0), Group: "g", Headers: map[string]string{"k": "v"}}
		for print, req := range map[uint64]Request{0xe8c5089a11a81103: one, 0x25a2fbe64bbf2e8e: two} {
			req.Supersede = true // which is no part of it
			r.must(req)
			if got := r.inLedger(req.ID, recovery.Pending).Fingerprint; got != print {
				t.Errorf("%s: %#x; want %#x", req.ID, got, print)
			}
			req.Held = true
			_, err := r.Schedule(ctx, req)
			want(t, "Schedule of a held one", err, ErrExists)
		}
		three := Request{ID: "c", Topic: "x", Held: true}
		r.must(three)
		if again := r.must(three); !again.Repeated || again.State != Held {
			t.Errorf("again: %+v", again)
		}
		three.Held = false
		_, err := r.Schedule(ctx, three)
		want(t, "Schedule of one that is not held", err, ErrExists)
	})
}

// Schedule does not supersede.
func TestScheduleIgnoresSupersede(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{})
		d := r.one("open", "x")
		r.bury("x", "dead")
		for id, kind := range map[string]error{"open": ErrExists, "dead": ErrDead} {
			req := Request{ID: id, Topic: "x", Delay: time.Hour, Supersede: true}
			_, err := r.Schedule(t.Context(), req)
			want(t, "Schedule of "+id, err, kind)
			results, err := r.ScheduleBatch(t.Context(), []Request{req})
			want(t, "ScheduleBatch", err, nil)
			want(t, "ScheduleBatch of "+id, results[0].Err, kind)
		}
		r.ack(d)
		r.checkConsistency()
	})
}

// Any node creates held tasks, at whichever node they belong.
func TestHeldRequestAtAllNodes(t *testing.T) {
	fleetBubble(t, 2, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		a, b := f.nodes[0], f.nodes[1]
		held := func(id string) Request { return Request{ID: id, Topic: "x", Held: true, Delay: time.Minute} }
		ids := []string{b.idAt(0), b.idAt(1), b.idAt(2)}
		made, err := a.Schedule(ctx, held(ids[0]))
		if want(t, "Schedule", err, nil); made.State != Held || made.Node != "b" {
			t.Errorf("made: %+v", made)
		}
		results, err := a.ScheduleBatch(ctx, []Request{held(ids[1]), {ID: b.idAt(0), Topic: "y", Delay: time.Hour}})
		want(t, "ScheduleBatch", err, nil)
		want(t, "a result", results[0].Err, nil)
		want(t, "a result", results[1].Err, nil)
		made, err = a.Replace(ctx, held(ids[2]))
		if want(t, "Replace", err, nil); made.State != Held {
			t.Errorf("made: %+v", made)
		}
		pass(time.Hour)
		if got := b.Stats().Total.Held; got != 3 {
			t.Errorf("%d are held", got)
		}
		for _, id := range ids {
			if got := a.get(id); got.State != Held || got.Remaining != time.Minute {
				t.Errorf("%s: %+v", id, got)
			}
		}
		_, err = a.Replace(ctx, Request{ID: ids[0], Topic: "x", Delay: time.Hour})
		want(t, "Replace by one that is not held", err, nil)
		b.check()
	})
}
