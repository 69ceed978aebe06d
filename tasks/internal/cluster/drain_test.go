package cluster_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A drained node has handed everything over, evenly, and takes nothing any more; what it
// was delivering counts at the others, and Close has nothing to wait for.
func TestDrain(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Join("a", 6, Config{}), f.Join("b", 2, Config{}), f.Join("c", 2, Config{})
		begun, end := make(chan struct{}), make(chan struct{})
		rig.Want(t, "Handle", a.Handle("h", func(context.Context, *Delivery) error { close(begun); <-end; return nil }), nil)
		var ids []string
		for i := range 600 {
			ids = append(ids, a.Create(Request{ID: a.IDAt(i % 6), Topic: "x", Delay: time.Hour}))
		}
		handled, open := a.Create(Request{ID: a.IDAt(0), Topic: "h"}), a.Create(Request{ID: a.IDAt(1), Topic: "y"})
		d := a.PullOwn("y", open)[0]
		<-begun
		done := make(chan error, 1)
		go func() { done <- a.Drain(t.Context()) }()
		rig.Pass(time.Second)
		if len(done) != 0 {
			t.Fatalf("Drain has returned while a handler was running: %v", <-done)
		}
		_, err := a.Schedule(t.Context(), Request{Topic: "x"})
		rig.Want(t, "Schedule", err, ErrDraining)
		rig.Want(t, "take", b.HandTo(a), ErrDraining)
		close(end)
		rig.Want(t, "Drain", <-done, nil)
		if n, m := b.Stats(), c.Stats(); n.ShardsHeld != 5 || m.ShardsHeld != 5 || n.Total.Pending+m.Total.Pending != 600 {
			t.Errorf("%d and %d shards, %d and %d tasks", n.ShardsHeld, m.ShardsHeld, n.Total.Pending, m.Total.Pending)
		}
		a.WantEmpty()
		nodes, err := b.Admin().Nodes(t.Context())
		if err != nil || len(nodes) != 3 || !nodes[0].Status.Draining || nodes[0].Held != 0 || nodes[1].Adopted != 3 {
			t.Errorf("Nodes = %+v, %v", nodes, err)
		}
		began := time.Now()
		rig.Want(t, "Close", a.Close(t.Context()), nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("Close took %v", took)
		}
		settled := 0
		for _, n := range []*rig.Node{b, c} {
			_, err := n.Engine().Get(t.Context(), handled)
			rig.Want(t, "Get of the handled one", err, ErrNotFound)
			if n.Ack(d).Err == nil {
				settled++
			}
			n.Check()
		}
		if settled != 1 {
			t.Errorf("the receipt was honoured %d times", settled)
		}
		lines, shards := a.Log.Count(`msg="shards were handed over"`), a.Log.Count("to=b shards=3 ")+a.Log.Count("to=c shards=3 ")
		if lines != 2 || shards != 2 || a.Log.Has("has left memory") {
			t.Errorf("the log tells of six shards in %d lines, of which %d are right:\n%s", lines, shards, a.Log.All())
		}
		_ = ids
	})
}

// Without another node a drain begins nothing.
func TestDrainWithoutOtherNodes(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{})
		rig.Want(t, "Drain", a.Drain(t.Context()), ErrNoSuccessor)
		a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		b := f.Join("b", 1, Config{})
		b.Crash()
		rig.Want(t, "Drain", a.Drain(t.Context()), ErrNoSuccessor)
	})
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		rig.Want(t, "Drain", r.Drain(t.Context()), ErrNoSuccessor)
		nodes, err := r.Admin().Nodes(t.Context())
		if err != nil || len(nodes) != 1 || !nodes[0].Self || nodes[0].Status == nil {
			t.Errorf("Nodes = %+v, %v", nodes, err)
		}
	})
}

