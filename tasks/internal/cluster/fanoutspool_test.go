package cluster_test

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
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// spooling runs a test with fake time, on two nodes of which b has a spool.
func spooling(t *testing.T, test func(t *testing.T, f *rig.Fleet, a, b *rig.Node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := rig.NewFleet(t, 1)
		f.Start("b", rig.FleetShards, Config{Spool: memledger.New()})
		rig.Pass(5 * time.Second) // all ids are indexed by then
		test(t, f, f.Nodes[0], f.Nodes[1])
	})
}

// spoolOne schedules a task that only the spool takes.
func spoolOne(m *rig.Node) Task {
	m.T.Helper()
	m.Member.Uncertain(true)
	defer m.Member.Uncertain(false)
	task := m.Must(Request{Topic: "x", Group: "g", Delay: time.Hour})
	if !task.Spooled {
		m.T.Fatalf("it is not spooled: %+v", task)
	}
	return task
}

// What is spooled is found at the node whose disk has it, and counts once.
func TestSpooledTasksOfAllNodes(t *testing.T) {
	spooling(t, func(t *testing.T, _ *rig.Fleet, a, b *rig.Node) {
		task := spoolOne(b)
		if got := a.Pages(Query{Group: "g"}); !slices.Equal(got, []string{task.ID}) {
			t.Errorf("List = %v", got)
		}
		rig.Want(t, "DeleteTopic", a.Admin().DeleteTopic(t.Context(), "x", -1), ErrInUse)
		if got, err := a.CancelGroup(t.Context(), "g"); err != nil || got.Cancelled != 1 {
			t.Errorf("CancelGroup = %+v, %v", got, err)
		}
		_, err := b.Get(t.Context(), task.ID)
		rig.Want(t, "Get", err, ErrNotFound)
	})
}

// What is spooled at a node that holds no shard any more is found as well.
func TestSpooledTasksWhereNothingIsHeld(t *testing.T) {
	spooling(t, func(t *testing.T, f *rig.Fleet, a, b *rig.Node) {
		f.Lose(func(from, _ string, message []byte) bool { // b does not get its shards back
			return from == b.Name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name))
		})
		a.Member.AdoptFrom(b.Member.Member)
		rig.Pass(time.Second)
		task := spoolOne(b)
		rig.Pass(time.Second)
		if n := b.Stats().Spool.Tasks; n != 1 {
			t.Fatalf("%d tasks are spooled", n)
		}
		if got := a.Pages(Query{Group: "g"}); !slices.Equal(got, []string{task.ID}) {
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
	spooling(t, func(t *testing.T, f *rig.Fleet, a, b *rig.Node) {
		var asks atomic.Bool // b is asked what it has
		f.Lose(func(from, _ string, message []byte) bool {
			return from == b.Name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name)) || !asks.Load() && bytes.Contains(message, []byte(cluster.ListMethod.Name))
		})
		a.Member.AdoptFrom(b.Member.Member)
		rig.Pass(time.Second)
		task := spoolOne(b)
		var got []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			got = a.Pages(Query{Group: "g"})
		}()
		rig.Pass(100 * time.Millisecond)
		shardID, _ := recovery.ShardIDOf(task.ID)
		rig.Want(t, "release", a.Engine().ReleaseShard(t.Context(), shardID, b.Name), nil)
		if ok, err := b.Member.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatal(ok, err)
		}
		rig.Pass(300 * time.Millisecond)
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
	spooling(t, func(t *testing.T, f *rig.Fleet, a, b *rig.Node) {
		keepsShards(f, a, b) // a has what b had, and b has what it spools
		task := spoolOne(b)
		b.Crash()
		a.Member.AdoptFrom(b.Member.Member)
		rig.Pass(time.Second)
		a.Must(Request{Topic: "x", Delay: time.Hour})
		named := func(what string, err error) {
			t.Helper()
			rig.Want(t, what, err, ErrNodeAway)
			var away *NodeError
			if !errors.As(err, &away) || away.Node != b.Name {
				t.Errorf("%s: %v does not name node %s", what, err, b.Name)
			}
		}
		_, err := a.List(t.Context(), Query{Group: "g"})
		named("List", err)
		got, err := a.CancelGroup(t.Context(), "g")
		named("CancelGroup", err)
		if got.Cancelled != 0 {
			t.Errorf("CancelGroup = %+v", got)
		}
		settings, err := a.Admin().Export(t.Context(), ExportQuery{})
		rig.Want(t, "first page of an export", err, nil)
		_, err = a.Admin().Export(t.Context(), ExportQuery{Cursor: settings.Cursor})
		named("Export", err)
		_, err = a.List(t.Context(), Query{Topic: "x", State: Dead})
		rig.Want(t, "List of the dead", err, nil)
		_, err = a.Admin().DeleteDead(t.Context(), "x", nil)
		rig.Want(t, "DeleteDead", err, nil)

		f.Lose(nil)
		b.Restart()
		rig.Pass(5 * time.Second)
		if got := a.Pages(Query{Group: "g"}); !slices.Equal(got, []string{task.ID}) {
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
	spooling(t, func(t *testing.T, f *rig.Fleet, a, b *rig.Node) {
		f.Lose(func(from, _ string, message []byte) bool { // b does not get its shards back
			return from == b.Name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name))
		})
		a.Member.AdoptFrom(b.Member.Member)
		rig.Pass(time.Second)
		b.Member.Uncertain(true)
		results, err := b.ScheduleBatch(t.Context(), slices.Repeat([]Request{{Topic: "x", Group: "g", Delay: time.Hour}}, 9))
		rig.Want(t, "ScheduleBatch", err, nil)
		b.Member.Uncertain(false)
		var ids []string
		for _, r := range results {
			if r.Err != nil || !r.Spooled {
				t.Errorf("%+v", r)
			}
			ids = append(ids, r.ID)
		}
		if got := a.Pages(Query{Group: "g"}); !slices.Equal(sorted(got), sorted(ids)) {
			t.Errorf("listed %v; answered %v", got, ids)
		}
	})
}

