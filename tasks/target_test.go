package tasks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A courier is a way of delivery whose tasks may have an address of their own. It notes what went
// where, in batches if it takes them.
type courier struct {
	kind    tasks.Kind
	batches bool

	mu   sync.Mutex
	sent []string
	fail func(d *tasks.Delivery, to string) error // nil: nothing fails
}

// failing lets deliveries end with what fail returns from now on; nil: nothing fails.
func (c *courier) failing(fail func(d *tasks.Delivery, to string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = fail
}

func (c *courier) Kind() tasks.Kind { return c.kind }

func (c *courier) Deliverer(_ string, settings json.RawMessage) (tasks.Deliverer, error) {
	var set struct{ To string }
	if err := json.Unmarshal(settings, &set); err != nil || set.To == "" {
		return nil, task.Invalid("to", "must be given")
	}
	if c.batches {
		return &ride{round{c, set.To}}, nil
	}
	return &round{c, set.To}, nil
}

// sentTo returns what has gone where since the last call, in the order of the texts.
func (c *courier) sentTo() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.sent
	c.sent = nil
	slices.Sort(all)
	return all
}

// want fails the test unless just this has gone since the last call.
func (c *courier) want(t *testing.T, what string, sent ...string) {
	t.Helper()
	if diff := cmp.Diff(sent, c.sentTo()); diff != "" {
		t.Errorf("%s: (-wanted +sent)\n%s", what, diff)
	}
}

type round struct {
	*courier
	to string
}

func (r *round) where(own json.RawMessage) (string, error) {
	var set map[string]string
	if err := json.Unmarshal(own, &set); err != nil || set["to"] == "" || len(set) > 1 || strings.HasPrefix(set["to"], "no") {
		return "", task.Invalid("to", "must be an address")
	}
	return set["to"], nil
}

func (r *round) CheckTarget(own json.RawMessage) (string, error) {
	to, err := r.where(own)
	return "city of " + to, err
}

func (r *round) Deliver(_ context.Context, d *tasks.Delivery) error {
	to := r.to
	if own := d.OwnSettings(); own != nil {
		var err error
		if to, err = r.where(own); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.sent = append(r.sent, d.ID+" to "+to)
	fail := r.fail
	r.mu.Unlock()
	if fail != nil {
		return fail(d, to)
	}
	return nil
}

type ride struct{ round }

func (r *ride) DeliverBatch(ctx context.Context, ds []*tasks.Delivery) []error {
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = r.Deliver(ctx, d)
	}
	return errs
}

// own is the target with an address.
func own(where string) *tasks.Target {
	return &tasks.Target{Settings: json.RawMessage(`{"to":"` + where + `"}`)}
}

// allowing is a topic that goes to Rome and lets tasks choose.
func allowing(kind tasks.Kind) tasks.TopicSettings {
	return tasks.TopicSettings{Kind: kind, Delivery: json.RawMessage(`{"to":"rome"}`), TaskDelivery: true}
}

