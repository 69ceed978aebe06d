package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A task goes where it says, through restarts, retries, death and requeue, one by one and in
// batches. Its record is of a version that older nodes keep and do not deliver; others are not.
func TestTarget(t *testing.T) {
	for _, batches := range []bool{false, true} {
		t.Run(fmt.Sprintf("batches=%v", batches), func(t *testing.T) {
			c := &rig.Courier{KindName: "courier", Batches: batches}
			rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c}}, func(t *testing.T, r *rig.Rig) {
				set := rig.Allowing("courier")
				set.Retry = tasks.Retry{MaxAttempts: 3, MinBackoff: time.Minute, MaxBackoff: time.Minute}
				set.KeepFinished = time.Hour
				r.MustSetTopic("x", set)
				made := r.Must(tasks.Request{ID: "a", Topic: "x", Delay: time.Minute, Target: &tasks.Target{Settings: json.RawMessage(` { "to" : "oslo" } `)}})
				wanted := &tasks.Target{Settings: json.RawMessage(`{"to":"oslo"}`), Kind: "courier", Receiver: "city of oslo"}
				if diff := cmp.Diff(wanted, made.Target); diff != "" {
					t.Error(diff)
				}
				r.Must(tasks.Request{ID: "b", Topic: "x", Delay: time.Minute})
				again := r.Must(tasks.Request{ID: "a", Topic: "x", Delay: time.Minute, Target: rig.Own("oslo")})
				if !again.Repeated {
					t.Error("the same request is another one")
				}
				_, err := r.Schedule(t.Context(), tasks.Request{ID: "a", Topic: "x", Delay: time.Minute, Target: rig.Own("bern")})
				rig.Want(t, "another target", err, tasks.ErrExists)
				_, err = r.Schedule(t.Context(), tasks.Request{ID: "b", Topic: "x", Delay: time.Minute, Target: rig.Own("bern")})
				rig.Want(t, "a target in place of none", err, tasks.ErrExists)

				r.Restart()
				if diff := cmp.Diff(wanted, r.MustGet("a").Target); diff != "" {
					t.Error(diff)
				}
				for _, task := range r.Pages(tasks.Query{Topic: "x", Brief: true}) {
					if task.Target != nil {
						t.Errorf("a brief list shows %+v", task.Target)
					}
				}
				c.Failing(func(d *tasks.Delivery, to string) error {
					if d.ID == "a" {
						return fmt.Errorf("%s is closed", to)
					}
					return nil
				})
				rig.Pass(time.Minute)
				c.Want(t, "at first", "a to oslo", "b to rome")
				r.Crash()
				rig.Pass(time.Minute)
				c.Want(t, "after a crash", "a to oslo")
				rig.Pass(time.Minute)
				c.Want(t, "at last", "a to oslo")
				dead := r.MustGet("a")
				if dead.State != tasks.Dead || dead.Target == nil || len(dead.Attempts) != 3 || dead.Attempts[0].By != "city of oslo" {
					t.Errorf("dead: %+v", dead)
				}
				c.Failing(nil)
				n, err := r.Admin().Requeue(t.Context(), "x", tasks.Requeue{})
				if rig.Want(t, "Requeue", err, nil); n.Requeued != 1 {
					t.Errorf("requeued: %+v", n)
				}
				rig.Pass(time.Second)
				c.Want(t, "requeued", "a to oslo")
				if kept := r.MustGet("a"); kept.State != tasks.Finished || kept.Target == nil {
					t.Errorf("kept: %+v", kept)
				}
				r.CheckConsistency()
			})
		})
	}
}

