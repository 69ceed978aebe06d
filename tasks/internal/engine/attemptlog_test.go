package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// story returns the attempts of a task as text.
func story(attempts []Attempt) (all []string) {
	for _, a := range attempts {
		all = append(all, fmt.Sprint(a.Number, " ", a.Outcome, " by ", a.By, " in ", a.Took, ": ", a.Error))
	}
	return all
}

// attempted wants a task to have failed so.
func attempted(r *rig.Rig, what, id string, wanted ...string) {
	r.T.Helper()
	if got := story(r.MustGet(id).Attempts); !slices.Equal(got, wanted) {
		r.T.Errorf("%s: the attempts are\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

// reserveAs reserves one task for a receiver of that name.
func reserveAs(r *rig.Rig, name, topic string) Delivery {
	r.T.Helper()
	ds, err := r.Reserve(WithReceiver(r.T.Context(), name), topic, 1, 0, 0)
	if err != nil || len(ds) != 1 {
		r.T.Fatalf("Reserve: %v, %v", ds, err)
	}
	return ds[0]
}

// The record of a task tells when and why its last attempts failed, and who had it.
func TestAttempts(t *testing.T) {
	rig.Bubble(t, Config{Node: "n1"}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Lease: 10 * time.Second, Retry: Retry{MinBackoff: time.Hour, MaxBackoff: time.Hour}})
		r.Must(Request{ID: "t", Topic: "x"})
		attempted(r, "no attempt", "t")
		d := reserveAs(r, "workers", "x")
		attempted(r, "an open attempt", "t")
		rig.Pass(2 * time.Second)
		again := time.Duration(0)
		r.SettleOne(Verdict{Verb: Release, Delay: &again, Reason: "no stock"}, d)
		ended := r.Clock.Now()
		wanted := []string{"1 failed by workers in 2s: no stock"}
		attempted(r, "released", "t", wanted...)
		if at := r.MustGet("t").Attempts[0].Ended; !at.Equal(ended.Truncate(time.Millisecond)) {
			t.Errorf("it ended at %v; want %v", at, ended)
		}

		// A return is no attempt. A lease that was extended runs from the hand-out.
		r.SettleOne(Verdict{Verb: Return}, r.Pull("x", "t")[0])
		d = r.Pull("x", "t")[0]
		if len(d.Attempts) != 0 {
			t.Errorf("a delivery has attempts: %v", story(d.Attempts))
		}
		rig.Pass(9 * time.Second)
		r.SettleOne(Verdict{Verb: Extend}, d)
		rig.Pass(11 * time.Second)
		wanted = append(wanted, "2 lease_expired by n1 in 20s: the lease ran out")
		if got := r.MustGet("t").Attempts; len(got) == 2 {
			got[1].Took = got[1].Took.Truncate(time.Second) // the sweep finds it
			if !slices.Equal(story(got), wanted) && got[1].Took != 19*time.Second {
				t.Errorf("the lease ran out: %q", story(got))
			}
			wanted[1] = story(r.MustGet("t").Attempts)[1]
		} else {
			t.Fatalf("the lease ran out: %q", story(got))
		}

		// What others do with the task keeps them, until a PUT makes another task of it.
		_, err := r.Reschedule(t.Context(), "t", Move{Delay: rig.Ptr(time.Hour), Payload: []byte("1")})
		rig.Want(t, "Reschedule", err, nil)
		attempted(r, "moved", "t", wanted...)
		_, err = r.Fire(t.Context(), "t")
		rig.Want(t, "Fire", err, nil)
		r.SettleOne(Verdict{Verb: Bury, Reason: "no such order"}, reserveAs(r, "workers", "x"))
		wanted = append(wanted, "3 buried by workers in 1ms: no such order")
		attempted(r, "buried", "t", wanted...)
		page, err := r.Admin().DeadTasks(t.Context(), "x", 0, "")
		rig.Want(t, "DeadTasks", err, nil)
		if len(page.Tasks) != 1 || !slices.Equal(story(page.Tasks[0].Attempts), wanted) {
			t.Errorf("listed as dead: %+v", page.Tasks)
		}
		_, err = r.Admin().Requeue(t.Context(), "x", Requeue{Delay: time.Hour})
		rig.Want(t, "Requeue", err, nil)
		attempted(r, "requeued", "t", wanted...)
		_, err = r.Replace(t.Context(), Request{ID: "t", Topic: "x", Delay: time.Minute})
		rig.Want(t, "Replace", err, nil)
		attempted(r, "replaced", "t")
	})
}

// A named deliverer is a deliverer that says what it delivers to.
type namedDeliverer struct {
	HandlerFunc
	name string
}

func (d namedDeliverer) Receiver() string { return d.name }

