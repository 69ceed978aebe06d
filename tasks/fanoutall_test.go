package tasks_test

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
)

// fill schedules tasks at every node, of a topic and a group, and returns their ids.
func (f *fleet) fill(n int, topic, group string) (ids []string) {
	f.t.Helper()
	for i, m := range f.nodes {
		for k := range n {
			r := Request{Topic: topic, Group: group, Delay: time.Hour + time.Duration(i+k)*time.Second}
			if k%2 == 0 {
				r.ID = fmt.Sprintf("%s-%s-%s-%d", topic, group, m.name, k)
			}
			ids = append(ids, m.must(r).ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// deliver has a task delivered, and returns its id.
func (m *node) deliver(r Request) string {
	m.t.Helper()
	id := m.must(r).ID
	pass(10 * time.Millisecond)
	ds, err := m.Reserve(m.t.Context(), r.Topic, 1, 0, time.Hour)
	if err != nil || len(ds) != 1 || ds[0].ID != id {
		m.t.Fatalf("reserved %v, %v; want %s", ds, err, id)
	}
	return id
}

// bury schedules a task at a node and buries it.
func (m *node) bury(topic, id string) {
	m.t.Helper()
	m.must(Request{ID: id, Topic: topic})
	pass(10 * time.Millisecond)
	ds, err := m.Reserve(m.t.Context(), topic, 1, 0, 0)
	if err != nil || len(ds) != 1 || ds[0].ID != id {
		m.t.Fatalf("reserved %v, %v; want %s", ds, err, id)
	}
	a, err := m.Settle(m.t.Context(), Verdict{Verb: Bury, Reason: "no use"}, []string{ds[0].Receipt()})
	if err = errors.Join(err, a[0].Err); err != nil {
		m.t.Fatal("Settle:", err)
	}
}

// pages reads all pages of a query.
func (m *node) pages(q Query) (all []string) {
	m.t.Helper()
	for range mostPages {
		page, err := m.List(m.t.Context(), q)
		if err != nil {
			m.t.Fatalf("List(%+v) at %s: %v", q, m.name, err)
		}
		all = append(all, idsOf(page.Tasks)...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all
		}
	}
	m.t.Fatalf("List(%+v) at %s does not end", q, m.name)
	return nil
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
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		var all []Task
		for i := range 450 {
			all = append(all, f.nodes[rng.IntN(3)].must(Request{
				Topic: []string{"x", "y"}[rng.IntN(2)], Group: []string{"", "g"}[rng.IntN(2)],
				Delay: time.Duration(rng.IntN(60)) * time.Second, Payload: sized(i),
			}))
		}
		slices.SortFunc(all, func(a, b Task) int {
			return query.CompareRefs(recovery.Ref{ID: a.ID, Next: a.Next.UnixMilli()}, recovery.Ref{ID: b.ID, Next: b.Next.UnixMilli()})
		})
		for _, m := range f.nodes {
			for _, limit := range []int{77, 1000} {
				for _, q := range []Query{{}, {Topic: "y", Group: "g"}, {State: Delivering}} {
					var wanted []string
					for _, task := range all {
						if q.State == 0 && (q.Topic == "" || q.Topic == task.Topic) && (q.Group == "" || q.Group == task.Group) {
							wanted = append(wanted, task.ID)
						}
					}
					q.Limit = limit
					if got := m.pages(q); !slices.Equal(got, wanted) {
						t.Errorf("%+v at %s: %d tasks, want %d in their order", q, m.name, len(got), len(wanted))
					}
				}
			}
		}
		page, err := f.nodes[0].List(t.Context(), Query{Limit: 1000})
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
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		const each = 600
		for _, m := range f.nodes {
			for range each {
				m.must(Request{Topic: "x", Group: "g"})
			}
			pass(10 * time.Millisecond)
			if ds, err := m.Reserve(t.Context(), "x", each, 0, time.Hour); err != nil || len(ds) != each {
				t.Fatalf("reserved %d, %v", len(ds), err)
			}
		}
		got, err := f.nodes[0].CancelGroup(t.Context(), "g")
		slices.Sort(got.Delivering)
		if err != nil || got.Cancelled != 0 || len(slices.Compact(got.Delivering)) != MaxGroupDelivering || got.More != 3*each-MaxGroupDelivering {
			t.Errorf("CancelGroup = %d, %d named, %d more, %v", got.Cancelled, len(got.Delivering), got.More, err)
		}
	})
}

func TestTopicInUseElsewhere(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		_, err := a.SetTopic(t.Context(), "x", TopicSettings{Retry: Retry{MaxAttempts: 3}}, -1)
		want(t, "SetTopic", err, nil)
		pass(2 * time.Second)
		id := b.must(Request{Topic: "x", Delay: time.Hour}).ID
		for _, m := range f.nodes {
			want(t, "DeleteTopic at "+m.name, m.DeleteTopic(t.Context(), "x", -1), ErrInUse)
		}
		want(t, "DeleteTopic of an unknown topic", a.DeleteTopic(t.Context(), "none", -1), ErrNoTopic)
		_, err = a.KillTopic(t.Context(), "none", -1)
		want(t, "KillTopic of an unknown topic", err, ErrNoTopic)
		f.nodes[2].bury("x", "dead")
		k, err := f.nodes[2].KillTopic(t.Context(), "x", -1)
		if err != nil || k != (Killed{Killed: 1}) {
			t.Errorf("KillTopic = %+v, %v", k, err)
		}
		if got := a.get(id); got.State != Dead || got.Reason != TopicDeleted {
			t.Errorf("the task of the topic: %+v", got)
		}
		want(t, "DeleteTopic again", f.nodes[2].DeleteTopic(t.Context(), "x", -1), ErrNoTopic)

		// Without settings of its own, the tasks of a topic are killed all the same.
		b.must(Request{Topic: "y", Delay: time.Hour})
		if k, err = a.KillTopic(t.Context(), "y", -1); err != nil || k.Killed != 1 {
			t.Errorf("KillTopic of tasks elsewhere = %+v, %v", k, err)
		}
	})
}