// What a move, a replacement and an action make of a target.
func TestTargetOfMoves(t *testing.T) {
	c := &rig.Courier{KindName: "courier"}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c}}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		r.MustSetTopic("x", rig.Allowing("courier"))
		r.MustSetTopic("y", tasks.TopicSettings{Kind: "courier", Delivery: json.RawMessage(`{"to":"paris"}`)})
		for _, id := range []string{"a", "b", "c", "d"} {
			r.Must(tasks.Request{ID: id, Topic: "x", Delay: time.Hour, Target: rig.Own("oslo")})
		}
		r.Must(tasks.Request{ID: "e", Topic: "x", Delay: time.Hour})
		_, err := r.Reschedule(ctx, "a", tasks.Move{Delay: rig.Ptr(time.Minute)})
		rig.Want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(ctx, "b", tasks.Move{Delay: rig.Ptr(time.Minute), Target: rig.Own("bern")})
		rig.Want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(ctx, "c", tasks.Move{Delay: rig.Ptr(time.Minute), Target: &tasks.Target{}})
		rig.Want(t, "Reschedule", err, nil)
		_, err = r.Replace(ctx, tasks.Request{ID: "d", Topic: "x", Delay: time.Minute})
		rig.Want(t, "Replace", err, nil)
		_, err = r.Replace(ctx, tasks.Request{ID: "e", Topic: "x", Delay: time.Minute, Target: rig.Own("lima")})
		rig.Want(t, "Replace", err, nil)
		for id, own := range map[string]bool{"a": true, "b": true, "c": false, "d": false, "e": true} {
			if f := r.InLedger(id, recovery.Pending); (len(f.Target) > 0) != own {
				t.Errorf("the record of %s has the target %q; want one: %t", id, f.Target, own)
			}
		}
		for what, m := range map[string]tasks.Move{"a bad address": {Target: rig.Own("nowhere")}, "no object": {Target: &tasks.Target{Settings: json.RawMessage(`[]`)}}} {
			_, err = r.Reschedule(ctx, "a", m)
			rig.Want(t, what, err, tasks.ErrInvalid)
		}
		_, err = r.Replace(ctx, tasks.Request{ID: "a", Topic: "y", Target: rig.Own("lima")})
		rig.Want(t, "in a topic that does not let tasks choose", err, tasks.ErrInvalid)
		_, err = r.Admin().Act(ctx, tasks.Act{Action: tasks.FireAction, IDs: []string{"a", "b", "c", "d", "e"}})
		rig.Want(t, "Act", err, nil)
		rig.Pass(time.Second)
		c.Want(t, "moved", "a to oslo", "b to bern", "c to rome", "d to rome", "e to lima")
	})
}

// A retry of a task's own.
func TestTargetRetry(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
			set := tasks.TopicSettings{TaskDelivery: true, Retry: tasks.Retry{MaxAttempts: 5, MinBackoff: time.Minute, MaxBackoff: time.Minute}}
			r.MustSetTopic("x", set)
			r.Must(tasks.Request{ID: "a", Topic: "x", Target: &tasks.Target{Retry: tasks.Retry{MaxAttempts: 2, MinBackoff: time.Hour, MaxBackoff: time.Hour}}})
			if set.TaskDelivery = allowed; !allowed {
				r.MustSetTopic("x", set)
			}
			r.Restart()
			rig.Pass(time.Millisecond)
			r.SettleOne(tasks.Verdict{Verb: tasks.Release}, r.Pull("x", "a")[0])
			next := time.Hour
			if !allowed { // then the topic's holds
				next = time.Minute
			}
			rig.Pass(next - time.Millisecond)
			r.Pull("x")
			rig.Pass(time.Millisecond)
			r.SettleOne(tasks.Verdict{Verb: tasks.Release}, r.Pull("x", "a")[0])
			if got := r.MustGet("a"); (got.State == tasks.Dead) != allowed {
				t.Errorf("after two attempts it is %v", got.State)
			}
		})
	}
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{TaskDelivery: true})
		for field, retry := range map[string]tasks.Retry{
			"delivery.retry.max_attempts": {MaxAttempts: -1}, "delivery.retry.max_age": {MaxAge: time.Millisecond},
			"delivery.retry.min_backoff": {MinBackoff: 48 * time.Hour, MaxBackoff: 48 * time.Hour},
			"delivery.retry.max_backoff": {MinBackoff: time.Hour, MaxBackoff: time.Minute},
		} {
			_, err := r.Schedule(t.Context(), tasks.Request{ID: "b", Topic: "x", Target: &tasks.Target{Retry: retry}})
			wantFaults(t, field, err, field)
		}
	})
}

// wantFaults wants an ErrInvalid that names just these fields.
func wantFaults(t *testing.T, what string, err error, fields ...string) {
	t.Helper()
	var invalid *tasks.InvalidError
	var got []string
	if errors.As(err, &invalid) {
		for _, f := range invalid.Fields {
			got = append(got, f.Field)
		}
	}
	if !slices.Equal(got, fields) || len(fields) == 0 && err != nil {
		t.Errorf("%s: %v; want faults of %q", what, err, fields)
	}
}