// keepsShards has a adopt what b holds, and b not get it back.
func keepsShards(f *rig.Fleet, a, b *rig.Node) {
	f.Lose(func(from, _ string, message []byte) bool {
		return from == b.Name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name))
	})
	a.Member.AdoptFrom(b.Member.Member)
	rig.Pass(time.Second)
}

// A spooled task is found at the node that has it, also if another node holds its shard.
// While the node is silent, no node says that the task does not exist.
func TestSpooledIsFoundAtItsNode(t *testing.T) {
	spooling(t, func(t *testing.T, f *rig.Fleet, a, b *rig.Node) {
		keepsShards(f, a, b)
		first, second := spoolOne(b), spoolOne(b)
		rig.Pass(time.Second)
		if got := a.MustGet(first.ID); got.Node != b.Name {
			t.Errorf("%+v", got)
		}
		_, err := a.Reschedule(t.Context(), first.ID, Move{Delay: rig.Ptr(2 * time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		rig.Want(t, "Cancel", a.Cancel(t.Context(), first.ID), nil)
		_, err = a.Get(t.Context(), first.ID)
		rig.Want(t, "Get", err, ErrNotFound)
		a.MustGet(second.ID)

		b.Member.Uncertain(true)
		if _, err = b.Get(t.Context(), second.ID); err != nil {
			t.Error("while the node is not certain of its shards:", err)
		}
		b.Member.Uncertain(false)
		b.Crash()
		_, err = a.Get(t.Context(), second.ID)
		rig.Want(t, "Get while the node is dead", err, ErrUnavailable)
		rig.Want(t, "Cancel while the node is dead", a.Cancel(t.Context(), second.ID), ErrUnavailable)
	})
}

// A node whose shards are away, while the ledger answers, spools nothing: the holder of the
// shard creates the task.
func TestNothingIsSpooledWhileTheLedgerAnswers(t *testing.T) {
	spooling(t, func(t *testing.T, f *rig.Fleet, a, b *rig.Node) {
		keepsShards(f, a, b)
		task := b.Must(Request{Topic: "x", Delay: time.Hour})
		results, err := b.ScheduleBatch(t.Context(), slices.Repeat([]Request{{Topic: "x", Delay: time.Hour}}, 9))
		rig.Want(t, "ScheduleBatch", err, nil)
		for _, r := range append(results, Result{ID: task.ID, Spooled: task.Spooled}) {
			if r.Err != nil || r.Spooled {
				t.Errorf("%+v", r)
			}
			if got := b.MustGet(r.ID); got.Node != a.Name {
				t.Errorf("%+v", got)
			}
		}
	})
}

// A node that is cut off from the ledger cannot announce what it spools. While it is silent, no
// node says that a task which it may have spooled does not exist, nor creates it again.
func TestSpooledInSilence(t *testing.T) {
	spooling(t, func(t *testing.T, f *rig.Fleet, a, b *rig.Node) {
		d := f.Start("d", rig.FleetShards, Config{})
		rig.Pass(5 * time.Second)
		b.Member.Cut(true)
		b.Member.Uncertain(true)
		a.Member.AdoptFrom(b.Member.Member)
		rig.Pass(time.Second)
		task := b.Must(Request{Topic: "x", Delay: time.Hour})
		for _, m := range []*rig.Node{a, d} {
			again := Request{ID: task.ID, Topic: "x", Delay: time.Hour}
			_, err := m.Get(t.Context(), task.ID)
			rig.Want(t, "Get", err, ErrUnavailable)
			rig.Want(t, "Cancel", m.Cancel(t.Context(), task.ID), ErrUnavailable)
			_, err = m.Reschedule(t.Context(), task.ID, Move{Delay: rig.Ptr(time.Minute)})
			rig.Want(t, "Reschedule", err, ErrUnavailable)
			_, err = m.Replace(t.Context(), again)
			rig.Want(t, "Replace", err, ErrUnavailable)
			_, err = m.Schedule(t.Context(), again)
			rig.Want(t, "Schedule", err, ErrUnavailable)
			results, err := m.ScheduleBatch(t.Context(), []Request{again, {ID: "chosen-" + m.Name, Topic: "x", Delay: time.Hour}})
			rig.Want(t, "ScheduleBatch", err, nil)
			rig.Want(t, "of the batch", results[0].Err, ErrUnavailable)
			rig.Want(t, "of the batch", results[1].Err, nil)
		}
		keepsShards(f, a, b)
		b.Member.Cut(false)
		b.Member.Uncertain(false)
		rig.Pass(time.Second)
		for _, m := range []*rig.Node{a, d} {
			again := Request{ID: task.ID, Topic: "x", Delay: time.Hour}
			if got := m.MustGet(task.ID); got.Node != b.Name {
				t.Errorf("%+v", got)
			}
			if got, err := m.Schedule(t.Context(), again); err != nil || !got.Repeated {
				t.Errorf("Schedule: %+v, %v", got, err)
			}
			results, err := m.ScheduleBatch(t.Context(), []Request{again})
			rig.Want(t, "ScheduleBatch", err, nil)
			rig.Want(t, "of the batch", results[0].Err, nil)
			replaced, err := m.Replace(t.Context(), again)
			if err != nil || !replaced.Repeated {
				t.Errorf("Replace: %+v, %v", replaced, err)
			}
		}
		rig.Want(t, "Cancel", d.Cancel(t.Context(), task.ID), nil)
		_, err := a.Get(t.Context(), task.ID)
		rig.Want(t, "Get", err, ErrNotFound)
		other, err := d.Schedule(t.Context(), Request{ID: b.ShardID(0).NewID(), Topic: "x", Delay: time.Hour})
		if err != nil || other.Repeated {
			t.Errorf("Schedule: %+v, %v", other, err)
		}
	})
}

// A node that has ended in order with nothing in its spool has nothing that others need to ask for;
// one that was killed may, until it is back, and then what it announces counts.
func TestMayHaveSpooled(t *testing.T) {
	spooling(t, func(t *testing.T, f *rig.Fleet, a, b *rig.Node) {
		id := b.ShardID(0).NewID()
		gone := func(what string, expected error) {
			t.Helper()
			a.Member.AdoptFrom(b.Member.Member)
			rig.Pass(time.Second)
			_, err := a.Get(t.Context(), id)
			rig.Want(t, what, err, expected)
		}
		b.Stop()
		gone("ended in order", ErrNotFound)
		b.Restart()
		rig.Pass(5 * time.Second)
		b.Crash()
		gone("killed", ErrUnavailable)
	})
}