func TestDeadOfAllNodes(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		var dead []string // in order of death
		for i := range 9 {
			id := fmt.Sprint("d", i)
			f.nodes[i%3].bury("x", id)
			dead = append(dead, id)
		}
		f.nodes[1].bury("y", "other")
		for _, m := range f.nodes {
			for _, limit := range []int{1, 2, 100} {
				if got := m.pages(Query{Topic: "x", State: Dead, Limit: limit}); !slices.Equal(got, dead) {
					t.Errorf("the dead at %s: %v, want %v", m.name, got, dead)
				}
			}
		}
		q, err := f.nodes[0].Requeue(ctx, "x", Requeue{IDs: []string{"d4", "nobody", "d5", "d0", "d4", "other"}, Delay: time.Hour})
		if err != nil || q.Requeued != 3 || !slices.Equal(q.Unknown, []string{"nobody", "other"}) {
			t.Errorf("Requeue = %+v, %v", q, err)
		}
		due := f.nodes[0].get("d4").Due
		for _, id := range []string{"d5", "d0"} {
			if got := f.nodes[2].get(id); got.State != Pending || !got.Due.Equal(due) {
				t.Errorf("requeued: %+v; want the deadline %v", got, due)
			}
		}
		n, err := f.nodes[1].DeleteDead(ctx, "x", []string{"d1", "d2", "nobody"})
		if err != nil || n != 2 {
			t.Errorf("DeleteDead = %d, %v", n, err)
		}
		q, err = f.nodes[2].Requeue(ctx, "x", Requeue{})
		if err != nil || q.Requeued != 4 || q.Unknown != nil {
			t.Errorf("Requeue of all = %+v, %v", q, err)
		}
		if n, err = f.nodes[0].DeleteDead(ctx, "y", nil); err != nil || n != 1 {
			t.Errorf("DeleteDead of all = %d, %v", n, err)
		}
		if q, err = f.nodes[0].Requeue(ctx, "x", Requeue{IDs: []string{}}); err != nil || q.Requeued != 0 {
			t.Errorf("Requeue of none = %+v, %v", q, err)
		}
	})
}

