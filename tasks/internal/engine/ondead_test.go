package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// mourned is a topic whose tasks die at their first failure, and are followed by one of another.
func mourned(by string) tasks.TopicSettings {
	return tasks.TopicSettings{Retry: tasks.Retry{MaxAttempts: 1}, OnDead: tasks.OnDead{Topic: by}}
}

// A task that dies is followed by one of another topic, which says why. The dead one stays.
// Requeued and dead once more, it is followed once more.
func TestOnDead(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 16} {
		t.Run(fmt.Sprint("shards=", shards), func(t *testing.T) {
			bubbleOn(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				set := mourned("mourners")
				set.OnDead.Delay = time.Hour
				r.MustSetTopic("x", set)
				made := r.Must(tasks.Request{ID: "a", Topic: "x", Payload: []byte(`{"order":42}`), Group: "g", MaxLateness: time.Minute,
					Headers: map[string]string{"tenant": "eu", "lapse-dead-error": "stale"}})
				died := r.Clock.Now()
				r.SettleOne(tasks.Verdict{Verb: tasks.Release, Reason: "no\nsuch\torder"}, r.Pull("x", "a")[0])
				r.WantFollowUps("died", "x", 1, 1, 0, 0)
				next := r.Only("mourners")
				wanted := tasks.Task{
					ID: next.ID, Topic: "mourners", State: tasks.Pending, Due: died.Add(time.Hour).Truncate(time.Millisecond).UTC(), Payload: made.Payload, Group: "g",
					Revision: 1, Node: next.Node, Created: next.Created, Headers: map[string]string{
						"tenant": "eu", "lapse-dead-topic": "x", "lapse-dead-id": "a", "lapse-dead-reason": "exhausted", "lapse-dead-attempts": "1",
						"lapse-dead-error": "no such order", "lapse-dead-via": "x", "lapse-dead-at": died.UTC().Format("2006-01-02T15:04:05.000Z"),
					},
				}
				wanted.Next = wanted.Due
				if diff := cmp.Diff(wanted, next); diff != "" {
					t.Error(diff)
				}
				if got := r.MustGet("a"); got.State != tasks.Dead {
					t.Errorf("the dead task is %v", got.State)
				}
				r.Crash()
				rig.Pass(time.Hour)
				d := r.Pull("mourners", next.ID)[0]
				r.Ack(d)
				n, err := r.Admin().Requeue(t.Context(), "x", tasks.Requeue{})
				if rig.Want(t, "Requeue", err, nil); n.Requeued != 1 {
					t.Fatal("it is not requeued")
				}
				r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, r.Pull("x", "a")[0])
				if again := r.Only("mourners"); again.ID == next.ID || again.Headers["lapse-dead-reason"] != "buried" || again.Headers["lapse-dead-error"] != "buried" {
					t.Errorf("the second follow-up: %+v", again)
				}
				r.WantFollowUps("once more", "x", 1, 1, 0, 0) // since the crash
			}, memledger.Shards(shards))
		})
	}
}

// bubbleOn is bubble with options of the ledger.
func bubbleOn(t *testing.T, cfg tasks.Config, test func(t *testing.T, r *rig.Rig), options ...memledger.Option) {
	t.Helper()
	rig.FakeTime(t, func(t *testing.T) {
		r := rig.New(t, cfg, options...)
		rig.Pass(0)
		test(t, r)
		r.WantNoRescue()
		rig.WantCounted(t, r.Engine())
	})
}

// Tasks that end otherwise are followed by none.
func TestOnDeadIsForDeathsOnly(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		set := mourned("mourners")
		r.MustSetTopic("x", set)
		for _, id := range []string{"acked", "skipped", "cancelled", "killed"} {
			late := time.Duration(0)
			if id == "skipped" {
				late = time.Second
			}
			r.Must(tasks.Request{ID: id, Topic: "x", Delay: time.Minute, MaxLateness: late})
		}
		rig.Want(t, "Cancel", r.Cancel(ctx, "cancelled"), nil)
		_, err := r.Fire(ctx, "acked")
		rig.Want(t, "Fire", err, nil)
		r.Ack(r.Pull("x", "acked")[0])
		rig.Pass(2 * time.Minute)
		_, err = r.Admin().KillTopic(ctx, "x", -1)
		rig.Want(t, "KillTopic", err, nil)
		rig.Pass(time.Second)
		if list := r.Pages(tasks.Query{Topic: "mourners"}); len(list) != 0 {
			t.Errorf("followed by %q", rig.IDsOf(list))
		}
		r.MustSetTopic("x", set)
		r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, r.One("b", "x"))
		_, err = r.Admin().DeleteDead(ctx, "x", nil)
		rig.Want(t, "DeleteDead", err, nil)
		r.Only("mourners")
	})
}