// The last ten attempts are kept, and the next one knows those of before a restart and of before a
// crash. No attempt is a write of its own.
func TestLastAttempts(t *testing.T) {
	rig.Bubble(t, Config{Node: "n1"}, func(t *testing.T, r *rig.Rig) {
		backoff := TopicSettings{Retry: Retry{MaxAttempts: 25, MinBackoff: time.Second, MaxBackoff: time.Second}}
		r.MustSetTopic("x", backoff)
		fail := func(_ context.Context, d *Delivery) error {
			time.Sleep(30 * time.Millisecond)
			return fmt.Errorf("luck %d", d.Attempt)
		}
		r.MustHandle("x", fail)
		r.Must(Request{ID: "t", Topic: "x"})
		rig.Pass(0)
		changes := r.Stats().Ledger.Changes
		for r.MustGet("t").Attempt < 12 || r.MustGet("t").State != Pending {
			rig.Pass(10 * time.Millisecond)
		}
		if n := r.Stats().Ledger.Changes - changes; n != 12 {
			t.Errorf("12 attempts took %d writes", n)
		}
		last := func(from, to int) (all []string) {
			for i := from; i <= to; i++ {
				all = append(all, fmt.Sprintf("%d failed by n1 in 30ms: luck %d", i, i))
			}
			return all
		}
		attempted(r, "after 12", "t", last(3, 12)...)
		r.Restart()
		rig.Pass(0)
		attempted(r, "after a restart", "t", last(3, 12)...)
		r.Crash()
		rig.Pass(0)
		attempted(r, "after a crash", "t", last(3, 12)...)
		r.MustHandle("x", fail)
		for r.MustGet("t").State != Dead {
			rig.Pass(10 * time.Millisecond)
		}
		attempted(r, "dead", "t", last(16, 25)...)
		r.CheckConsistency()
	})
}

// Long texts are cut, and the record stays within its bound. A large payload is not touched.
func TestAttemptsAreBounded(t *testing.T) {
	rig.Bubble(t, Config{MaxPayload: 1 << 20}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 100}})
		payload := make([]byte, 1<<20)
		r.Must(Request{ID: "t", Topic: "x", Payload: payload})
		again := time.Duration(0)
		for i := range 30 {
			d := reserveAs(r, fmt.Sprint(i, strings.Repeat("ö", 1000)), "x")
			r.SettleOne(Verdict{Verb: Release, Delay: &again, Reason: fmt.Sprint(i, strings.Repeat("ä", 1000))}, d)
			f := r.InLedger("t", recovery.Pending)
			if len(f.Attempts) > record.MaxAttemptBytes || len(f.Payload) != len(payload) {
				t.Fatalf("%d bytes of attempts, %d of payload", len(f.Attempts), len(f.Payload))
			}
		}
		all := r.MustGet("t").Attempts
		if len(all) < 5 || all[len(all)-1].Number != 30 {
			t.Errorf("%d attempts are left", len(all))
		}
		for i, a := range all {
			if a.Number != 30-len(all)+1+i || len(a.By) > MaxAttemptBy || len(a.Error) > MaxAttemptError || !strings.HasSuffix(a.By, "ö") || !strings.HasSuffix(a.Error, "ä") {
				t.Errorf("attempt %d: %d bytes, %d bytes", a.Number, len(a.By), len(a.Error))
			}
		}
	})
}

// The attempts of a topic that fails leave room for the tasks of others: new tasks come before
// history. Where tasks take up the rest of the memory, the next failures make room again.
func TestAttemptsLeaveRoom(t *testing.T) {
	t.Parallel()
	const failing = 500
	rig.Bubble(t, Config{MaxBytes: 1 << 20}, func(t *testing.T, r *rig.Rig) {
		for i := range failing {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "bad"})
		}
		round, rounds := 0, 14
		fail := func() {
			t.Helper()
			round++
			ds, err := r.Reserve(t.Context(), "bad", failing, 0, 0)
			if rig.Want(t, "Reserve", err, nil); len(ds) != failing {
				t.Fatalf("%d deliveries", len(ds))
			}
			for i, d := range ds {
				r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Duration(0)), Reason: fmt.Sprint(round, i, strings.Repeat("e", 250))}, d)
			}
		}
		other := Request{Topic: "good", Delay: time.Hour, Payload: make([]byte, 1000)}
		for round < rounds {
			fail()
			if round == 2 && len(r.MustGet("t0").Attempts) != 2 {
				t.Errorf("there is room, but the task has the attempts %v", r.MustGet("t0").Attempts)
			}
			for range 10 {
				_, err := r.Schedule(t.Context(), other)
				rig.Want(t, fmt.Sprint("a schedule of another topic after failure ", round), err, nil)
			}
		}
		history := func() bool {
			for i := range failing {
				if len(r.MustGet(fmt.Sprint("t", i)).Attempts) > 0 {
					return true
				}
			}
			return false
		}
		if !history() {
			t.Error("no attempts are kept, although tasks use a third of the room")
		}
		before := r.Fill("before", "good", len(other.Payload))
		fail()
		if again := r.Fill("after", "good", len(other.Payload)); again < before {
			t.Errorf("%d tasks more found room beside history, %d once it had gone", before, again)
		}
		if fail(); history() {
			t.Error("attempts are kept although tasks take up the room")
		}
	})
}

