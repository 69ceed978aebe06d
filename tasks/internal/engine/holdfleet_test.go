package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Any node holds a task, and the rest of its countdown goes with its shard, whether that is handed
// over or adopted.
func TestHoldAtAllNodes(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: 30 * time.Minute})
		chosen := a.Create(Request{ID: "order-42", Topic: "x", Delay: 30 * time.Minute})
		rig.Pass(10 * time.Minute)
		for _, one := range []string{id, chosen} {
			for range 2 {
				got, err := b.Hold(ctx, one)
				if rig.Want(t, "Hold", err, nil); got.State != Held || got.Remaining != 20*time.Minute || got.Revision != 2 || got.HeldAt.IsZero() {
					t.Errorf("held: %+v", got)
				}
			}
		}
		wantHeld := func(what string, atA, atB int64) {
			t.Helper()
			for n, want := range map[*rig.Node]int64{a: atA, b: atB} {
				if n.Dead {
					continue
				}
				if got := n.Stats().Total.Held; got != want {
					t.Errorf("%s: %s counts %d; want %d", what, n.Name, got, want)
				}
				got, sorted := n.Pages(Query{State: Held}), []string{id, chosen}
				slices.Sort(sorted)
				if !slices.Equal(got, sorted) {
					t.Errorf("%s: %s lists %q; want %q", what, n.Name, got, sorted)
				}
				for _, one := range sorted {
					if got := n.MustGet(one); got.State != Held || got.Remaining != 20*time.Minute {
						t.Errorf("%s: at %s: %+v", what, n.Name, got)
					}
				}
				n.Check()
			}
		}
		wantHeld("held", 2-b.Stats().Total.Held, b.Stats().Total.Held)
		fc, _, err := b.Admin().FleetForecast(ctx, Outlook{Window: time.Hour, Step: time.Minute})
		if err != nil || fc.Held != 2 || slices.Max(fc.Counts) != 0 || fc.Later != 0 {
			t.Errorf("forecast %+v, %v", fc, err)
		}
		b.Keeps.Store(true)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(time.Hour)
		wantHeld("handed over", 0, 2)
		b.Crash()
		a.Adopt(b)
		rig.Pass(time.Hour)
		wantHeld("adopted", 2, 0)
		got, err := a.Resume(ctx, id)
		if rig.Want(t, "Resume", err, nil); got.State != Pending || !got.Due.Equal(clockNow(a).Truncate(time.Millisecond).Add(20*time.Minute)) {
			t.Errorf("resumed: %+v", got)
		}
	})
}

// clockNow is the wall clock of a node.
func clockNow(n *rig.Node) time.Time { return n.Engine().Config.Clock() }

// A node of an earlier version does not know the calls. The caller is told so, and a held task that
// such a node has adopted is neither delivered nor lost: its record is of a newer version.
func TestHoldAtAnEarlierVersion(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Nodes[0], f.Nodes[1]
		id := b.Create(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Minute})
		held := b.Create(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Minute})
		_, err := a.Hold(ctx, held)
		rig.Want(t, "Hold", err, nil)
		delete(b.Cluster().Fleet.Methods, "hold")
		delete(b.Cluster().Fleet.Methods, "resume")
		for _, call := range []func(context.Context, string) (Task, error){a.Hold, a.Resume} {
			_, err := call(ctx, id)
			rig.Want(t, "a call of tomorrow", err, ErrUnavailable)
			rig.Want(t, "a call of tomorrow", err, cluster.ErrNotUnderstood)
		}
		if got := b.MustGet(id); got.State != Pending {
			t.Errorf("it is %v", got.State)
		}
	})
}

