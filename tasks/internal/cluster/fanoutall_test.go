package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// fillAll schedules tasks at every node, of a topic and a group, and returns their ids.
func fillAll(f *rig.Fleet, n int, topic, group string) (ids []string) {
	f.T.Helper()
	for i, m := range f.Nodes {
		for k := range n {
			r := Request{Topic: topic, Group: group, Delay: time.Hour + time.Duration(i+k)*time.Second}
			if k%2 == 0 {
				r.ID = fmt.Sprintf("%s-%s-%s-%d", topic, group, m.Name, k)
			}
			ids = append(ids, m.Must(r).ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// deliver has a task delivered, and returns its id.
func deliver(m *rig.Node, r Request) string {
	m.T.Helper()
	id := m.Must(r).ID
	rig.Pass(10 * time.Millisecond)
	ds, err := m.Reserve(m.T.Context(), r.Topic, 1, 0, time.Hour)
	if err != nil || len(ds) != 1 || ds[0].ID != id {
		m.T.Fatalf("reserved %v, %v; want %s", ds, err, id)
	}
	return id
}

// bury schedules a task at a node and buries it.
func bury(m *rig.Node, topic, id string) {
	m.T.Helper()
	m.Must(Request{ID: id, Topic: topic})
	rig.Pass(10 * time.Millisecond)
	ds, err := m.Reserve(m.T.Context(), topic, 1, 0, 0)
	if err != nil || len(ds) != 1 || ds[0].ID != id {
		m.T.Fatalf("reserved %v, %v; want %s", ds, err, id)
	}
	a, err := m.Settle(m.T.Context(), Verdict{Verb: Bury, Reason: "no use"}, []string{ds[0].Receipt()})
	if err = errors.Join(err, a[0].Err); err != nil {
		m.T.Fatal("Settle:", err)
	}
}

func sorted(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return ids
}

// sized makes the tasks in which pages are cut: a node answers with fewer than were asked.
func sized(i int) []byte {
	if i%2 != 0 {
		return nil
	}
	return fmt.Appendf(nil, "%q", strings.Repeat("x", 60<<10))
}

// A list is that of all nodes, whichever is asked: each task once, in order, also where a
// page is cut because of its size.
func TestListOfAllNodes(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		var all []Task
		for i := range 450 {
			all = append(all, f.Nodes[rng.IntN(3)].Must(Request{
				Topic: []string{"x", "y"}[rng.IntN(2)], Group: []string{"", "g"}[rng.IntN(2)],
				Delay: time.Duration(rng.IntN(60)) * time.Second, Payload: sized(i),
			}))
		}
		slices.SortFunc(all, func(a, b Task) int {
			return query.CompareRefs(recovery.Ref{ID: a.ID, Next: a.Next.UnixMilli()}, recovery.Ref{ID: b.ID, Next: b.Next.UnixMilli()})
		})
		for _, m := range f.Nodes {
			for _, limit := range []int{77, 1000} {
				for _, q := range []Query{{}, {Topic: "y", Group: "g"}, {State: Delivering}} {
					var wanted []string
					for _, task := range all {
						if q.State == 0 && (q.Topic == "" || q.Topic == task.Topic) && (q.Group == "" || q.Group == task.Group) {
							wanted = append(wanted, task.ID)
						}
					}
					q.Limit = limit
					if got := m.Pages(q); !slices.Equal(got, wanted) {
						t.Errorf("%+v at %s: %d tasks, want %d in their order", q, m.Name, len(got), len(wanted))
					}
				}
			}
		}
		page, err := f.Nodes[0].List(t.Context(), Query{Limit: 1000})
		if err != nil || len(page.Tasks) == 0 || len(page.Tasks) == len(all) || page.Cursor == "" {
			t.Errorf("%d of %d tasks of %d bytes and more came at once, %v", len(page.Tasks), len(all), 450/2*(60<<10), err)
		}
		size := 0
		for _, task := range page.Tasks {
			size += len(task.Payload)
		}
		if most := MaxPageBytes + len(sized(0)) + 512; size > most {
			t.Errorf("%d bytes came at once; want at most %d", size, most)
		}
		if got := page.Tasks[0]; got.ID != all[0].ID || got.Node != all[0].Node || !got.Next.Equal(all[0].Next) || string(got.Payload) != string(all[0].Payload) {
			t.Errorf("the first task of the list is %+v", got)
		}
	})
}

// As many are named as with one node, and the others counted.
func TestNamesOfAllNodesAreBounded(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		const each = 600
		for _, m := range f.Nodes {
			for range each {
				m.Must(Request{Topic: "x", Group: "g"})
			}
			rig.Pass(10 * time.Millisecond)
			if ds, err := m.Reserve(t.Context(), "x", each, 0, time.Hour); err != nil || len(ds) != each {
				t.Fatalf("reserved %d, %v", len(ds), err)
			}
		}
		got, err := f.Nodes[0].CancelGroup(t.Context(), "g")
		slices.Sort(got.Delivering)
		if err != nil || got.Cancelled != 0 || len(slices.Compact(got.Delivering)) != MaxGroupDelivering || got.More != 3*each-MaxGroupDelivering {
			t.Errorf("CancelGroup = %d, %d named, %d more, %v", got.Cancelled, len(got.Delivering), got.More, err)
		}
	})
}