// A task that has not failed has no attempts in its record, and neither has one whose attempts were
// forgotten because memory is full.
func TestAttemptsInTheRecord(t *testing.T) {
	rig.Bubble(t, Config{MaxBytes: 1 << 20}, func(t *testing.T, r *rig.Rig) {
		attempts := func(what string, wanted bool) {
			t.Helper()
			rig.Mutex(r.Engine()).Lock()
			defer rig.Mutex(r.Engine()).Unlock()
			n, _ := r.Engine().Store.Find([]byte("t"))
			if f := r.Engine().Store.Fields(r.Engine().Store.Slot(n)); (len(f.Attempts) > 0) != wanted {
				t.Errorf("%s: the record has attempts of %d bytes; want some: %t", what, len(f.Attempts), wanted)
			}
		}
		r.Must(Request{ID: "t", Topic: "x"})
		attempts("scheduled", false)
		d := r.Pull("x", "t")[0]
		r.SettleOne(Verdict{Verb: Return}, d)
		attempts("returned", false)
		fails(r, "t", 0)
		attempts("failed", true)
		for i := range 16 {
			r.Must(Request{ID: fmt.Sprint("full", i), Topic: "y", Payload: make([]byte, 65_000), Delay: time.Hour})
		}
		grown := make([]byte, 20_000)
		_, err := r.Schedule(t.Context(), Request{ID: "more", Topic: "y", Payload: grown, Delay: time.Hour})
		rig.Want(t, "Schedule", err, ErrOverloaded)
		for i := 0; r.Stats().ArenaLive < 1<<20; i++ { // bit by bit
			r.Must(Request{ID: fmt.Sprint("bit", i), Topic: "z"})
			r.SettleOne(Verdict{Verb: Release, Reason: strings.Repeat("r", 1000)}, r.Pull("z", fmt.Sprint("bit", i))[0])
		}
		fails(r, "t", 0)
		attempts("failed while memory is full", false)
		attempted(r, "failed while memory is full", "t")
	})
}

// In a topic that counts crashes, attempts during which the process ended are there as well.
func TestAttemptsOfCrashes(t *testing.T) {
	rig.Bubble(t, Config{Node: "n1"}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{CountCrashes: true, Lease: time.Hour, Retry: Retry{MaxAttempts: 3, MinBackoff: time.Second, MaxBackoff: time.Second}})
		r.Must(Request{ID: "t", Topic: "x"})
		crashed := func(n int) string {
			return fmt.Sprintf("%d process_ended by  in 0s: the process ended during the attempt", n)
		}
		r.Pull("x", "t")
		r.Crash()
		rig.Pass(0)
		attempted(r, "not noticed yet", "t")
		d := r.Pull("x", "t")[0]
		attempted(r, "handed out again", "t", crashed(1))
		r.SettleOne(Verdict{Verb: Return}, d) // the attempt does not count
		attempted(r, "returned", "t", crashed(1))
		if d = r.Pull("x", "t")[0]; d.Attempt != 2 {
			t.Errorf("attempt %d", d.Attempt)
		}
		r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Duration(0))}, d)
		r.Pull("x", "t")
		r.Crash()
		rig.Pass(0)
		r.Pull("x") // the last attempt was spent
		rig.Pass(0)
		attempted(r, "dead", "t", crashed(1), "2 failed by n1 in 1ms: released", "3 process_ended by  in 0s: the process ended during the last attempt")
		if task := r.MustGet("t"); task.State != Dead || task.Reason != Exhausted {
			t.Errorf("it is %v, %s", task.State, task.Reason)
		}
		r.CheckConsistency()
	})
}

// A delivery that was open when the server stopped ends in the next process, which does not know
// how long it took.
func TestAttemptThatOutlivesItsProcess(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		rig.Pass(time.Second)
		r.Restart()
		rig.Pass(time.Second)
		r.SettleOne(Verdict{Verb: Release, Reason: "no luck"}, d)
		attempted(r, "parked", "t", "1 failed by  in 0s: no luck")
		rig.Pass(time.Hour)
		d = r.Pull("x", "t")[0]
		r.Crash()
		rig.Pass(time.Second)
		r.SettleOne(Verdict{Verb: Release, Reason: "no luck again"}, d)
		attempted(r, "not parked", "t", "1 failed by  in 0s: no luck", "2 failed by  in 0s: no luck again")
	})
}

