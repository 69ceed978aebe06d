package tasks_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// A drained node has handed everything over, evenly, and takes nothing any more; what it
// was delivering counts at the others, and Close has nothing to wait for.
func TestDrain(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b, c := f.join("a", 6, Config{}), f.join("b", 2, Config{}), f.join("c", 2, Config{})
		begun, end := make(chan struct{}), make(chan struct{})
		want(t, "Handle", a.Handle("h", func(context.Context, *Delivery) error { close(begun); <-end; return nil }), nil)
		var ids []string
		for i := range 600 {
			ids = append(ids, a.create(Request{ID: a.idAt(i % 6), Topic: "x", Delay: time.Hour}))
		}
		handled, open := a.create(Request{ID: a.idAt(0), Topic: "h"}), a.create(Request{ID: a.idAt(1), Topic: "y"})
		d := a.pullOwn("y", open)[0]
		<-begun
		done := make(chan error, 1)
		go func() { done <- a.Drain(t.Context()) }()
		pass(time.Second)
		if len(done) != 0 {
			t.Fatalf("Drain has returned while a handler was running: %v", <-done)
		}
		_, err := a.Schedule(t.Context(), Request{Topic: "x"})
		want(t, "Schedule", err, ErrDraining)
		want(t, "take", b.handTo(a), ErrDraining)
		close(end)
		want(t, "Drain", <-done, nil)
		if n, m := b.Stats(), c.Stats(); n.ShardsHeld != 5 || m.ShardsHeld != 5 || n.Total.Pending+m.Total.Pending != 600 {
			t.Errorf("%d and %d shards, %d and %d tasks", n.ShardsHeld, m.ShardsHeld, n.Total.Pending, m.Total.Pending)
		}
		a.wantEmpty()
		nodes, err := b.Nodes(t.Context())
		if err != nil || len(nodes) != 3 || !nodes[0].Status.Draining || nodes[0].Held != 0 || nodes[1].Adopted != 3 {
			t.Errorf("Nodes = %+v, %v", nodes, err)
		}
		began := time.Now()
		want(t, "Close", a.Close(t.Context()), nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("Close took %v", took)
		}
		settled := 0
		for _, n := range []*node{b, c} {
			_, err := n.Engine().Get(t.Context(), handled)
			want(t, "Get of the handled one", err, ErrNotFound)
			if n.ack(d).Err == nil {
				settled++
			}
			n.check()
		}
		if settled != 1 {
			t.Errorf("the receipt was honoured %d times", settled)
		}
		lines, shards := a.log.count(`msg="shards were handed over"`), a.log.count("to=b shards=3 ")+a.log.count("to=c shards=3 ")
		if lines != 2 || shards != 2 || a.log.has("has left memory") {
			t.Errorf("the log tells of six shards in %d lines, of which %d are right:\n%s", lines, shards, a.log.all())
		}
		_ = ids
	})
}

// Without another node a drain begins nothing.
func TestDrainWithoutOtherNodes(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 1, Config{})
		want(t, "Drain", a.Drain(t.Context()), ErrNoSuccessor)
		a.create(Request{ID: a.idAt(0), Topic: "x"})
		b := f.join("b", 1, Config{})
		b.crash()
		want(t, "Drain", a.Drain(t.Context()), ErrNoSuccessor)
	})
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		want(t, "Drain", r.Drain(t.Context()), ErrNoSuccessor)
		nodes, err := r.Nodes(t.Context())
		if err != nil || len(nodes) != 1 || !nodes[0].Self || nodes[0].Status == nil {
			t.Errorf("Nodes = %+v, %v", nodes, err)
		}
	})
}

// Heirs without room are passed over; if none has any, the drain says so, and goes on
// when it is asked again.
func TestDrainWithoutRoom(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 2, Config{}), f.join("b", 1, Config{MaxPending: 2})
		a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour})
		full := []string{b.create(Request{ID: b.idAt(0), Topic: "x", Delay: time.Hour}), b.create(Request{ID: b.idAt(0), Topic: "x", Delay: time.Hour})}
		err := a.Drain(t.Context())
		want(t, "Drain", err, ErrNoSuccessor)
		want(t, "Drain", err, ErrOverloaded)
		for _, id := range full {
			want(t, "Cancel", b.Cancel(t.Context(), id), nil)
		}
		want(t, "Drain", a.Drain(t.Context()), nil)
		pass(time.Second)
		b.check()
	})
}

// A successor that does not answer, as one that has just died, costs its time once, not for
// each shard that others could take.
func TestDrainPastAMuteNode(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b, c := f.join("a", 8, Config{}), f.join("b", 1, Config{}), f.join("c", 1, Config{})
		b.mute.Store(true)
		began := time.Now()
		want(t, "Drain", a.Drain(t.Context()), nil)
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
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 2, Config{}), f.join("b", 1, Config{})
		id, stays := a.create(Request{ID: a.idAt(0), Topic: "x"}), a.create(Request{ID: a.idAt(1), Topic: "x"})
		brief := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		release := a.member.hold("Transfer")
		want(t, "release of the shard", a.Engine().ReleaseShard(brief(), a.shardID(0), "b"), engine.ErrHandingOver)
		f.lose(func(_, to string, _ []byte) bool { return to == "b" })
		want(t, "Drain", a.Drain(brief()), context.DeadlineExceeded)
		f.lose(nil)
		release()
		pass(2 * time.Second)
		a.pullOwn("x", stays)
		b.pullOwn("x", id)
		a.check()
	})
}