func TestTopicInUseElsewhere(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		_, err := a.SetTopic(t.Context(), "x", TopicSettings{Retry: Retry{MaxAttempts: 3}}, -1)
		rig.Want(t, "SetTopic", err, nil)
		rig.Pass(2 * time.Second)
		id := b.Must(Request{Topic: "x", Delay: time.Hour}).ID
		for _, m := range f.Nodes {
			rig.Want(t, "DeleteTopic at "+m.Name, m.Admin().DeleteTopic(t.Context(), "x", -1), ErrInUse)
		}
		rig.Want(t, "DeleteTopic of an unknown topic", a.Admin().DeleteTopic(t.Context(), "none", -1), ErrNoTopic)
		_, err = a.Admin().KillTopic(t.Context(), "none", -1)
		rig.Want(t, "KillTopic of an unknown topic", err, ErrNoTopic)
		bury(f.Nodes[2], "x", "dead")
		k, err := f.Nodes[2].Admin().KillTopic(t.Context(), "x", -1)
		if err != nil || k != (Killed{Killed: 1}) {
			t.Errorf("KillTopic = %+v, %v", k, err)
		}
		if got := a.MustGet(id); got.State != Dead || got.Reason != TopicDeleted {
			t.Errorf("the task of the topic: %+v", got)
		}
		rig.Want(t, "DeleteTopic again", f.Nodes[2].Admin().DeleteTopic(t.Context(), "x", -1), ErrNoTopic)

		// Without settings of its own, the tasks of a topic are killed all the same.
		b.Must(Request{Topic: "y", Delay: time.Hour})
		if k, err = a.Admin().KillTopic(t.Context(), "y", -1); err != nil || k.Killed != 1 {
			t.Errorf("KillTopic of tasks elsewhere = %+v, %v", k, err)
		}
	})
}

func TestDeadOfAllNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		var dead []string // in order of death
		for i := range 9 {
			id := fmt.Sprint("d", i)
			bury(f.Nodes[i%3], "x", id)
			dead = append(dead, id)
		}
		bury(f.Nodes[1], "y", "other")
		for _, m := range f.Nodes {
			for _, limit := range []int{1, 2, 100} {
				if got := m.Pages(Query{Topic: "x", State: Dead, Limit: limit}); !slices.Equal(got, dead) {
					t.Errorf("the dead at %s: %v, want %v", m.Name, got, dead)
				}
			}
		}
		q, err := f.Nodes[0].Admin().Requeue(ctx, "x", Requeue{IDs: []string{"d4", "nobody", "d5", "d0", "d4", "other"}, Delay: time.Hour})
		if err != nil || q.Requeued != 3 || !slices.Equal(q.Unknown, []string{"nobody", "other"}) {
			t.Errorf("Requeue = %+v, %v", q, err)
		}
		due := f.Nodes[0].MustGet("d4").Due
		for _, id := range []string{"d5", "d0"} {
			if got := f.Nodes[2].MustGet(id); got.State != Pending || !got.Due.Equal(due) {
				t.Errorf("requeued: %+v; want the deadline %v", got, due)
			}
		}
		n, err := f.Nodes[1].Admin().DeleteDead(ctx, "x", []string{"d1", "d2", "nobody"})
		if err != nil || n != 2 {
			t.Errorf("DeleteDead = %d, %v", n, err)
		}
		q, err = f.Nodes[2].Admin().Requeue(ctx, "x", Requeue{})
		if err != nil || q.Requeued != 4 || q.Unknown != nil {
			t.Errorf("Requeue of all = %+v, %v", q, err)
		}
		if n, err = f.Nodes[0].Admin().DeleteDead(ctx, "y", nil); err != nil || n != 1 {
			t.Errorf("DeleteDead of all = %d, %v", n, err)
		}
		if q, err = f.Nodes[0].Admin().Requeue(ctx, "x", Requeue{IDs: []string{}}); err != nil || q.Requeued != 0 {
			t.Errorf("Requeue of none = %+v, %v", q, err)
		}
	})
}

