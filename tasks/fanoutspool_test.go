package tasks_test

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// spooling runs a test with fake time, on two nodes of which b has a spool.
func spooling(t *testing.T, test func(t *testing.T, f *fleet, a, b *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		f.start("b", fleetShards, Config{Spool: memledger.New()})
		pass(5 * time.Second) // all ids are indexed by then
		test(t, f, f.nodes[0], f.nodes[1])
	})
}

// spoolOne schedules a task that only the spool takes.
func (m *node) spoolOne() Task {
	m.t.Helper()
	m.member.Uncertain(true)
	defer m.member.Uncertain(false)
	task := m.must(Request{Topic: "x", Group: "g", Delay: time.Hour})
	if !task.Spooled {
		m.t.Fatalf("it is not spooled: %+v", task)
	}
	return task
}

// What is spooled is found at the node whose disk has it, and counts once.
func TestSpooledTasksOfAllNodes(t *testing.T) {
	spooling(t, func(t *testing.T, _ *fleet, a, b *node) {
		task := b.spoolOne()
		if got := a.pages(Query{Group: "g"}); !slices.Equal(got, []string{task.ID}) {
			t.Errorf("List = %v", got)
		}
		want(t, "DeleteTopic", a.DeleteTopic(t.Context(), "x", -1), ErrInUse)
		if got, err := a.CancelGroup(t.Context(), "g"); err != nil || got.Cancelled != 1 {
			t.Errorf("CancelGroup = %+v, %v", got, err)
		}
		_, err := b.Get(t.Context(), task.ID)
		want(t, "Get", err, ErrNotFound)
	})
}

// What is spooled at a node that holds no shard any more is found as well.
func TestSpooledTasksWhereNothingIsHeld(t *testing.T) {
	spooling(t, func(t *testing.T, f *fleet, a, b *node) {
		f.lose(func(from, _ string, message []byte) bool { // b does not get its shards back
			return from == b.name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name))
		})
		a.member.AdoptFrom(b.member.Member)
		pass(time.Second)
		task := b.spoolOne()
		pass(time.Second)
		if n := b.Stats().Spool.Tasks; n != 1 {
			t.Fatalf("%d tasks are spooled", n)
		}
		if got := a.pages(Query{Group: "g"}); !slices.Equal(got, []string{task.ID}) {
			t.Errorf("List = %v", got)
		}
		if got, err := a.CancelGroup(t.Context(), "g"); err != nil || got.Cancelled != 1 {
			t.Errorf("CancelGroup = %+v, %v", got, err)
		}
	})
}

// A shard that one node has listed passes to another one, which moves a spooled task into it,
// and is asked after that: the task is listed.
func TestSpooledIntoAListedShard(t *testing.T) {
	spooling(t, func(t *testing.T, f *fleet, a, b *node) {
		var asks atomic.Bool // b is asked what it has
		f.lose(func(from, _ string, message []byte) bool {
			return from == b.name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name)) || !asks.Load() && bytes.Contains(message, []byte(cluster.ListMethod.Name))
		})
		a.member.AdoptFrom(b.member.Member)
		pass(time.Second)
		task := b.spoolOne()
		var got []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			got = a.pages(Query{Group: "g"})
		}()
		pass(100 * time.Millisecond)
		shardID, _ := recovery.ShardIDOf(task.ID)
		want(t, "release", a.Engine().ReleaseShard(t.Context(), shardID, b.name), nil)
		if ok, err := b.member.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatal(ok, err)
		}
		pass(300 * time.Millisecond)
		if n := b.Stats().Spool.Tasks; n != 0 {
			t.Fatalf("%d tasks are spooled", n)
		}
		asks.Store(true)
		<-done
		if !slices.Equal(got, []string{task.ID}) {
			t.Errorf("List = %v", got)
		}
	})
}

