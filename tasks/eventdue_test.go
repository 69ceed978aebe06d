package tasks_test

import (
	"context"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
)

// EventDue is told when a task becomes ready for its first attempt, with how late that is, and to
// no subscription that has not named it.
func TestEventDue(t *testing.T) {
	var observed collection[string]
	cfg := Config{Observer: observerFunc(func(e Event) { observed.add(string(e.Kind)) })}
	bubble(t, cfg, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Lease: 30 * time.Second, Retry: Retry{MinBackoff: time.Second}})
		all := r.subscribe(EventFilter{})
		others := r.subscribe(EventFilter{Topics: []string{"y"}, Kinds: []EventKind{EventDue}})
		u := r.subscribe(EventFilter{Kinds: []EventKind{EventDue, EventStarted}})
		r.must(Request{ID: "a", Topic: "x", Delay: time.Second})
		wantTold(t, r.told(u))
		pass(time.Second)
		events, _, err := u.Next(t.Context())
		want(t, "Next", err, nil)
		due := Event{Kind: EventDue, ID: "a", Topic: "x", At: r.get("a").Due}
		if at := events[0].At; len(events) != 1 || at.Sub(due.At) > time.Millisecond || events[0].Lateness > time.Millisecond {
			t.Errorf("told %+v, want %+v", events, due)
		}

		// It is not due again while its attempts go on.
		want(t, "Return", r.settle(Verdict{Verb: Return}, r.pull("x", "a")[0]).Err, nil)
		want(t, "Release", r.settle(Verdict{Verb: Release, Delay: ptr(time.Duration(0))}, r.pull("x", "a")[0]).Err, nil)
		r.pull("x", "a")
		wantTold(t, r.told(u), "started a 1", "started a 1", "started a 2")
		pass(40 * time.Second)
		wantTold(t, r.told(u))
		r.ack(r.pull("x", "a")[0])
		wantTold(t, r.told(u), "started a 3")

		// It is, when it is given another deadline.
		r.must(Request{ID: "b", Topic: "x", Delay: time.Hour})
		_, err = r.Fire(t.Context(), "b")
		want(t, "Fire", err, nil)
		wantTold(t, r.told(u), "due b 0")
		_, err = r.Reschedule(t.Context(), "b", Move{Delay: ptr(time.Minute)})
		want(t, "Reschedule", err, nil)
		wantTold(t, r.told(u))
		pass(time.Minute)
		wantTold(t, r.told(u), "due b 0")
		r.ack(r.pull("x", "b")[0])
		wantTold(t, r.told(u), "started b 1")

		wantTold(t, r.told(others))
		wantTold(t, r.told(all), "scheduled a 0", "started a 1", "started a 1", "retried a 1", "started a 2", "retried a 2",
			"started a 3", "delivered a 3", "scheduled b 0", "started b 1", "delivered b 1")
		for _, kind := range observed.list() {
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
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("spread", TopicSettings{Spread: time.Minute})
		r.topic("paused", TopicSettings{Paused: true})
		r.topic("crash", TopicSettings{CountCrashes: true})
		r.topic("group", TopicSettings{ConcurrencyPerGroup: 1})
		u := r.subscribe(EventFilter{Kinds: []EventKind{EventDue}})
		r.must(Request{ID: "a", Topic: "spread", Delay: time.Second})
		pass(time.Second)
		wantTold(t, r.told(u))
		pass(time.Minute)
		wantTold(t, r.told(u), "due a 0")
		want(t, "Return", r.settle(Verdict{Verb: Return}, r.pull("spread", "a")[0]).Err, nil)
		r.must(Request{ID: "b", Topic: "paused"})
		want(t, "Return", r.settle(Verdict{Verb: Return}, r.one("c", "crash")).Err, nil)
		r.must(Request{ID: "d", Topic: "group", Group: "g"})
		r.must(Request{ID: "e", Topic: "group", Group: "g"})
		want(t, "Return", r.settle(Verdict{Verb: Return}, r.pull("group", "d")[0]).Err, nil)
		r.ack(r.pull("group", "d")[0])
		r.pull("group", "e")
		wantTold(t, r.told(u), "due b 0", "due c 0", "due d 0", "due e 0")
	})
}

// A task that is read back is due a second time. The time that has passed since is its lateness.
func TestEventDueAfterRestart(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Paused: true})
		r.must(Request{ID: "a", Topic: "x"})
		r.must(Request{ID: "b", Topic: "x", Delay: time.Minute})
		r.shut()
		pass(2 * time.Second)
		var replay func() // it waits for the subscription, which hears of nothing before itself
		r.before = func() { _, replay = r.faulty.Hold(ledgertest.Scan) }
		r.open()
		u := r.subscribe(EventFilter{Kinds: []EventKind{EventDue}})
		replay()
		pass(time.Minute)
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

// The filter of the kind holds at other nodes too. A node that adopts a task tells it again.
func TestFleetEventDue(t *testing.T) {
	fleetBubble(t, 2, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		a.t = t
		u, all := a.subscribe(EventFilter{Kinds: []EventKind{EventDue}}), a.subscribe(EventFilter{})
		b.must(Request{ID: "b1", Topic: "x", Delay: time.Second})
		pass(2 * time.Second)
		u.wants(3*time.Second, "b: covered", "b: due b1")
		all.wants(3*time.Second, "b: covered", "b: scheduled b1")
		b.crash()
		a.adopt(b)
		if got := u.told(3 * time.Second); len(got) == 0 || got[len(got)-1] != "a: due b1" && got[0] != "a: due b1" {
			t.Errorf("told %q", got)
		}
	})
}