// A task goes where it says, through restarts, retries, death and requeue, one by one and in
// batches. Its record is of a version that older nodes keep and do not deliver; others are not.
func TestTarget(t *testing.T) {
	for _, batches := range []bool{false, true} {
		t.Run(fmt.Sprintf("batches=%v", batches), func(t *testing.T) {
			c := &courier{kind: "courier", batches: batches}
			bubble(t, tasks.Config{Ways: []tasks.Way{c}}, func(t *testing.T, r *rig) {
				set := allowing("courier")
				set.Retry = tasks.Retry{MaxAttempts: 3, MinBackoff: time.Minute, MaxBackoff: time.Minute}
				set.KeepFinished = time.Hour
				r.topic("x", set)
				made := r.must(tasks.Request{ID: "a", Topic: "x", Delay: time.Minute, Target: &tasks.Target{Settings: json.RawMessage(` { "to" : "oslo" } `)}})
				wanted := &tasks.Target{Settings: json.RawMessage(`{"to":"oslo"}`), Kind: "courier", Receiver: "city of oslo"}
				if diff := cmp.Diff(wanted, made.Target); diff != "" {
					t.Error(diff)
				}
				r.must(tasks.Request{ID: "b", Topic: "x", Delay: time.Minute})
				again := r.must(tasks.Request{ID: "a", Topic: "x", Delay: time.Minute, Target: own("oslo")})
				if !again.Repeated {
					t.Error("the same request is another one")
				}
				_, err := r.Schedule(t.Context(), tasks.Request{ID: "a", Topic: "x", Delay: time.Minute, Target: own("bern")})
				want(t, "another target", err, tasks.ErrExists)
				_, err = r.Schedule(t.Context(), tasks.Request{ID: "b", Topic: "x", Delay: time.Minute, Target: own("bern")})
				want(t, "a target in place of none", err, tasks.ErrExists)

				r.restart()
				if diff := cmp.Diff(wanted, r.get("a").Target); diff != "" {
					t.Error(diff)
				}
				for _, task := range r.pages(tasks.Query{Topic: "x", Brief: true}) {
					if task.Target != nil {
						t.Errorf("a brief list shows %+v", task.Target)
					}
				}
				c.failing(func(d *tasks.Delivery, to string) error {
					if d.ID == "a" {
						return fmt.Errorf("%s is closed", to)
					}
					return nil
				})
				pass(time.Minute)
				c.want(t, "at first", "a to oslo", "b to rome")
				r.crash()
				pass(time.Minute)
				c.want(t, "after a crash", "a to oslo")
				pass(time.Minute)
				c.want(t, "at last", "a to oslo")
				dead := r.get("a")
				if dead.State != tasks.Dead || dead.Target == nil || len(dead.Attempts) != 3 || dead.Attempts[0].By != "city of oslo" {
					t.Errorf("dead: %+v", dead)
				}
				c.failing(nil)
				n, err := r.Requeue(t.Context(), "x", tasks.Requeue{})
				if want(t, "Requeue", err, nil); n.Requeued != 1 {
					t.Errorf("requeued: %+v", n)
				}
				pass(time.Second)
				c.want(t, "requeued", "a to oslo")
				if kept := r.get("a"); kept.State != tasks.Finished || kept.Target == nil {
					t.Errorf("kept: %+v", kept)
				}
				r.checkConsistency()
			})
		})
	}
}

// What a move, a replacement and an action make of a target.
func TestTargetOfMoves(t *testing.T) {
	c := &courier{kind: "courier"}
	bubble(t, tasks.Config{Ways: []tasks.Way{c}}, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.topic("x", allowing("courier"))
		r.topic("y", tasks.TopicSettings{Kind: "courier", Delivery: json.RawMessage(`{"to":"paris"}`)})
		for _, id := range []string{"a", "b", "c", "d"} {
			r.must(tasks.Request{ID: id, Topic: "x", Delay: time.Hour, Target: own("oslo")})
		}
		r.must(tasks.Request{ID: "e", Topic: "x", Delay: time.Hour})
		_, err := r.Reschedule(ctx, "a", tasks.Move{Delay: ptr(time.Minute)})
		want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(ctx, "b", tasks.Move{Delay: ptr(time.Minute), Target: own("bern")})
		want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(ctx, "c", tasks.Move{Delay: ptr(time.Minute), Target: &tasks.Target{}})
		want(t, "Reschedule", err, nil)
		_, err = r.Replace(ctx, tasks.Request{ID: "d", Topic: "x", Delay: time.Minute})
		want(t, "Replace", err, nil)
		_, err = r.Replace(ctx, tasks.Request{ID: "e", Topic: "x", Delay: time.Minute, Target: own("lima")})
		want(t, "Replace", err, nil)
		for id, own := range map[string]bool{"a": true, "b": true, "c": false, "d": false, "e": true} {
			if f := r.inLedger(id, recovery.Pending); (len(f.Target) > 0) != own {
				t.Errorf("the record of %s has the target %q; want one: %t", id, f.Target, own)
			}
		}
		for what, m := range map[string]tasks.Move{"a bad address": {Target: own("nowhere")}, "no object": {Target: &tasks.Target{Settings: json.RawMessage(`[]`)}}} {
			_, err = r.Reschedule(ctx, "a", m)
			want(t, what, err, tasks.ErrInvalid)
		}
		_, err = r.Replace(ctx, tasks.Request{ID: "a", Topic: "y", Target: own("lima")})
		want(t, "in a topic that does not let tasks choose", err, tasks.ErrInvalid)
		_, err = r.Act(ctx, tasks.Act{Action: tasks.FireAction, IDs: []string{"a", "b", "c", "d", "e"}})
		want(t, "Act", err, nil)
		pass(time.Second)
		c.want(t, "moved", "a to oslo", "b to bern", "c to rome", "d to rome", "e to lima")
	})
}