// What takes long goes in pieces, and nothing is counted twice.
func TestLongPurgeInPieces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := rig.NewFleet(t, 1)
		f.Before = func(m *rig.FaultyMember) { m.Delay = 400 * time.Millisecond }
		f.Start("b", rig.FleetShards, Config{})
		rig.Pass(5 * time.Second)
		fill := func(n int) {
			t.Helper()
			for range n / 4000 {
				results, err := f.Nodes[1].ScheduleBatch(t.Context(), slices.Repeat([]Request{{Topic: "x", Group: "g", Delay: time.Hour}}, 4000))
				rig.Want(t, "ScheduleBatch", err, nil)
				for _, r := range results {
					rig.Want(t, "ScheduleBatch", r.Err, nil)
				}
			}
		}
		const n, fewer = 20_000, 8000
		fill(n)
		out := deliver(f.Nodes[1], Request{Topic: "y", Group: "g"})
		began := time.Now()
		got, err := f.Nodes[0].CancelGroup(t.Context(), "g")
		if err != nil || got.Cancelled != n || !slices.Equal(got.Delivering, []string{out}) || got.More != 0 {
			t.Errorf("CancelGroup = %+v, %v", got, err)
		}
		if took := time.Since(began); took < 2*f.Nodes[0].Engine().Config.AnswerWithin {
			t.Errorf("it took %v: one call would have done", took)
		}

		fill(fewer)
		k, err := f.Nodes[0].Admin().KillTopic(t.Context(), "x", -1)
		if err != nil || k.Killed != fewer {
			t.Errorf("KillTopic = %+v, %v", k, err)
		}
		q, err := f.Nodes[0].Admin().Requeue(t.Context(), "x", Requeue{Delay: time.Hour})
		if err != nil || q.Requeued != fewer {
			t.Errorf("Requeue = %+v, %v", q, err)
		}
	})
}

// One node receives calls, and answers nothing. What the others did is told, and a repeat
// does the rest.
func TestSilentNodeAmongAll(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, silent := f.Nodes[0], f.Nodes[2]
		ctx := t.Context()
		fillAll(f, 4, "x", "g")
		bury(silent, "x", "d")
		hush := func(is bool) {
			f.Lose(func(from, _ string, _ []byte) bool { return is && from == silent.Name })
		}
		hush(true)
		began := time.Now()
		_, err := a.List(ctx, Query{})
		rig.Want(t, "List", err, ErrNodeAway)
		_, err = a.Admin().DeadTasks(ctx, "x", 0, "")
		rig.Want(t, "DeadTasks", err, ErrNodeAway)
		rig.Want(t, "DeleteTopic", a.Admin().DeleteTopic(ctx, "nothing", -1), ErrNodeAway)
		rig.Want(t, "DeleteTopic of one in use here", a.Admin().DeleteTopic(ctx, "x", -1), ErrInUse)
		if took := time.Since(began); took > 4*a.Engine().Config.AnswerWithin {
			t.Errorf("it took %v to find out", took)
		}
		_, err = a.Admin().Requeue(ctx, "x", Requeue{Delay: time.Hour})
		rig.Want(t, "Requeue", err, ErrUnknown)
		rig.Pass(time.Minute)
		bury(silent, "x", "e")
		hush(false)
		_, err = a.Admin().DeleteDead(ctx, "x", []string{"e"})
		rig.Want(t, "DeleteDead", err, nil)

		// Nothing of it is heard any more.
		f.Lose(func(_, to string, _ []byte) bool { return to == silent.Name })
		got, err := a.CancelGroup(ctx, "g")
		rig.Want(t, "CancelGroup", err, ErrUnknown)
		if got.Cancelled != 8 {
			t.Errorf("CancelGroup = %+v", got)
		}
		rig.Pass(time.Minute)
		hush(false)
		if got, err = a.CancelGroup(ctx, "g"); err != nil || got.Cancelled != 4 {
			t.Errorf("CancelGroup again = %+v, %v", got, err)
		}
	})
}