// Many tasks are held by a filter, call by call, and resumed. A repeated call changes nothing more.
func TestActsHold(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 2} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			rig.FleetBubble(t, nodes, func(t *testing.T, f *rig.Fleet) {
				ctx, left := t.Context(), map[string]time.Duration{}
				turn := 0
				next := func() *Scheduler { turn++; return f.Nodes[turn%nodes].Scheduler }
				for i := range 40 {
					topic := []string{"x", "x", "x", "y"}[i%4]
					one, err := next().Schedule(ctx, Request{ID: fmt.Sprint("t", i), Topic: topic, Delay: time.Duration(i+10) * time.Minute})
					rig.Want(t, "Schedule", err, nil)
					if topic == "x" {
						left[one.ID] = time.Duration(i+5) * time.Minute
					}
				}
				rig.Pass(5 * time.Minute)
				_, err := next().Hold(ctx, "t1") // by another caller
				rig.Want(t, "Hold", err, nil)
				hold := Act{Action: HoldAction, Query: Query{Topic: "x", Limit: 7}}
				dry := hold
				dry.Dry = true
				if got := acted(t, next, dry); got.Matched != 30 || got.Done != 0 {
					t.Errorf("counted %+v", got)
				}
				if got := acted(t, next, hold); got.Done != 30 || len(got.Failed) != 0 {
					t.Errorf("held %+v", got)
				}
				rig.Pass(time.Hour)
				if got := acted(t, next, hold); got.Done != 30 {
					t.Errorf("held again %+v", got)
				}
				for id, rest := range left {
					if got, err := next().Get(ctx, id); err != nil || got.State != Held || got.Remaining != rest || id == "t1" && got.Revision != 2 {
						t.Errorf("%+v, %v; want %v", got, err, rest)
					}
				}
				// A shift leaves them held.
				if got := acted(t, next, Act{Action: MoveAction, Shift: time.Minute, Query: Query{Topic: "x", State: Held, Limit: 7}}); got.Done != 30 {
					t.Errorf("moved %+v", got)
				}
				rig.Pass(time.Millisecond) // actions of one millisecond come in any order
				for _, state := range []State{Pending, Ready, Retrying} {
					_, err := next().Admin().Act(ctx, Act{Action: ResumeAction, Query: Query{Topic: "x", State: state}})
					rig.Want(t, "resume of "+state.String(), err, ErrInvalid)
				}
				resume := Act{Action: ResumeAction, Query: Query{Topic: "x", Limit: 7}}
				dry = resume
				dry.Dry = true
				if got := acted(t, next, dry); got.Matched != 30 || got.Done != 0 {
					t.Errorf("counted %+v", got)
				}
				now := clockNow(f.Nodes[0])
				one, err := next().Admin().Act(ctx, Act{Action: ResumeAction, IDs: []string{"t1", "t3", "nobody"}})
				if rig.Want(t, "Act", err, nil); one.Done != 2 || len(one.Failed) != 1 || !errors.Is(one.Failed[0].Err, ErrNotFound) {
					t.Errorf("resumed %+v", one) // t3 was not held
				}
				if got := acted(t, next, resume); got.Done != 29 {
					t.Errorf("resumed %+v", got)
				}
				if got := acted(t, next, resume); got.Matched != 0 {
					t.Errorf("resumed again %+v", got)
				}
				for id, rest := range left {
					if got, err := next().Get(ctx, id); err != nil || got.State != Pending || !got.Due.Equal(now.Add(rest+time.Minute)) {
						t.Errorf("%+v, %v; want %v after %v", got, err, rest+time.Minute, now)
					}
				}
			})
		})
	}
}

// A task in the spool is held there, and stays held when the ledger gets it.
func TestHoldInTheSpool(t *testing.T) {
	t.Parallel()
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		r.Away()
		id := r.Spooled("x", time.Hour)
		if got := hold(r.Rig, id); !got.Spooled && !r.MustGet(id).Spooled {
			t.Errorf("held: %+v", got)
		}
		r.CrashBoth()
		wantLeft(r.Rig, "after a crash", r.MustGet(id), time.Hour)
		r.Faulty.Heal()
		r.WantSpool(0, 1)
		rig.Pass(5 * time.Hour)
		wantHeld(r.Rig, "in the ledger", id)
		resume(r.Rig, id)
		rig.Pass(time.Hour)
		r.Pull("x", id)
	}, memledger.Shards(4))
}

// A hold whose outcome is not known may be repeated. One that was not sent has not happened.
func TestHoldWithoutTheLedger(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "a", Topic: "x", Delay: time.Hour})
		r.Must(Request{ID: "b", Topic: "x", Delay: time.Hour})
		_, release := r.Faulty.Hold(ledgertest.Apply)
		_, err := r.Hold(t.Context(), "a")
		rig.Want(t, "Hold", err, ErrUnknown)
		_, err = r.Hold(t.Context(), "b")
		rig.Want(t, "Hold behind it", err, ErrUnavailable)
		release()
		rig.Pass(time.Second)
		if got := hold(r, "a"); got.Revision != 2 || got.Remaining != time.Hour {
			t.Errorf("repeated: %+v", got)
		}
		wantHeld(r, "repeated", "a")
		if got := r.MustGet("b"); got.State != Pending || got.Revision != 1 {
			t.Errorf("the other: %+v", got)
		}
		_, release = r.Faulty.Hold(ledgertest.Apply)
		_, err = r.Resume(t.Context(), "a")
		rig.Want(t, "Resume", err, ErrUnknown)
		release()
		rig.Pass(time.Second)
		due := r.MustGet("a").Due
		if got := resume(r, "a"); got.Revision != 3 || !got.Due.Equal(due) {
			t.Errorf("repeated: %+v", got)
		}
		wantHeld(r, "resumed")
	})
}