// Whatever becomes of the batch of a burial, there is one follow-up for each burial that the ledger
// has, and none without.
func TestOnDeadIsAtomic(t *testing.T) {
	for what, fault := range map[string]ledgertest.Fault{
		"a batch is written and not answered": {Op: ledgertest.Apply, Times: -1, After: true},
		"none is written":                     {Op: ledgertest.Apply, Times: -1},
	} {
		t.Run(what, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", mourned("mourners"))
				const count = 30
				for i := range count {
					r.Must(tasks.Request{ID: fmt.Sprintf("a%02d", i), Topic: "x"})
				}
				r.Faulty.Inject(fault)
				ds, err := r.Reserve(t.Context(), "x", count, 0, 0)
				rig.Want(t, "Reserve", err, nil)
				for _, d := range ds {
					go func() { _, _ = r.Settle(context.Background(), tasks.Verdict{Verb: tasks.Bury}, []string{d.Receipt()}) }()
				}
				rig.Pass(10 * time.Second)
				r.Crash()
				rig.Pass(time.Minute)
				ds, err = r.Reserve(t.Context(), "x", count, 0, 0)
				if rig.Want(t, "Reserve", err, nil); (len(ds) < count) != fault.After || len(r.Pages(tasks.Query{Topic: "mourners"})) != count-len(ds) {
					t.Fatalf("%d of them came back", len(ds))
				}
				for _, d := range ds {
					r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, d)
				}
				of := map[string]int{}
				for _, next := range r.Pages(tasks.Query{Topic: "mourners"}) {
					of[next.Headers["lapse-dead-id"]]++
				}
				if c := r.Counts("x"); c.Dead != count || c.Ready != 0 || len(of) != count {
					t.Fatalf("%d dead, %d ready, follow-ups of %d tasks", c.Dead, c.Ready, len(of))
				}
				for id, n := range of {
					if n != 1 {
						t.Errorf("%s has %d follow-ups", id, n)
					}
				}
				r.CheckConsistency()
			})
		})
	}
}

// A batch that the ledger does not answer is repeated. That makes no second follow-up.
func TestOnDeadRepeated(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", mourned("mourners"))
		d := r.One("a", "x")
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: 3, After: true})
		r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, d)
		rig.Pass(10 * time.Second)
		r.Only("mourners")
		r.WantFollowUps("repeated", "x", 1, 1, 0, 0)
	})
}

// A dead task makes room for its follow-up in memory, and a ledger that takes no new tasks takes
// it.
func TestOnDeadWithoutRoom(t *testing.T) {
	rig.Bubble(t, tasks.Config{MaxPending: 5, MaxBytes: 4 << 20}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", mourned("mourners"))
		// At max_pending: the dead task makes room for its follow-up.
		for i := range 5 {
			r.Must(tasks.Request{ID: fmt.Sprint("a", i), Topic: "x"})
		}
		_, err := r.Schedule(t.Context(), tasks.Request{Topic: "x"})
		rig.Want(t, "one too many", err, tasks.ErrOverloaded)
		open := r.Pull("x", "a0", "a1", "a2", "a3", "a4")
		for _, d := range open[:3] {
			r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, d)
		}
		r.WantFollowUps("at max_pending", "x", 3, 3, 0, 0)
		if n := r.Engine().Store.Len(); n != 5 {
			t.Errorf("%d tasks are in memory", n)
		}

		// A ledger that takes no new tasks takes follow-ups.
		r.Faulty.SetCondition(recovery.ErrFull)
		rig.Pass(10 * time.Second)
		r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, open[3])
		r.WantFollowUps("a ledger that is running out of room", "x", 4, 4, 0, 0)
		r.Faulty.SetCondition(nil)
		rig.Pass(10 * time.Second)
		r.Faulty.SetFull(true)
		r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, open[4])
		r.WantFollowUps("a ledger that refuses new tasks", "x", 5, 5, 0, 0)
		r.Faulty.SetFull(false)
		if got := r.MustGet("a4"); got.State != tasks.Dead {
			t.Errorf("it is %v", got.State)
		}
		r.Crash()
		rig.Pass(time.Second)
		if list := r.Pages(tasks.Query{Topic: "mourners"}); len(list) != 5 {
			t.Errorf("there are %d follow-ups", len(list))
		}
		r.CheckConsistency()
	})
}