// What takes long goes in pieces, and nothing is counted twice.
func TestLongPurgeInPieces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		f.before = func(m *faultyMember) { m.delay = 400 * time.Millisecond }
		f.start("b", fleetShards, Config{})
		pass(5 * time.Second)
		fill := func(n int) {
			t.Helper()
			for range n / 4000 {
				results, err := f.nodes[1].ScheduleBatch(t.Context(), slices.Repeat([]Request{{Topic: "x", Group: "g", Delay: time.Hour}}, 4000))
				want(t, "ScheduleBatch", err, nil)
				for _, r := range results {
					want(t, "ScheduleBatch", r.Err, nil)
				}
			}
		}
		const n, fewer = 20_000, 8000
		fill(n)
		out := f.nodes[1].deliver(Request{Topic: "y", Group: "g"})
		began := time.Now()
		got, err := f.nodes[0].CancelGroup(t.Context(), "g")
		if err != nil || got.Cancelled != n || !slices.Equal(got.Delivering, []string{out}) || got.More != 0 {
			t.Errorf("CancelGroup = %+v, %v", got, err)
		}
		if took := time.Since(began); took < 2*f.nodes[0].Engine().Config.AnswerWithin {
			t.Errorf("it took %v: one call would have done", took)
		}

		fill(fewer)
		k, err := f.nodes[0].KillTopic(t.Context(), "x", -1)
		if err != nil || k.Killed != fewer {
			t.Errorf("KillTopic = %+v, %v", k, err)
		}
		q, err := f.nodes[0].Requeue(t.Context(), "x", Requeue{Delay: time.Hour})
		if err != nil || q.Requeued != fewer {
			t.Errorf("Requeue = %+v, %v", q, err)
		}
	})
}

// One node receives calls, and answers nothing. What the others did is told, and a repeat
// does the rest.
func TestSilentNodeAmongAll(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		a, silent := f.nodes[0], f.nodes[2]
		ctx := t.Context()
		f.fill(4, "x", "g")
		silent.bury("x", "d")
		hush := func(is bool) {
			f.lose(func(from, _ string, _ []byte) bool { return is && from == silent.name })
		}
		hush(true)
		began := time.Now()
		_, err := a.List(ctx, Query{})
		want(t, "List", err, ErrNodeAway)
		_, err = a.DeadTasks(ctx, "x", 0, "")
		want(t, "DeadTasks", err, ErrNodeAway)
		want(t, "DeleteTopic", a.DeleteTopic(ctx, "nothing", -1), ErrNodeAway)
		want(t, "DeleteTopic of one in use here", a.DeleteTopic(ctx, "x", -1), ErrInUse)
		if took := time.Since(began); took > 4*a.Engine().Config.AnswerWithin {
			t.Errorf("it took %v to find out", took)
		}
		_, err = a.Requeue(ctx, "x", Requeue{Delay: time.Hour})
		want(t, "Requeue", err, ErrUnknown)
		pass(time.Minute)
		silent.bury("x", "e")
		hush(false)
		_, err = a.DeleteDead(ctx, "x", []string{"e"})
		want(t, "DeleteDead", err, nil)

		// Nothing of it is heard any more.
		f.lose(func(_, to string, _ []byte) bool { return to == silent.name })
		got, err := a.CancelGroup(ctx, "g")
		want(t, "CancelGroup", err, ErrUnknown)
		if got.Cancelled != 8 {
			t.Errorf("CancelGroup = %+v", got)
		}
		pass(time.Minute)
		hush(false)
		if got, err = a.CancelGroup(ctx, "g"); err != nil || got.Cancelled != 4 {
			t.Errorf("CancelGroup again = %+v, %v", got, err)
		}
	})
}