// The real ledgers keep a held task, too.
func TestHoldOnRealLedgers(t *testing.T) {
	t.Parallel()
	t.Run("disk", func(t *testing.T) {
		dir := t.TempDir()
		holdThrough(t, func() *Scheduler {
			ledger, err := diskledger.Open(dir, diskledger.Options{})
			rig.Want(t, "open", err, nil)
			s, err := Open(t.Context(), ledger, Config{Log: slog.New(slog.DiscardHandler)})
			rig.Want(t, "Open", err, nil)
			return s
		})
	})
	t.Run("redis", func(t *testing.T) {
		url := redistest.Start(t).URL()
		holdThrough(t, func() *Scheduler {
			ledger, err := redisledger.Open(redisledger.Options{
				URL: url, Node: "a", Shards: 4, FailoverAfter: time.Second, Log: slog.New(slog.DiscardHandler),
			})
			rig.Want(t, "open", err, nil)
			s, err := Open(t.Context(), ledger, Config{Log: slog.New(slog.DiscardHandler)})
			rig.Want(t, "Open", err, nil)
			<-rig.Engine(s).Reading.Replayed
			return s
		})
	})
}

// holdThrough holds tasks through restarts.
func holdThrough(t *testing.T, open func() *Scheduler) {
	s, ctx := open(), t.Context()
	for _, id := range []string{"a", "b"} {
		_, err := s.Schedule(ctx, Request{ID: id, Topic: "x", Delay: 200 * time.Millisecond})
		rig.Want(t, "Schedule", err, nil)
		_, err = s.Hold(ctx, id)
		rig.Want(t, "Hold", err, nil)
	}
	held, err := s.Get(ctx, "a")
	rig.Want(t, "Get", err, nil)
	for range 2 {
		rig.Want(t, "Close", s.Close(context.Background()), nil)
		s = open()
		<-rig.Engine(s).Reading.Replayed
		got, err := s.Get(ctx, "a")
		if rig.Want(t, "Get", err, nil); got.State != Held || got.Remaining != held.Remaining || !got.HeldAt.Equal(held.HeldAt) || got.Revision != 2 {
			t.Errorf("after a restart: %+v; want %+v", got, held)
		}
	}
	rig.Want(t, "Cancel", s.Cancel(ctx, "b"), nil)
	_, err = s.Resume(ctx, "a")
	rig.Want(t, "Resume", err, nil)
	ds, err := s.Reserve(ctx, "x", 2, time.Minute, 0)
	if err != nil || len(ds) != 1 || ds[0].ID != "a" {
		t.Errorf("reserved %+v, %v", ds, err)
	}
	rig.Want(t, "Close", s.Close(context.Background()), nil)
}

// An action at a node that may have handed the task's shard over says nothing about the task, also
// if it stands there as the action wants it.
func TestActsDuringAHandOver(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		_, err := a.Hold(ctx, id)
		rig.Want(t, "Hold", err, nil)
		b.Keeps.Store(true)
		shardID, _ := recovery.ShardIDOf(id)
		a.Member.Fail("Transferred", slices.Repeat([]error{recovery.ErrUnanswered}, 40)...)
		rig.Want(t, "hand-over", a.HandTo(b), ErrUnknown)
		if ok, err := b.Member.Accept(ctx, shardID); !ok || err != nil {
			t.Fatalf("Accept: %v, %v", ok, err)
		}
		rig.Pass(time.Second)
		_, err = b.Resume(ctx, id)
		rig.Want(t, "Resume", err, nil)
		if acted, err := a.Admin().Act(ctx, Act{Action: HoldAction, IDs: []string{id}}); acted.Done != 0 {
			t.Errorf("a node that has lost the task holds it: %+v, %v", acted, err)
		}
		rig.Pass(time.Minute)
	})
}