// Follow-ups obey max_bytes: a dead task makes room for no more than it used itself. Without room
// it is dead, and that is all. It is counted, and one line of the log says so.
func TestOnDeadObeysMaxBytes(t *testing.T) {
	const bound = 1 << 20
	rig.Bubble(t, tasks.Config{MaxBytes: bound}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", mourned("mourners"))
		r.Must(tasks.Request{ID: "a", Topic: "x"})
		d := r.Pull("x", "a")[0]
		r.Fill("large", "y", 16<<10)
		r.Fill("small", "y", 1)
		r.SettleOne(tasks.Verdict{Verb: tasks.Bury, Reason: strings.Repeat("why ", 100)}, d)
		r.WantFollowUps("at max_bytes", "x", 1, 0, 1, 0)
		if live := r.Stats().ArenaLive; live > bound {
			t.Errorf("%d of %d bytes are in use", live, bound)
		}
		if n := r.Log.Count("a dead task is not followed by another"); n != 1 {
			t.Errorf("%d lines: %s", n, r.Log.All())
		}
	})
}

// Chains of deaths end.
func TestOnDeadChains(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		for what, one := range map[string]tasks.TopicSettings{
			"x":         {OnDead: tasks.OnDead{Topic: "x"}},
			"-":         {},
			"no name":   {OnDead: tasks.OnDead{Topic: "a b"}},
			"no topic":  {OnDead: tasks.OnDead{Delay: time.Second}},
			"too late":  {OnDead: tasks.OnDead{Topic: "y", Delay: 2 * tasks.MaxAhead}},
			"too early": {OnDead: tasks.OnDead{Topic: "y", Delay: -1}},
		} {
			if what == "-" {
				continue
			}
			_, err := r.SetTopic(ctx, "x", one, -1)
			rig.Want(t, what, err, tasks.ErrInvalid)
		}
		r.MustSetTopic("x", mourned("y"))
		r.MustSetTopic("y", mourned("z"))
		_, err := r.SetTopic(ctx, "z", mourned("x"), -1)
		wantFaults(t, "a circle", err, "on_dead.topic")
		if !strings.Contains(err.Error(), "z -> x -> y -> z") {
			t.Error(err)
		}
		_, err = r.Admin().ChangeTopic(ctx, "z", -1, func(set *tasks.TopicSettings) error { set.OnDead.Topic = "y"; return nil })
		wantFaults(t, "a smaller one", err, "on_dead.topic")

		// A circle that was not seen: settings of two nodes, or of one moment after the
		// other.
		r.MustSetTopic("z", mourned("w"))
		die := func(topic string) {
			t.Helper()
			ds, err := r.Reserve(ctx, topic, 1, 0, 0)
			if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
				t.Fatalf("%s has %d tasks", topic, len(ds))
			}
			r.SettleOne(tasks.Verdict{Verb: tasks.Bury, Reason: "of " + topic}, ds[0])
		}
		r.Must(tasks.Request{ID: "a", Topic: "x"})
		die("x")
		die("y")
		die("z")
		if h := r.Only("w").Headers; h["lapse-dead-via"] != "x,y,z" || h["lapse-dead-topic"] != "z" || h["lapse-dead-error"] != "of z" {
			t.Errorf("at the end of the chain: %v", h)
		}
		r.MustSetTopic("x", tasks.TopicSettings{})
		r.MustSetTopic("w", mourned("x"))
		die("w")
		r.WantFollowUps("the circle is closed", "w", 1, 0, 0, 1)
		if !r.Log.Has("its chain of deaths ends here") || !r.Log.Has("chain=x,y,z,w") {
			t.Error(r.Log.All())
		}

		// Long chains.
		r.MustSetTopic("long", mourned("next"))
		via := strings.Repeat("t,", tasks.MaxDeaths-1)
		r.Must(tasks.Request{ID: "b", Topic: "long", Headers: map[string]string{"lapse-dead-via": via + "t"}})
		r.Must(tasks.Request{ID: "c", Topic: "long", Headers: map[string]string{"lapse-dead-via": strings.TrimSuffix(via, ",")}})
		die("long")
		die("long")
		r.WantFollowUps("long chains", "long", 2, 1, 0, 1)
		if got := r.Only("next").Headers["lapse-dead-id"]; got != "c" {
			t.Errorf("followed is %s", got)
		}
	})
}