// Heirs without room are passed over; if none has any, the drain says so, and goes on
// when it is asked again.
func TestDrainWithoutRoom(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 2, Config{}), f.Join("b", 1, Config{MaxPending: 2})
		a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		full := []string{b.Create(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Hour}), b.Create(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Hour})}
		err := a.Drain(t.Context())
		rig.Want(t, "Drain", err, ErrNoSuccessor)
		rig.Want(t, "Drain", err, ErrOverloaded)
		for _, id := range full {
			rig.Want(t, "Cancel", b.Cancel(t.Context(), id), nil)
		}
		rig.Want(t, "Drain", a.Drain(t.Context()), nil)
		rig.Pass(time.Second)
		b.Check()
	})
}

// A successor that does not answer, as one that has just died, costs its time once, not for
// each shard that others could take.
func TestDrainPastAMuteNode(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Join("a", 8, Config{}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{})
		b.Mute.Store(true)
		began := time.Now()
		rig.Want(t, "Drain", a.Drain(t.Context()), nil)
		if took := time.Since(began); took > a.Engine().Config.AnswerWithin+time.Second {
			t.Errorf("it took %v", took)
		}
		if n := c.Stats().ShardsHeld; n != 9 {
			t.Errorf("the other one holds %d shards, want all", n)
		}
	})
}

// A drain that its caller gives up leaves what it has not begun to hand over. A hand-over that has
// begun goes on.
func TestDrainGivenUp(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 2, Config{}), f.Join("b", 1, Config{})
		id, stays := a.Create(Request{ID: a.IDAt(0), Topic: "x"}), a.Create(Request{ID: a.IDAt(1), Topic: "x"})
		brief := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		release := a.Member.Hold("Transfer")
		rig.Want(t, "release of the shard", a.Engine().ReleaseShard(brief(), a.ShardID(0), "b"), engine.ErrHandingOver)
		f.Lose(func(_, to string, _ []byte) bool { return to == "b" })
		rig.Want(t, "Drain", a.Drain(brief()), context.DeadlineExceeded)
		f.Lose(nil)
		release()
		rig.Pass(2 * time.Second)
		a.PullOwn("x", stays)
		b.PullOwn("x", id)
		a.Check()
	})
}

// What was ready when its shard was handed over has not misfired: a node held it all the
// time.
func TestHandOverIsNoMisfire(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireSkip}}
		a, b := f.Join("a", 2, Config{Topics: topics}), f.Join("b", 1, Config{Topics: topics})
		one := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Second})
		two := a.Create(Request{ID: a.IDAt(1), Topic: "x", Delay: time.Second})
		rig.Pass(2 * time.Second)
		rig.Want(t, "Drain", a.Drain(t.Context()), nil)
		b.PullOwn("x", one, two)
		if n := b.Stats().Total.Skipped; n != 0 {
			t.Errorf("%d were skipped", n)
		}
		b.Check()
	})
}

// A node that was asked to drain itself and cannot says so to the others, and goes on when it
// is asked again.
func TestDrainNodeGivesUp(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 2, Config{}), f.Join("b", 1, Config{MaxPending: 1})
		full := b.Create(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Hour})
		rig.Want(t, "DrainNode", a.Admin().DrainNode(t.Context(), "a"), nil)
		rig.Pass(cluster.DrainPatience + 2*time.Second)
		nodes, err := b.Admin().Nodes(t.Context())
		if st := nodes[0].Status; err != nil || st.DrainsFailed != 1 || !strings.Contains(st.DrainFault, "2 shards are left") || !st.Draining {
			t.Errorf("a says %+v, %v", st, err)
		}
		rig.Want(t, "Cancel", b.Cancel(t.Context(), full), nil)
		rig.Want(t, "DrainNode", a.Admin().DrainNode(t.Context(), "a"), nil)
		rig.Pass(time.Second)
		select {
		case <-a.Admin().Drained():
		default:
			t.Error("it is not drained")
		}
	})
}