// A retry of a task's own.
func TestTargetRetry(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
			set := tasks.TopicSettings{TaskDelivery: true, Retry: tasks.Retry{MaxAttempts: 5, MinBackoff: time.Minute, MaxBackoff: time.Minute}}
			r.topic("x", set)
			r.must(tasks.Request{ID: "a", Topic: "x", Target: &tasks.Target{Retry: tasks.Retry{MaxAttempts: 2, MinBackoff: time.Hour, MaxBackoff: time.Hour}}})
			if set.TaskDelivery = allowed; !allowed {
				r.topic("x", set)
			}
			r.restart()
			pass(time.Millisecond)
			r.settle(tasks.Verdict{Verb: tasks.Release}, r.pull("x", "a")[0])
			next := time.Hour
			if !allowed { // then the topic's holds
				next = time.Minute
			}
			pass(next - time.Millisecond)
			r.pull("x")
			pass(time.Millisecond)
			r.settle(tasks.Verdict{Verb: tasks.Release}, r.pull("x", "a")[0])
			if got := r.get("a"); (got.State == tasks.Dead) != allowed {
				t.Errorf("after two attempts it is %v", got.State)
			}
		})
	}
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.topic("x", tasks.TopicSettings{TaskDelivery: true})
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
	c := &courier{kind: "courier"}
	bubble(t, tasks.Config{Ways: []tasks.Way{c, &postal{}}}, func(t *testing.T, r *rig) {
		r.topic("x", allowing("courier"))
		r.topic("closed", tasks.TopicSettings{Kind: "courier", Delivery: json.RawMessage(`{"to":"rome"}`)})
		post := to("rome")
		post.TaskDelivery = true
		r.topic("post", post)
		r.topic("pull", tasks.TopicSettings{TaskDelivery: true})
		for what, one := range map[string]struct {
			topic  string
			target *tasks.Target
			fields []string
		}{
			"a topic that does not allow it":    {"closed", own("oslo"), []string{"delivery"}},
			"a retry there":                     {"closed", &tasks.Target{Retry: tasks.Retry{MaxAttempts: 1}}, []string{"delivery"}},
			"a topic that is not known":         {"unknown", own("oslo"), []string{"delivery"}},
			"a way without targets":             {"post", own("oslo"), []string{"delivery"}},
			"a topic that is pulled":            {"pull", own("oslo"), []string{"delivery"}},
			"a bad address":                     {"x", own("nowhere"), []string{"delivery.to"}},
			"two faults":                        {"x", &tasks.Target{Settings: own("nowhere").Settings, Retry: tasks.Retry{MaxAge: 1}}, []string{"delivery.retry.max_age", "delivery.to"}},
			"another kind":                      {"x", &tasks.Target{Kind: "postal", Settings: own("oslo").Settings}, []string{"delivery.kind"}},
			"a list":                            {"x", &tasks.Target{Settings: json.RawMessage(`["to"]`)}, []string{"delivery"}},
			"too long":                          {"x", own(strings.Repeat("o", tasks.MaxTarget)), []string{"delivery"}},
			"nothing":                           {"closed", &tasks.Target{}, nil},
			"nothing, in an object":             {"x", &tasks.Target{Settings: json.RawMessage(`{}`)}, nil},
			"the kind of the topic, and itself": {"x", &tasks.Target{Kind: "courier", Settings: own("oslo").Settings}, nil},
		} {
			_, err := r.Schedule(t.Context(), tasks.Request{Topic: one.topic, Delay: time.Hour, Target: one.target})
			wantFaults(t, what, err, one.fields...)
		}
		_, err := r.Topic("unknown")
		want(t, "the topic of a refused task", err, tasks.ErrNoTopic)
	})
}

// What Schedule and Replace return of a task is what Get returns of it.
func TestAnswerIsWhatGetReturns(t *testing.T) {
	bubble(t, tasks.Config{Ways: []tasks.Way{&courier{kind: "courier"}, &courier{kind: "truck"}}}, func(t *testing.T, r *rig) {
		same := func(what string, got tasks.Task, err error) {
			t.Helper()
			want(t, what, err, nil)
			got.Repeated = false // Get does not tell
			if diff := cmp.Diff(r.get(got.ID), got, cmpopts.IgnoreFields(tasks.Task{}, "SeenAt")); diff != "" {
				t.Errorf("%s: (-got later +answer)\n%s", what, diff)
			}
		}
		r.topic("x", allowing("courier"))
		requests := map[string]tasks.Request{
			"plain": {}, "target": {Target: own("oslo")}, "held": {Held: true},
			"all": {Group: "g", Payload: []byte("1"), Headers: map[string]string{"k": "v"}, MaxLateness: time.Hour},
		}
		for what, q := range requests {
			q.ID, q.Topic, q.Delay = what, "x", time.Hour
			task, err := r.Schedule(t.Context(), q)
			same(what, task, err)
			task, err = r.Replace(t.Context(), q)
			same(what+" replaced", task, err)
		}
		r.topic("x", allowing("truck"))
		task, err := r.Schedule(t.Context(), tasks.Request{Topic: "x", Delay: time.Hour, Target: own("rome")})
		same("its topic has another kind now", task, err)
	})
}