// Who may choose what.
func TestTargetRefused(t *testing.T) {
	c := &rig.Courier{KindName: "courier"}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c, &rig.Postal{}}}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", rig.Allowing("courier"))
		r.MustSetTopic("closed", tasks.TopicSettings{Kind: "courier", Delivery: json.RawMessage(`{"to":"rome"}`)})
		post := to("rome")
		post.TaskDelivery = true
		r.MustSetTopic("post", post)
		r.MustSetTopic("pull", tasks.TopicSettings{TaskDelivery: true})
		for what, one := range map[string]struct {
			topic  string
			target *tasks.Target
			fields []string
		}{
			"a topic that does not allow it":    {"closed", rig.Own("oslo"), []string{"delivery"}},
			"a retry there":                     {"closed", &tasks.Target{Retry: tasks.Retry{MaxAttempts: 1}}, []string{"delivery"}},
			"a topic that is not known":         {"unknown", rig.Own("oslo"), []string{"delivery"}},
			"a way without targets":             {"post", rig.Own("oslo"), []string{"delivery"}},
			"a topic that is pulled":            {"pull", rig.Own("oslo"), []string{"delivery"}},
			"a bad address":                     {"x", rig.Own("nowhere"), []string{"delivery.to"}},
			"two faults":                        {"x", &tasks.Target{Settings: rig.Own("nowhere").Settings, Retry: tasks.Retry{MaxAge: 1}}, []string{"delivery.retry.max_age", "delivery.to"}},
			"another kind":                      {"x", &tasks.Target{Kind: "postal", Settings: rig.Own("oslo").Settings}, []string{"delivery.kind"}},
			"a list":                            {"x", &tasks.Target{Settings: json.RawMessage(`["to"]`)}, []string{"delivery"}},
			"too long":                          {"x", rig.Own(strings.Repeat("o", tasks.MaxTarget)), []string{"delivery"}},
			"nothing":                           {"closed", &tasks.Target{}, nil},
			"nothing, in an object":             {"x", &tasks.Target{Settings: json.RawMessage(`{}`)}, nil},
			"the kind of the topic, and itself": {"x", &tasks.Target{Kind: "courier", Settings: rig.Own("oslo").Settings}, nil},
		} {
			_, err := r.Schedule(t.Context(), tasks.Request{Topic: one.topic, Delay: time.Hour, Target: one.target})
			wantFaults(t, what, err, one.fields...)
		}
		_, err := r.Topic("unknown")
		rig.Want(t, "the topic of a refused task", err, tasks.ErrNoTopic)
	})
}

// What Schedule and Replace return of a task is what Get returns of it.
func TestAnswerIsWhatGetReturns(t *testing.T) {
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{&rig.Courier{KindName: "courier"}, &rig.Courier{KindName: "truck"}}}, func(t *testing.T, r *rig.Rig) {
		same := func(what string, got tasks.Task, err error) {
			t.Helper()
			rig.Want(t, what, err, nil)
			got.Repeated = false // Get does not tell
			if diff := cmp.Diff(r.MustGet(got.ID), got, cmpopts.IgnoreFields(tasks.Task{}, "SeenAt")); diff != "" {
				t.Errorf("%s: (-got later +answer)\n%s", what, diff)
			}
		}
		r.MustSetTopic("x", rig.Allowing("courier"))
		requests := map[string]tasks.Request{
			"plain": {}, "target": {Target: rig.Own("oslo")}, "held": {Held: true},
			"all": {Group: "g", Payload: []byte("1"), Headers: map[string]string{"k": "v"}, MaxLateness: time.Hour},
		}
		for what, q := range requests {
			q.ID, q.Topic, q.Delay = what, "x", time.Hour
			task, err := r.Schedule(t.Context(), q)
			same(what, task, err)
			task, err = r.Replace(t.Context(), q)
			same(what+" replaced", task, err)
		}
		r.MustSetTopic("x", rig.Allowing("truck"))
		task, err := r.Schedule(t.Context(), tasks.Request{Topic: "x", Delay: time.Hour, Target: rig.Own("rome")})
		same("its topic has another kind now", task, err)
	})
}