// A call about many tasks does not leave out what a silent node may have spooled once others
// have adopted its shards: it fails, and names the node. What is dead is in no spool.
func TestManyTasksAndASilentSpool(t *testing.T) {
	spooling(t, func(t *testing.T, f *fleet, a, b *node) {
		keepsShards(f, a, b) // a has what b had, and b has what it spools
		task := b.spoolOne()
		b.crash()
		a.member.AdoptFrom(b.member.Member)
		pass(time.Second)
		a.must(Request{Topic: "x", Delay: time.Hour})
		named := func(what string, err error) {
			t.Helper()
			want(t, what, err, ErrNodeAway)
			var away *NodeError
			if !errors.As(err, &away) || away.Node != b.name {
				t.Errorf("%s: %v does not name node %s", what, err, b.name)
			}
		}
		_, err := a.List(t.Context(), Query{Group: "g"})
		named("List", err)
		got, err := a.CancelGroup(t.Context(), "g")
		named("CancelGroup", err)
		if got.Cancelled != 0 {
			t.Errorf("CancelGroup = %+v", got)
		}
		settings, err := a.Export(t.Context(), ExportQuery{})
		want(t, "first page of an export", err, nil)
		_, err = a.Export(t.Context(), ExportQuery{Cursor: settings.Cursor})
		named("Export", err)
		_, err = a.List(t.Context(), Query{Topic: "x", State: Dead})
		want(t, "List of the dead", err, nil)
		_, err = a.DeleteDead(t.Context(), "x", nil)
		want(t, "DeleteDead", err, nil)

		f.lose(nil)
		b.restart()
		pass(5 * time.Second)
		if got := a.pages(Query{Group: "g"}); !slices.Equal(got, []string{task.ID}) {
			t.Errorf("List = %v", got)
		}
		_, exported := exportAll(t, a, ExportQuery{Cursor: settings.Cursor}, nil)
		if _, ok := byID(exported)[task.ID]; !ok {
			t.Error("the spooled task is missing in the export")
		}
		if got, err := a.CancelGroup(t.Context(), "g"); err != nil || got.Cancelled != 1 {
			t.Errorf("CancelGroup = %+v, %v", got, err)
		}
	})
}

// The ids that a batch answers are those of its tasks, also of those that are spooled where
// no shard is held, under ids of another shard than the one that was thought of first.
func TestBatchAnswersIDsOfSpooled(t *testing.T) {
	spooling(t, func(t *testing.T, f *fleet, a, b *node) {
		f.lose(func(from, _ string, message []byte) bool { // b does not get its shards back
			return from == b.name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name))
		})
		a.member.AdoptFrom(b.member.Member)
		pass(time.Second)
		b.member.Uncertain(true)
		results, err := b.ScheduleBatch(t.Context(), slices.Repeat([]Request{{Topic: "x", Group: "g", Delay: time.Hour}}, 9))
		want(t, "ScheduleBatch", err, nil)
		b.member.Uncertain(false)
		var ids []string
		for _, r := range results {
			if r.Err != nil || !r.Spooled {
				t.Errorf("%+v", r)
			}
			ids = append(ids, r.ID)
		}
		if got := a.pages(Query{Group: "g"}); !slices.Equal(sorted(got), sorted(ids)) {
			t.Errorf("listed %v; answered %v", got, ids)
		}
	})
}

// keepsShards has a adopt what b holds, and b not get it back.
func keepsShards(f *fleet, a, b *node) {
	f.lose(func(from, _ string, message []byte) bool {
		return from == b.name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name))
	})
	a.member.AdoptFrom(b.member.Member)
	pass(time.Second)
}

// A spooled task is found at the node that has it, also if another node holds its shard.
// While the node is silent, no node says that the task does not exist.
func TestSpooledIsFoundAtItsNode(t *testing.T) {
	spooling(t, func(t *testing.T, f *fleet, a, b *node) {
		keepsShards(f, a, b)
		first, second := b.spoolOne(), b.spoolOne()
		pass(time.Second)
		if got := a.get(first.ID); got.Node != b.name {
			t.Errorf("%+v", got)
		}
		_, err := a.Reschedule(t.Context(), first.ID, Move{Delay: ptr(2 * time.Hour)})
		want(t, "Reschedule", err, nil)
		want(t, "Cancel", a.Cancel(t.Context(), first.ID), nil)
		_, err = a.Get(t.Context(), first.ID)
		want(t, "Get", err, ErrNotFound)
		a.get(second.ID)

		b.member.Uncertain(true)
		if _, err = b.Get(t.Context(), second.ID); err != nil {
			t.Error("while the node is not certain of its shards:", err)
		}
		b.member.Uncertain(false)
		b.crash()
		_, err = a.Get(t.Context(), second.ID)
		want(t, "Get while the node is dead", err, ErrUnavailable)
		want(t, "Cancel while the node is dead", a.Cancel(t.Context(), second.ID), ErrUnavailable)
	})
}