// A task with a target waits while its topic has another kind, or does not let tasks choose. It is
// sent nowhere else, and goes on when the topic can deliver it again.
func TestStrays(t *testing.T) {
	c, truck := &courier{kind: "courier"}, &courier{kind: "truck", batches: true}
	bubble(t, tasks.Config{Ways: []tasks.Way{c, truck}}, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.topic("x", allowing("courier"))
		const many = 1000
		for i := range many {
			r.must(tasks.Request{ID: fmt.Sprintf("a%03d", i), Topic: "x", Delay: time.Minute, Target: own("oslo")})
		}
		r.must(tasks.Request{ID: "plain", Topic: "x", Delay: time.Minute})
		closed := allowing("courier")
		closed.TaskDelivery = false
		r.topic("x", closed)
		wantStrays := func(what, reason string, n int64) {
			t.Helper()
			if got := r.counts("x"); got.Ready != n || got.Delivering != 0 || got.Pending != 0 {
				t.Errorf("%s: %d ready, %d delivering, %d pending; want %d ready", what, got.Ready, got.Delivering, got.Pending, n)
			}
			if got := r.get("a000").Target; got == nil || !strings.Contains(got.Undeliverable, reason) {
				t.Errorf("%s: its target is %+v", what, got)
			}
			r.checkConsistency()
		}
		pass(2 * time.Minute)
		c.want(t, "closed", "plain to rome")
		wantStrays("closed", "task_delivery", many)
		r.topic("x", allowing("truck"))
		pass(time.Minute)
		truck.want(t, "another kind")
		wantStrays("another kind", "kind courier", many)
		for _, end := range []func(){r.restart, r.crash} {
			end()
			pass(time.Minute)
			truck.want(t, "after a restart")
			wantStrays("after a restart", "kind courier", many)
		}

		// What a caller may do with them meanwhile.
		want(t, "Cancel", r.Cancel(ctx, "a001"), nil)
		_, err := r.Reschedule(ctx, "a002", tasks.Move{Delay: ptr(time.Hour)})
		want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(ctx, "a003", tasks.Move{Target: own("bern")})
		want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(ctx, "a004", tasks.Move{Target: &tasks.Target{}})
		want(t, "Reschedule", err, nil)
		_, err = r.Hold(ctx, "a005")
		want(t, "Hold", err, nil)
		pass(time.Second)
		truck.want(t, "changed", "a003 to bern", "a004 to rome")
		r.checkConsistency()

		r.topic("x", closed)
		pass(time.Second)
		r.topic("x", allowing("courier"))
		pass(time.Second)
		if sent := c.sentTo(); len(sent) != many-5 || sent[0] != "a000 to oslo" {
			t.Errorf("%d are sent in the end, first %q", len(sent), sent[:min(1, len(sent))])
		}
		if got := r.get("a002").Target; got == nil || got.Undeliverable != "" {
			t.Errorf("its target is %+v", got)
		}
		r.checkConsistency()
	})
}

// A task is not sent to a kind that its topic has got while its attempt was being recorded.
func TestStrayWhileClaiming(t *testing.T) {
	c, truck := &courier{kind: "courier"}, &courier{kind: "truck"}
	bubble(t, tasks.Config{Ways: []tasks.Way{c, truck}}, func(t *testing.T, r *rig) {
		set := allowing("courier")
		set.CountCrashes = true
		r.topic("x", set)
		r.must(tasks.Request{ID: "a", Topic: "x", Delay: time.Minute, Target: own("oslo")})
		_, resume := r.faulty.Hold(ledgertest.Apply)
		pass(time.Minute)
		next := allowing("truck")
		next.CountCrashes = true
		r.topic("x", next)
		resume()
		pass(time.Minute)
		c.want(t, "held up")
		truck.want(t, "held up")
		if got := r.get("a"); got.State != tasks.Ready || got.Attempt != 0 {
			t.Errorf("it is %v, attempt %d", got.State, got.Attempt)
		}
		r.topic("x", set)
		pass(time.Second)
		c.want(t, "in the end", "a to oslo")
		r.checkConsistency()
	})
}