// A task with a target waits while its topic has another kind, or does not let tasks choose. It is
// sent nowhere else, and goes on when the topic can deliver it again.
func TestStrays(t *testing.T) {
	c, truck := &rig.Courier{KindName: "courier"}, &rig.Courier{KindName: "truck", Batches: true}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c, truck}}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		r.MustSetTopic("x", rig.Allowing("courier"))
		const many = 1000
		for i := range many {
			r.Must(tasks.Request{ID: fmt.Sprintf("a%03d", i), Topic: "x", Delay: time.Minute, Target: rig.Own("oslo")})
		}
		r.Must(tasks.Request{ID: "plain", Topic: "x", Delay: time.Minute})
		closed := rig.Allowing("courier")
		closed.TaskDelivery = false
		r.MustSetTopic("x", closed)
		wantStrays := func(what, reason string, n int64) {
			t.Helper()
			if got := r.Counts("x"); got.Ready != n || got.Delivering != 0 || got.Pending != 0 {
				t.Errorf("%s: %d ready, %d delivering, %d pending; want %d ready", what, got.Ready, got.Delivering, got.Pending, n)
			}
			if got := r.MustGet("a000").Target; got == nil || !strings.Contains(got.Undeliverable, reason) {
				t.Errorf("%s: its target is %+v", what, got)
			}
			r.CheckConsistency()
		}
		rig.Pass(2 * time.Minute)
		c.Want(t, "closed", "plain to rome")
		wantStrays("closed", "task_delivery", many)
		r.MustSetTopic("x", rig.Allowing("truck"))
		rig.Pass(time.Minute)
		truck.Want(t, "another kind")
		wantStrays("another kind", "kind courier", many)
		for _, end := range []func(){r.Restart, r.Crash} {
			end()
			rig.Pass(time.Minute)
			truck.Want(t, "after a restart")
			wantStrays("after a restart", "kind courier", many)
		}

		// What a caller may do with them meanwhile.
		rig.Want(t, "Cancel", r.Cancel(ctx, "a001"), nil)
		_, err := r.Reschedule(ctx, "a002", tasks.Move{Delay: rig.Ptr(time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(ctx, "a003", tasks.Move{Target: rig.Own("bern")})
		rig.Want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(ctx, "a004", tasks.Move{Target: &tasks.Target{}})
		rig.Want(t, "Reschedule", err, nil)
		_, err = r.Hold(ctx, "a005")
		rig.Want(t, "Hold", err, nil)
		rig.Pass(time.Second)
		truck.Want(t, "changed", "a003 to bern", "a004 to rome")
		r.CheckConsistency()

		r.MustSetTopic("x", closed)
		rig.Pass(time.Second)
		r.MustSetTopic("x", rig.Allowing("courier"))
		rig.Pass(time.Second)
		if sent := c.SentTo(); len(sent) != many-5 || sent[0] != "a000 to oslo" {
			t.Errorf("%d are sent in the end, first %q", len(sent), sent[:min(1, len(sent))])
		}
		if got := r.MustGet("a002").Target; got == nil || got.Undeliverable != "" {
			t.Errorf("its target is %+v", got)
		}
		r.CheckConsistency()
	})
}

// A task is not sent to a kind that its topic has got while its attempt was being recorded.
func TestStrayWhileClaiming(t *testing.T) {
	c, truck := &rig.Courier{KindName: "courier"}, &rig.Courier{KindName: "truck"}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{c, truck}}, func(t *testing.T, r *rig.Rig) {
		set := rig.Allowing("courier")
		set.CountCrashes = true
		r.MustSetTopic("x", set)
		r.Must(tasks.Request{ID: "a", Topic: "x", Delay: time.Minute, Target: rig.Own("oslo")})
		_, resume := r.Faulty.Hold(ledgertest.Apply)
		rig.Pass(time.Minute)
		next := rig.Allowing("truck")
		next.CountCrashes = true
		r.MustSetTopic("x", next)
		resume()
		rig.Pass(time.Minute)
		c.Want(t, "held up")
		truck.Want(t, "held up")
		if got := r.MustGet("a"); got.State != tasks.Ready || got.Attempt != 0 {
			t.Errorf("it is %v, attempt %d", got.State, got.Attempt)
		}
		r.MustSetTopic("x", set)
		rig.Pass(time.Second)
		c.Want(t, "in the end", "a to oslo")
		r.CheckConsistency()
	})
}
