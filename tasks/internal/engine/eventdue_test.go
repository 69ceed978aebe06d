package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// EventDue is told when a task becomes ready for its first attempt, with how late that is, and to
// no subscription that has not named it.
func TestEventDue(t *testing.T) {
	var observed rig.Collection[string]
	cfg := Config{Observer: rig.ObserverFunc(func(e Event) { observed.Add(string(e.Kind)) })}
	rig.Bubble(t, cfg, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Lease: 30 * time.Second, Retry: Retry{MinBackoff: time.Second}})
		all := subscribe(r, EventFilter{})
		others := subscribe(r, EventFilter{Topics: []string{"y"}, Kinds: []EventKind{EventDue}})
		u := subscribe(r, EventFilter{Kinds: []EventKind{EventDue, EventStarted}})
		r.Must(Request{ID: "a", Topic: "x", Delay: time.Second})
		wantTold(t, told(r, u))
		rig.Pass(time.Second)
		events, _, err := u.Next(t.Context())
		rig.Want(t, "Next", err, nil)
		due := Event{Kind: EventDue, ID: "a", Topic: "x", At: r.MustGet("a").Due}
		if at := events[0].At; len(events) != 1 || at.Sub(due.At) > time.Millisecond || events[0].Lateness > time.Millisecond {
			t.Errorf("told %+v, want %+v", events, due)
		}

		// It is not due again while its attempts go on.
		rig.Want(t, "Return", r.SettleOne(Verdict{Verb: Return}, r.Pull("x", "a")[0]).Err, nil)
		rig.Want(t, "Release", r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Duration(0))}, r.Pull("x", "a")[0]).Err, nil)
		r.Pull("x", "a")
		wantTold(t, told(r, u), "started a 1", "started a 1", "started a 2")
		rig.Pass(40 * time.Second)
		wantTold(t, told(r, u))
		r.Ack(r.Pull("x", "a")[0])
		wantTold(t, told(r, u), "started a 3")

		// It is, when it is given another deadline.
		r.Must(Request{ID: "b", Topic: "x", Delay: time.Hour})
		_, err = r.Fire(t.Context(), "b")
		rig.Want(t, "Fire", err, nil)
		wantTold(t, told(r, u), "due b 0")
		_, err = r.Reschedule(t.Context(), "b", Move{Delay: rig.Ptr(time.Minute)})
		rig.Want(t, "Reschedule", err, nil)
		wantTold(t, told(r, u))
		rig.Pass(time.Minute)
		wantTold(t, told(r, u), "due b 0")
		r.Ack(r.Pull("x", "b")[0])
		wantTold(t, told(r, u), "started b 1")

		wantTold(t, told(r, others))
		wantTold(t, told(r, all), "scheduled a 0", "started a 1", "started a 1", "retried a 1", "started a 2", "retried a 2",
			"started a 3", "delivered a 3", "scheduled b 0", "started b 1", "delivered b 1")
		for _, kind := range observed.List() {
			if kind == string(EventDue) {
				t.Error("the observer was told")
			}
		}
		u.Close()
		others.Close()
		if r.Engine().Feed.HearsDue() {
			t.Error("a subscription to EventDue is left")
		}
	})
}

// A task is due at its place in a spread, once; also where its topic is paused, counts crashes or
// bounds its groups.
func TestEventDueOfSettings(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("spread", TopicSettings{Spread: time.Minute})
		r.MustSetTopic("paused", TopicSettings{Paused: true})
		r.MustSetTopic("crash", TopicSettings{CountCrashes: true})
		r.MustSetTopic("group", TopicSettings{ConcurrencyPerGroup: 1})
		u := subscribe(r, EventFilter{Kinds: []EventKind{EventDue}})
		r.Must(Request{ID: "a", Topic: "spread", Delay: time.Second})
		rig.Pass(time.Second)
		wantTold(t, told(r, u))
		rig.Pass(time.Minute)
		wantTold(t, told(r, u), "due a 0")
		rig.Want(t, "Return", r.SettleOne(Verdict{Verb: Return}, r.Pull("spread", "a")[0]).Err, nil)
		r.Must(Request{ID: "b", Topic: "paused"})
		rig.Want(t, "Return", r.SettleOne(Verdict{Verb: Return}, r.One("c", "crash")).Err, nil)
		r.Must(Request{ID: "d", Topic: "group", Group: "g"})
		r.Must(Request{ID: "e", Topic: "group", Group: "g"})
		rig.Want(t, "Return", r.SettleOne(Verdict{Verb: Return}, r.Pull("group", "d")[0]).Err, nil)
		r.Ack(r.Pull("group", "d")[0])
		r.Pull("group", "e")
		wantTold(t, told(r, u), "due b 0", "due c 0", "due d 0", "due e 0")
	})
}

// A task that is read back is due a second time. The time that has passed since is its lateness.
func TestEventDueAfterRestart(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Paused: true})
		r.Must(Request{ID: "a", Topic: "x"})
		r.Must(Request{ID: "b", Topic: "x", Delay: time.Minute})
		r.Shut()
		rig.Pass(2 * time.Second)
		var replay func() // it waits for the subscription, which hears of nothing before itself
		r.Before = func() { _, replay = r.Faulty.Hold(ledgertest.Scan) }
		r.Open()
		u := subscribe(r, EventFilter{Kinds: []EventKind{EventDue}})
		replay()
		rig.Pass(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var got []string
		for len(got) < 2 {
			events, _, err := u.Next(ctx)
			if err != nil {
				t.Fatalf("Next after %q: %v", got, err)
			}
			for _, e := range events {
				if got = append(got, string(e.Kind)+" "+e.ID); e.ID == "a" && e.Lateness < 2*time.Second {
					t.Errorf("it is %v late", e.Lateness)
				}
			}
		}
		wantTold(t, got, "due a", "due b")
	})
}