// A node whose shards are away, while the ledger answers, spools nothing: the holder of the
// shard creates the task.
func TestNothingIsSpooledWhileTheLedgerAnswers(t *testing.T) {
	spooling(t, func(t *testing.T, f *fleet, a, b *node) {
		keepsShards(f, a, b)
		task := b.must(Request{Topic: "x", Delay: time.Hour})
		results, err := b.ScheduleBatch(t.Context(), slices.Repeat([]Request{{Topic: "x", Delay: time.Hour}}, 9))
		want(t, "ScheduleBatch", err, nil)
		for _, r := range append(results, Result{ID: task.ID, Spooled: task.Spooled}) {
			if r.Err != nil || r.Spooled {
				t.Errorf("%+v", r)
			}
			if got := b.get(r.ID); got.Node != a.name {
				t.Errorf("%+v", got)
			}
		}
	})
}

// A node that is cut off from the ledger cannot announce what it spools. While it is silent, no
// node says that a task which it may have spooled does not exist, nor creates it again.
func TestSpooledInSilence(t *testing.T) {
	spooling(t, func(t *testing.T, f *fleet, a, b *node) {
		d := f.start("d", fleetShards, Config{})
		pass(5 * time.Second)
		b.member.Cut(true)
		b.member.Uncertain(true)
		a.member.AdoptFrom(b.member.Member)
		pass(time.Second)
		task := b.must(Request{Topic: "x", Delay: time.Hour})
		for _, m := range []*node{a, d} {
			again := Request{ID: task.ID, Topic: "x", Delay: time.Hour}
			_, err := m.Get(t.Context(), task.ID)
			want(t, "Get", err, ErrUnavailable)
			want(t, "Cancel", m.Cancel(t.Context(), task.ID), ErrUnavailable)
			_, err = m.Reschedule(t.Context(), task.ID, Move{Delay: ptr(time.Minute)})
			want(t, "Reschedule", err, ErrUnavailable)
			_, err = m.Replace(t.Context(), again)
			want(t, "Replace", err, ErrUnavailable)
			_, err = m.Schedule(t.Context(), again)
			want(t, "Schedule", err, ErrUnavailable)
			results, err := m.ScheduleBatch(t.Context(), []Request{again, {ID: "chosen-" + m.name, Topic: "x", Delay: time.Hour}})
			want(t, "ScheduleBatch", err, nil)
			want(t, "of the batch", results[0].Err, ErrUnavailable)
			want(t, "of the batch", results[1].Err, nil)
		}
		keepsShards(f, a, b)
		b.member.Cut(false)
		b.member.Uncertain(false)
		pass(time.Second)
		for _, m := range []*node{a, d} {
			again := Request{ID: task.ID, Topic: "x", Delay: time.Hour}
			if got := m.get(task.ID); got.Node != b.name {
				t.Errorf("%+v", got)
			}
			if got, err := m.Schedule(t.Context(), again); err != nil || !got.Repeated {
				t.Errorf("Schedule: %+v, %v", got, err)
			}
			results, err := m.ScheduleBatch(t.Context(), []Request{again})
			want(t, "ScheduleBatch", err, nil)
			want(t, "of the batch", results[0].Err, nil)
			replaced, err := m.Replace(t.Context(), again)
			if err != nil || !replaced.Repeated {
				t.Errorf("Replace: %+v, %v", replaced, err)
			}
		}
		want(t, "Cancel", d.Cancel(t.Context(), task.ID), nil)
		_, err := a.Get(t.Context(), task.ID)
		want(t, "Get", err, ErrNotFound)
		other, err := d.Schedule(t.Context(), Request{ID: b.shardID(0).NewID(), Topic: "x", Delay: time.Hour})
		if err != nil || other.Repeated {
			t.Errorf("Schedule: %+v, %v", other, err)
		}
	})
}

// A node that has ended in order with nothing in its spool has nothing that others need to ask for;
// one that was killed may, until it is back, and then what it announces counts.
func TestMayHaveSpooled(t *testing.T) {
	spooling(t, func(t *testing.T, f *fleet, a, b *node) {
		id := b.shardID(0).NewID()
		gone := func(what string, expected error) {
			t.Helper()
			a.member.AdoptFrom(b.member.Member)
			pass(time.Second)
			_, err := a.Get(t.Context(), id)
			want(t, what, err, expected)
		}
		b.stop()
		gone("ended in order", ErrNotFound)
		b.restart()
		pass(5 * time.Second)
		b.crash()
		gone("killed", ErrUnavailable)
	})
}