// Attempts that fail during an outage are recorded with the next write.
func TestAttemptsInAnOutage(t *testing.T) {
	rig.Bubble(t, Config{Node: "n1"}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
		d := r.One("t", "x")
		heal := outage(r)
		for i := range 3 {
			if i > 0 {
				rig.Pass(2 * time.Second)
				d = r.Pull("x", "t")[0]
			}
			r.SettleOne(Verdict{Verb: Release, Reason: fmt.Sprint("luck ", i)}, d)
		}
		heal()
		rig.Pass(time.Second)
		f := r.InLedger("t", recovery.Pending)
		recorded, err := record.DecodeAttempts(f.Attempts)
		rig.Want(t, "DecodeAttempts", err, nil)
		if len(recorded) != 3 || string(recorded[2].Error) != "luck 2" {
			t.Errorf("the ledger has %d attempts", len(recorded))
		}
		r.Crash()
		rig.Pass(time.Second)
		if got := r.MustGet("t").Attempts; len(got) != 3 {
			t.Errorf("after a crash: %q", story(got))
		}
	})
}

// Any node tells of the attempts of a task, also after another one has adopted it, and names the
// node whose receiver had it.
func TestAttemptsAmongNodes(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		a.Must(Request{ID: "t", Topic: "x"})
		fail := func(n *rig.Node, verb Verb) {
			t.Helper()
			ds, err := n.Reserve(t.Context(), "x", 1, time.Minute, 0)
			if err != nil || len(ds) != 1 {
				t.Fatalf("Reserve: %v, %v", ds, err)
			}
			if _, err = n.Settle(t.Context(), Verdict{Verb: verb, Reason: "no luck"}, []string{ds[0].Receipt()}); err != nil {
				t.Fatal(err)
			}
		}
		fail(a, Release)
		fail(b, Release)
		wanted := []string{"1 failed by a in 1ms: no luck", "2 failed by b in 1ms: no luck"}
		for _, n := range f.Nodes {
			if got, err := n.Get(t.Context(), "t"); err != nil || !slices.Equal(story(got.Attempts), wanted) {
				t.Errorf("node %s: %q, %v", n.Name, story(got.Attempts), err)
			}
		}
		a.Crash()
		b.Adopt(a)
		rig.Pass(time.Minute)
		wanted = append(wanted, "3 buried by b in 1ms: no luck")
		fail(b, Bury)
		page, err := b.Admin().DeadTasks(t.Context(), "x", 0, "")
		rig.Want(t, "DeadTasks", err, nil)
		if len(page.Tasks) != 1 || !slices.Equal(story(page.Tasks[0].Attempts), wanted) {
			t.Errorf("adopted: %+v", page.Tasks)
		}
		c := f.Join("c", 1, Config{})
		page, err = c.Admin().DeadTasks(t.Context(), "x", 0, "")
		rig.Want(t, "DeadTasks", err, nil)
		if len(page.Tasks) != 1 || !slices.Equal(story(page.Tasks[0].Attempts), wanted) {
			t.Errorf("another node lists: %+v", page.Tasks)
		}
	}, Config{}, Config{})
}

// The attempts name what the deliverer of a topic delivers to, also after it was set otherwise.
func TestAttemptsNameTheirReceiver(t *testing.T) {
	way := &namedWay{}
	rig.Bubble(t, Config{Node: "n1", Ways: []Way{way}}, func(t *testing.T, r *rig.Rig) {
		to := func(place string) TopicSettings {
			return TopicSettings{Kind: "named", Delivery: []byte(`{"to":"` + place + `"}`), Retry: Retry{MinBackoff: time.Second, MaxBackoff: time.Second}}
		}
		r.MustSetTopic("x", to("rome"))
		r.Must(Request{ID: "t", Topic: "x"})
		rig.Pass(0)
		r.MustSetTopic("x", to("oslo")) // while the first attempt goes on
		rig.Pass(2500 * time.Millisecond)
		got := story(r.MustGet("t").Attempts)
		if len(got) < 2 || got[0] != "1 failed by rome in 500ms: closed" || got[1] != "2 failed by oslo in 500ms: closed" {
			t.Errorf("%q", got)
		}
	})
}

// A namedWay has deliverers that fail after half a second.
type namedWay struct{}

func (*namedWay) Kind() Kind { return "named" }

func (*namedWay) Deliverer(_ string, settings json.RawMessage) (Deliverer, error) {
	var place struct{ To string }
	if err := json.Unmarshal(settings, &place); err != nil {
		return nil, err
	}
	return namedDeliverer{name: place.To, HandlerFunc: func(context.Context, *Delivery) error {
		time.Sleep(500 * time.Millisecond)
		return errors.New("closed")
	}}, nil
}