// It does not matter who has noticed first that a shard was handed over. What was adopted in
// the end has misfired, though it was asked for before.
func TestMisfireByHowItCame(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireSkip}}
		a, b := f.Join("a", 2, Config{Topics: topics}), f.Join("b", 1, Config{Topics: topics})
		b.Keeps.Store(true)
		transferred := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		rig.Want(t, "release", a.Engine().ReleaseShard(t.Context(), shardID, "b"), nil)
		// As the ledger does by itself.
		if ok, err := b.Member.Member.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatal(ok, err)
		}
		rig.Pass(time.Second)
		d := b.PullOwn("x", transferred)
		rig.Want(t, "ack", b.Ack(d[0]).Err, nil)

		release := a.Member.Hold("Accept")
		rig.Pass(10 * time.Second) // a asks for it in vain
		adopted := b.Create(Request{ID: transferred, Topic: "x", Delay: time.Second})
		b.Crash()
		rig.Pass(time.Minute)
		a.Adopt(b)
		release()
		rig.Pass(time.Second)
		a.PullOwn("x")
		if n := a.Stats().Total.Skipped; n != 1 {
			t.Errorf("%d were skipped", n)
		}
		_, err := a.Engine().Get(t.Context(), adopted)
		rig.Want(t, "Get", err, ErrNotFound)
		a.Check()
	})
}

// A shard that is still being read can be handed over after that, however long it takes.
func TestDrainWhileReading(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		a.Crash()
		release := b.Member.Hold("ScanShard")
		b.Adopt(a)
		c := f.Join("c", 1, Config{})
		done := make(chan error, 1)
		go func() { done <- b.Drain(t.Context()) }()
		rig.Pass(4 * cluster.DrainPatience)
		if n := c.Stats().ShardsHeld; n != 2 || len(done) != 0 {
			t.Errorf("the successor holds %d shards, %d drains have returned", n, len(done))
		}
		release()
		rig.Want(t, "Drain", <-done, nil)
		rig.Pass(time.Second)
		if _, err := c.Engine().Get(t.Context(), id); err != nil {
			t.Error(err)
		}
		b.WantEmpty()
		c.Check()
	})
}

// A node that is drained before it has read what it held from its beginning goes on with
// that once it has.
func TestDrainDuringTheFirstReplay(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		f.Join("b", 1, Config{})
		var release func()
		f.Before = func(m *rig.FaultyMember) { release = m.Hold("Scan") }
		a := f.Join("a", 2, Config{})
		done := make(chan error, 1)
		go func() { done <- a.Drain(t.Context()) }()
		rig.Pass(4 * cluster.DrainPatience)
		if len(done) != 0 {
			t.Fatalf("it has returned: %v", <-done)
		}
		release()
		rig.Want(t, "Drain", <-done, nil)
		rig.Pass(time.Second)
		a.WantEmpty()
	})
}

// Nodes that are all told to end at once do not wait for a successor that cannot come: each
// notices that the others are being drained as well.
func TestAllNodesDrainAtOnce(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		nodes := []*rig.Node{f.Join("a", 2, Config{}), f.Join("b", 2, Config{}), f.Join("c", 2, Config{})}
		began := time.Now()
		done := make(chan error, len(nodes))
		for _, n := range nodes {
			n.Create(Request{ID: n.IDAt(0), Topic: "t", Delay: time.Hour})
			n.Keeps.Store(true)
			n.Member.Unaware.Store(true)
		}
		for _, n := range nodes {
			go func() { done <- n.Drain(t.Context()) }()
		}
		rig.Pass(2 * time.Second)
		for _, n := range nodes {
			n.Member.Unaware.Store(false)
		}
		for range nodes {
			rig.Want(t, "Drain", <-done, ErrNoSuccessor)
		}
		if took := time.Since(began); took >= cluster.DrainPatience {
			t.Errorf("it took %v", took)
		}
	})
}