// A task that one node is delivering passes to another node while a group is cancelled; that
// one cancels it once it is given back. It is not said to be left to its receiver then.
func TestCancelledWhereItHasGone(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		a, b, next := f.nodes[0], f.nodes[1], f.nodes[2]
		task := b.must(Request{Topic: "x", Group: "g"})
		pass(10 * time.Millisecond)
		ds, err := b.Reserve(t.Context(), "x", 1, 0, time.Hour)
		if err != nil || len(ds) != 1 {
			t.Fatalf("reserved %v, %v", ds, err)
		}
		var hears atomic.Bool
		f.lose(func(from, to string, message []byte) bool {
			return to == next.name && !hears.Load() && bytes.Contains(message, []byte(cluster.PurgeMethod.Name)) ||
				// Node b does not take its shard back.
				from == b.name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name))
		})
		var got GroupCancelled
		var cancelled error
		done := make(chan struct{})
		go func() {
			defer close(done)
			got, cancelled = a.CancelGroup(t.Context(), "g")
		}()
		pass(100 * time.Millisecond)
		shardID, _ := recovery.ShardIDOf(task.ID)
		want(t, "release", b.Engine().ReleaseShard(t.Context(), shardID, next.name), nil)
		if ok, err := next.member.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatal(ok, err)
		}
		given, err := b.Settle(t.Context(), Verdict{Verb: Release, Delay: ptr(time.Hour)}, []string{ds[0].Receipt()})
		if err = errors.Join(err, given[0].Err); err != nil {
			t.Fatal("Settle:", err)
		}
		hears.Store(true)
		<-done
		if cancelled != nil || got.Cancelled != 1 || len(got.Delivering) != 0 || got.More != 0 {
			t.Errorf("CancelGroup = %+v, %v", got, cancelled)
		}
		_, err = a.Get(t.Context(), task.ID)
		want(t, "Get", err, ErrNotFound)
	})
}

// What a dead node held is waited for: a node adopts it, or the answer is an error.
func TestDeadNodeAmongAll(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		a, b, gone := f.nodes[0], f.nodes[1], f.nodes[2]
		ids := f.fill(4, "x", "g")
		gone.crash()
		_, err := a.List(t.Context(), Query{Group: "g"})
		want(t, "List", err, ErrNodeAway)
		got, err := b.CancelGroup(t.Context(), "g")
		want(t, "CancelGroup", err, ErrNodeAway)
		if got.Cancelled != 8 {
			t.Errorf("CancelGroup = %+v", got)
		}
		time.AfterFunc(time.Second, func() { a.member.AdoptFrom(gone.member.Member) })
		if got, err = b.CancelGroup(t.Context(), "g"); err != nil || got.Cancelled != 4 {
			t.Errorf("CancelGroup with an adoption = %+v, %v", got, err)
		}
		if left := a.pages(Query{Group: "g"}); len(left) != 0 {
			t.Errorf("left of %v: %v", ids, left)
		}
	})
}

// A node that does not know the method is named, and no answer pretends to be whole.
func TestOlderVersionAmongAll(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		ids := f.fill(2, "x", "g")
		for _, verb := range []string{"list", "used", "purge", "exhume", "select", "act"} {
			delete(f.nodes[2].Cluster().Fleet.Methods, verb)
		}
		a := f.nodes[0]
		named := func(what string, err error) {
			t.Helper()
			want(t, what, err, ErrUnavailable)
			if e := (*NodeError)(nil); !errors.Is(err, cluster.ErrNotUnderstood) || !errors.As(err, &e) || e.Node != "c" {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := a.List(ctx, Query{})
		named("List", err)
		_, err = a.DeadTasks(ctx, "x", 0, "")
		named("DeadTasks", err)
		named("DeleteTopic", a.DeleteTopic(ctx, "nothing", -1))
		_, err = a.Requeue(ctx, "x", Requeue{})
		named("Requeue", err)
		_, err = a.DeleteDead(ctx, "x", nil)
		named("DeleteDead", err)
		_, err = a.Act(ctx, Act{Action: CancelAction, Query: Query{Topic: "x"}})
		named("Act", err)
		_, err = a.Act(ctx, Act{Action: DeleteAction, IDs: ids, Dry: true})
		named("Act", err)
		fired, err := a.Act(ctx, Act{Action: FireAction, IDs: ids})
		if want(t, "Act", err, nil); fired.Done != 4 || len(fired.Failed) != 2 || !errors.Is(fired.Failed[0].Err, cluster.ErrNotUnderstood) {
			t.Errorf("Act = %+v", fired)
		}
		got, err := a.CancelGroup(ctx, "g")
		named("CancelGroup", err)
		if got.Cancelled != 4 {
			t.Errorf("CancelGroup = %+v", got)
		}
	})
}