// A task that one node is delivering passes to another node while a group is cancelled; that
// one cancels it once it is given back. It is not said to be left to its receiver then.
func TestCancelledWhereItHasGone(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b, next := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		task := b.Must(Request{Topic: "x", Group: "g"})
		rig.Pass(10 * time.Millisecond)
		ds, err := b.Reserve(t.Context(), "x", 1, 0, time.Hour)
		if err != nil || len(ds) != 1 {
			t.Fatalf("reserved %v, %v", ds, err)
		}
		var hears atomic.Bool
		f.Lose(func(from, to string, message []byte) bool {
			return to == next.Name && !hears.Load() && bytes.Contains(message, []byte(cluster.PurgeMethod.Name)) ||
				// Node b does not take its shard back.
				from == b.Name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name))
		})
		var got GroupCancelled
		var cancelled error
		done := make(chan struct{})
		go func() {
			defer close(done)
			got, cancelled = a.CancelGroup(t.Context(), "g")
		}()
		rig.Pass(100 * time.Millisecond)
		shardID, _ := recovery.ShardIDOf(task.ID)
		rig.Want(t, "release", b.Engine().ReleaseShard(t.Context(), shardID, next.Name), nil)
		if ok, err := next.Member.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatal(ok, err)
		}
		given, err := b.Settle(t.Context(), Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)}, []string{ds[0].Receipt()})
		if err = errors.Join(err, given[0].Err); err != nil {
			t.Fatal("Settle:", err)
		}
		hears.Store(true)
		<-done
		if cancelled != nil || got.Cancelled != 1 || len(got.Delivering) != 0 || got.More != 0 {
			t.Errorf("CancelGroup = %+v, %v", got, cancelled)
		}
		_, err = a.Get(t.Context(), task.ID)
		rig.Want(t, "Get", err, ErrNotFound)
	})
}

// What a dead node held is waited for: a node adopts it, or the answer is an error.
func TestDeadNodeAmongAll(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b, gone := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		ids := fillAll(f, 4, "x", "g")
		gone.Crash()
		_, err := a.List(t.Context(), Query{Group: "g"})
		rig.Want(t, "List", err, ErrNodeAway)
		got, err := b.CancelGroup(t.Context(), "g")
		rig.Want(t, "CancelGroup", err, ErrNodeAway)
		if got.Cancelled != 8 {
			t.Errorf("CancelGroup = %+v", got)
		}
		time.AfterFunc(time.Second, func() { a.Member.AdoptFrom(gone.Member.Member) })
		if got, err = b.CancelGroup(t.Context(), "g"); err != nil || got.Cancelled != 4 {
			t.Errorf("CancelGroup with an adoption = %+v, %v", got, err)
		}
		if left := a.Pages(Query{Group: "g"}); len(left) != 0 {
			t.Errorf("left of %v: %v", ids, left)
		}
	})
}

// A node that does not know the method is named, and no answer pretends to be whole.
func TestOlderVersionAmongAll(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		ids := fillAll(f, 2, "x", "g")
		for _, verb := range []string{"list", "used", "purge", "exhume", "select", "act"} {
			delete(f.Nodes[2].Cluster().Fleet.Methods, verb)
		}
		a := f.Nodes[0]
		named := func(what string, err error) {
			t.Helper()
			rig.Want(t, what, err, ErrUnavailable)
			if e := (*NodeError)(nil); !errors.Is(err, cluster.ErrNotUnderstood) || !errors.As(err, &e) || e.Node != "c" {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := a.List(ctx, Query{})
		named("List", err)
		_, err = a.Admin().DeadTasks(ctx, "x", 0, "")
		named("DeadTasks", err)
		named("DeleteTopic", a.Admin().DeleteTopic(ctx, "nothing", -1))
		_, err = a.Admin().Requeue(ctx, "x", Requeue{})
		named("Requeue", err)
		_, err = a.Admin().DeleteDead(ctx, "x", nil)
		named("DeleteDead", err)
		_, err = a.Admin().Act(ctx, Act{Action: CancelAction, Query: Query{Topic: "x"}})
		named("Act", err)
		_, err = a.Admin().Act(ctx, Act{Action: DeleteAction, IDs: ids, Dry: true})
		named("Act", err)
		fired, err := a.Admin().Act(ctx, Act{Action: FireAction, IDs: ids})
		if rig.Want(t, "Act", err, nil); fired.Done != 4 || len(fired.Failed) != 2 || !errors.Is(fired.Failed[0].Err, cluster.ErrNotUnderstood) {
			t.Errorf("Act = %+v", fired)
		}
		got, err := a.CancelGroup(ctx, "g")
		named("CancelGroup", err)
		if got.Cancelled != 4 {
			t.Errorf("CancelGroup = %+v", got)
		}
	})
}