// A spooled task that dies is followed when the ledger is back, and buries it.
func TestOnDeadSpooled(t *testing.T) {
	for _, crash := range []bool{false, true} {
		rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
			r.MustSetTopic("x", mourned("mourners"))
			r.Away()
			id := r.Spooled("x", 0)
			r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, r.Pull("x", id)[0])
			if list := r.Pages(tasks.Query{Topic: "mourners"}); len(list) != 0 {
				t.Errorf("followed before it is dead: %q", rig.IDsOf(list))
			}
			if crash {
				r.CrashBoth()
				rig.Pass(time.Second)
				r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, r.Pull("x", id)[0])
			}
			r.Faulty.Heal()
			rig.Pass(10 * time.Second)
			if got := r.Only("mourners").Headers["lapse-dead-id"]; got != id {
				t.Errorf("followed is %s", got)
			}
			r.InLedger(id, recovery.Dead)
			r.CheckConsistency()
		})
	}
}

// The storage loses the burial and the follow-up, in the middle or afterwards. Both come back.
func TestOnDeadLost(t *testing.T) {
	rig.RewoundBubble(t, nil, func(t *testing.T, r *rig.RewindRig) {
		ctx := t.Context()
		_, err := r.SetTopic(ctx, "x", mourned("mourners"), -1)
		rig.Want(t, "SetTopic", err, nil)
		for i, confirmed := range []bool{false, true} {
			id := fmt.Sprint("a", i)
			_, err = r.Schedule(ctx, tasks.Request{ID: id, Topic: "x"})
			rig.Want(t, "Schedule", err, nil)
			var old recovery.Entry
			rig.Want(t, "Get", r.Ledger.Get(ctx, 0, []recovery.Ref{{ID: id, Next: r.Held()[id]}}, func(_ int, e recovery.Entry) {
				old = e
				old.Data = append([]byte(nil), e.Data...)
			}), nil)
			ds, err := r.Reserve(ctx, "x", 1, 0, 0)
			rig.Want(t, "Reserve", err, nil)
			lose := func(b *recovery.Batch) {
				if b.Len() != 2 {
					t.Errorf("the batch has %d changes", b.Len())
				}
				next := b.At(0)
				dead := b.At(1)
				var loss recovery.Batch
				loss.Add(recovery.Change{ID: next.ID, From: next.To})
				loss.Add(recovery.Change{ID: dead.ID, From: dead.To, To: recovery.Spot{Place: recovery.Pending, At: old.Spot.At}, Data: old.Data})
				r.Loses(&loss)
				if !confirmed {
					r.Storage.Watcher.Rewound(0)
				}
			}
			r.Storage.Lose = lose
			_, err = r.Settle(ctx, tasks.Verdict{Verb: tasks.Bury}, []string{ds[0].Receipt()})
			rig.Want(t, "Settle", err, nil)
			rig.Pass(time.Second)
			if confirmed {
				r.Storage.Watcher.Rewound(0)
			}
			rig.Pass(time.Minute)
			page, err := r.Asked.List(ctx, tasks.Query{Topic: "mourners"})
			if rig.Want(t, "List", err, nil); len(page.Tasks) != i+1 {
				t.Errorf("confirmed %v: there are %d follow-ups", confirmed, len(page.Tasks))
			}
			if got, err := r.Asked.Get(ctx, id); err != nil || got.State != tasks.Dead {
				t.Errorf("confirmed %v: the dead task is %v, %v", confirmed, got.State, err)
			}
			if _, there := r.Held()[id]; there {
				t.Errorf("confirmed %v: the dead task is pending in the ledger", confirmed)
			}
		}
	})
}