// What was ready when its shard was handed over has not misfired: a node held it all the
// time.
func TestHandOverIsNoMisfire(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireSkip}}
		a, b := f.join("a", 2, Config{Topics: topics}), f.join("b", 1, Config{Topics: topics})
		one := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Second})
		two := a.create(Request{ID: a.idAt(1), Topic: "x", Delay: time.Second})
		pass(2 * time.Second)
		want(t, "Drain", a.Drain(t.Context()), nil)
		b.pullOwn("x", one, two)
		if n := b.Stats().Total.Skipped; n != 0 {
			t.Errorf("%d were skipped", n)
		}
		b.check()
	})
}

// A node that was asked to drain itself and cannot says so to the others, and goes on when it
// is asked again.
func TestDrainNodeGivesUp(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 2, Config{}), f.join("b", 1, Config{MaxPending: 1})
		full := b.create(Request{ID: b.idAt(0), Topic: "x", Delay: time.Hour})
		want(t, "DrainNode", a.DrainNode(t.Context(), "a"), nil)
		pass(cluster.DrainPatience + 2*time.Second)
		nodes, err := b.Nodes(t.Context())
		if st := nodes[0].Status; err != nil || st.DrainsFailed != 1 || !strings.Contains(st.DrainFault, "2 shards are left") || !st.Draining {
			t.Errorf("a says %+v, %v", st, err)
		}
		want(t, "Cancel", b.Cancel(t.Context(), full), nil)
		want(t, "DrainNode", a.DrainNode(t.Context(), "a"), nil)
		pass(time.Second)
		select {
		case <-a.Drained():
		default:
			t.Error("it is not drained")
		}
	})
}

// It does not matter who has noticed first that a shard was handed over. What was adopted in
// the end has misfired, though it was asked for before.
func TestMisfireByHowItCame(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireSkip}}
		a, b := f.join("a", 2, Config{Topics: topics}), f.join("b", 1, Config{Topics: topics})
		b.keeps.Store(true)
		transferred := a.create(Request{ID: a.idAt(0), Topic: "x"})
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		want(t, "release", a.Engine().ReleaseShard(t.Context(), shardID, "b"), nil)
		// As the ledger does by itself.
		if ok, err := b.member.Member.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatal(ok, err)
		}
		pass(time.Second)
		d := b.pullOwn("x", transferred)
		want(t, "ack", b.ack(d[0]).Err, nil)

		release := a.member.hold("Accept")
		pass(10 * time.Second) // a asks for it in vain
		adopted := b.create(Request{ID: transferred, Topic: "x", Delay: time.Second})
		b.crash()
		pass(time.Minute)
		a.adopt(b)
		release()
		pass(time.Second)
		a.pullOwn("x")
		if n := a.Stats().Total.Skipped; n != 1 {
			t.Errorf("%d were skipped", n)
		}
		_, err := a.Engine().Get(t.Context(), adopted)
		want(t, "Get", err, ErrNotFound)
		a.check()
	})
}

// A shard that is still being read can be handed over after that, however long it takes.
func TestDrainWhileReading(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour})
		a.crash()
		release := b.member.hold("ScanShard")
		b.adopt(a)
		c := f.join("c", 1, Config{})
		done := make(chan error, 1)
		go func() { done <- b.Drain(t.Context()) }()
		pass(4 * cluster.DrainPatience)
		if n := c.Stats().ShardsHeld; n != 2 || len(done) != 0 {
			t.Errorf("the successor holds %d shards, %d drains have returned", n, len(done))
		}
		release()
		want(t, "Drain", <-done, nil)
		pass(time.Second)
		if _, err := c.Engine().Get(t.Context(), id); err != nil {
			t.Error(err)
		}
		b.wantEmpty()
		c.check()
	})
}

// A node that is drained before it has read what it held from its beginning goes on with
// that once it has.
func TestDrainDuringTheFirstReplay(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		f.join("b", 1, Config{})
		var release func()
		f.before = func(m *faultyMember) { release = m.hold("Scan") }
		a := f.join("a", 2, Config{})
		done := make(chan error, 1)
		go func() { done <- a.Drain(t.Context()) }()
		pass(4 * cluster.DrainPatience)
		if len(done) != 0 {
			t.Fatalf("it has returned: %v", <-done)
		}
		release()
		want(t, "Drain", <-done, nil)
		pass(time.Second)
		a.wantEmpty()
	})
}

// Nodes that are all told to end at once do not wait for a successor that cannot come: each
// notices that the others are being drained as well.
func TestAllNodesDrainAtOnce(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		nodes := []*node{f.join("a", 2, Config{}), f.join("b", 2, Config{}), f.join("c", 2, Config{})}
		began := time.Now()
		done := make(chan error, len(nodes))
		for _, n := range nodes {
			n.create(Request{ID: n.idAt(0), Topic: "t", Delay: time.Hour})
			n.keeps.Store(true)
			n.member.unaware.Store(true)
		}
		for _, n := range nodes {
			go func() { done <- n.Drain(t.Context()) }()
		}
		pass(2 * time.Second)
		for _, n := range nodes {
			n.member.unaware.Store(false)
		}
		for range nodes {
			want(t, "Drain", <-done, ErrNoSuccessor)
		}
		if took := time.Since(began); took >= cluster.DrainPatience {
			t.Errorf("it took %v", took)
		}
	})
}
