package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A searched is all that a search has found: the states of tasks by their ids, groups and topics.
type searched struct {
	tasks          map[string]State
	groups, topics map[string]bool
	first, last    Found
	parts          int
	missing        map[string]bool
}

// search goes on to the end. at returns the node that is asked for the next part.
func search(ctx context.Context, t testing.TB, at func(parts int) *Scheduler, q SearchQuery) (all searched) {
	t.Helper()
	all.tasks, all.groups, all.topics, all.missing = make(map[string]State), make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for all.parts = 1; all.parts <= rig.MostPages; all.parts++ {
		f, reach, err := at(all.parts).Admin().FleetSearch(ctx, q)
		if err != nil {
			t.Fatalf("part %d of the search: %v", all.parts, err)
		}
		for _, x := range f.Tasks {
			if x.Task.Payload != nil || x.Match == 0 {
				t.Errorf("found %+v", x)
			}
			all.tasks[x.Task.ID] = x.Task.State
		}
		for _, x := range f.Groups {
			all.groups[x.Name] = true
		}
		for _, x := range f.Topics {
			all.topics[x.Name] = true
		}
		for _, m := range reach.Missing {
			all.missing[m.Node] = true
		}
		if f.LookedAt < 0 || f.LookedAt > f.Of || all.last.Complete != f.Complete && all.parts > 1 && f.Complete {
			t.Errorf("part %d has looked at %d of %d, complete: %v", all.parts, f.LookedAt, f.Of, f.Complete)
		}
		if all.last = f; all.parts == 1 {
			all.first = f
		}
		if q.Cursor = f.Cursor; q.Cursor == "" {
			if f.LookedAt != f.Of {
				t.Errorf("at the end it has looked at %d of %d", f.LookedAt, f.Of)
			}
			return all
		}
	}
	t.Fatal("the search does not end")
	return all
}

func always(s *Scheduler) func(int) *Scheduler { return func(int) *Scheduler { return s } }

// fillStates makes tasks in all states: pending, held, ready, delivering, dead and kept.
func fillStates(t *testing.T, pick func(i int) *Scheduler) {
	t.Helper()
	_, err := pick(0).SetTopic(t.Context(), "order.paid", TopicSettings{KeepFinished: time.Hour}, 0)
	rig.Want(t, "SetTopic", err, nil)
	for _, id := range []string{"dead-7", "kept-7", "taken-7"} {
		_, err := pick(0).Schedule(t.Context(), Request{ID: id, Topic: "order.paid", Group: "cart-" + id, Payload: []byte("x")})
		rig.Want(t, "Schedule", err, nil)
		rig.Pass(time.Second)
		ds, err := pick(0).Reserve(t.Context(), "order.paid", 1, 0, 0)
		if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
			t.Fatalf("%d were reserved", len(ds))
		}
		switch id {
		case "dead-7":
			_, err = pick(0).Settle(t.Context(), Verdict{Verb: Bury, Reason: "refused"}, []string{ds[0].Receipt()})
		case "kept-7":
			_, err = pick(0).Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[0].Receipt()})
		}
		rig.Want(t, "Settle", err, nil)
	}
	for i, r := range []Request{
		{ID: "7", Topic: "other", Delay: time.Hour, Group: "g77"},
		{ID: "order-7", Topic: "order.7", Delay: time.Hour, Group: "g77"},
		{ID: "7-held", Topic: "other", Delay: time.Hour, Held: true},
		{ID: "ready-7", Topic: "other", Payload: []byte("x")},
		{ID: "none", Topic: "other", Delay: time.Hour, Group: "7"},
		{ID: "nothing", Topic: "other", Delay: time.Hour, Group: "g"},
	} {
		_, err := pick(i).Schedule(t.Context(), r)
		rig.Want(t, "Schedule", err, nil)
	}
	rig.Pass(3 * time.Second)
}

var wantOf7 = map[string]State{
	"7": Pending, "order-7": Pending, "7-held": Held, "ready-7": Ready, "dead-7": Dead, "kept-7": Finished, "taken-7": Delivering,
}

// wantSearch wants all that has 7 in its name, whatever the size of the parts, and the best first.
func wantSearch(t *testing.T, at func(int) *Scheduler) {
	t.Helper()
	for _, limit := range []int{1, 2, 100} {
		all := search(t.Context(), t, at, SearchQuery{Text: "7", Limit: limit})
		if !maps.Equal(all.tasks, wantOf7) || !all.last.Complete || len(all.missing) > 0 {
			t.Errorf("limit %d: found %v, missing %v", limit, all.tasks, all.missing)
		}
		groups := slices.Sorted(maps.Keys(all.groups))
		if want := []string{"7", "cart-dead-7", "cart-kept-7", "cart-taken-7", "g77"}; !slices.Equal(groups, want) {
			t.Errorf("limit %d: groups %v, want %v", limit, groups, want)
		}
		if len(all.topics) != 1 || !all.topics["order.7"] {
			t.Errorf("limit %d: topics %v", limit, all.topics)
		}
		if f := all.first.Tasks; len(f) == 0 || f[0].Task.ID != "7" || f[0].Match != MatchExact {
			t.Errorf("limit %d: the first part begins with %+v", limit, f)
		}
	}
	f, _, err := at(1).Admin().FleetSearch(t.Context(), SearchQuery{Text: "7"})
	rig.Want(t, "FleetSearch", err, nil)
	var ids []string
	for _, x := range f.Tasks {
		ids = append(ids, x.Task.ID)
	}
	if want := []string{"7", "7-held", "order-7", "ready-7", "taken-7"}; !slices.Equal(ids, want) {
		t.Errorf("in the order %v, want %v", ids, want)
	}
	all := search(t.Context(), t, at, SearchQuery{Text: "nosuch"})
	if len(all.tasks)+len(all.groups)+len(all.topics) > 0 || !all.last.Complete {
		t.Errorf("found %+v", all)
	}
}

func TestSearch(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		fillStates(t, always(r.Scheduler))
		wantSearch(t, always(r.Scheduler))
		all := 0
		for q := (SearchQuery{Text: "7"}); ; {
			f, err := r.Admin().Search(t.Context(), q)
			rig.Want(t, "Search", err, nil)
			all += len(f.Tasks)
			if q.Cursor = f.Cursor; q.Cursor == "" {
				break
			}
		}
		if all != len(wantOf7) {
			t.Errorf("the node alone finds %d", all)
		}
		for _, q := range []SearchQuery{{Text: "8", Cursor: "x"}, {Text: "a/b"}, {}} {
			_, _, err := r.Admin().FleetSearch(t.Context(), q)
			rig.Want(t, "FleetSearch", err, ErrInvalid)
		}
		f, _, err := r.Admin().FleetSearch(t.Context(), SearchQuery{Text: "7", Limit: 1})
		rig.Want(t, "FleetSearch", err, nil)
		_, _, err = r.Admin().FleetSearch(t.Context(), SearchQuery{Text: "8", Cursor: f.Cursor})
		rig.Want(t, "the cursor of another search", err, ErrInvalid)
	})
}

func TestSearchAllNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		pick := func(i int) *Scheduler { return f.Nodes[i%3].Scheduler }
		fillStates(t, pick)
		wantSearch(t, pick) // each part from another node
	})
}

// A token of some topics finds nothing of others: no task, no group, no topic, and no figures.
func TestSearchUnderAGrant(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		fillStates(t, func(i int) *Scheduler { return f.Nodes[i%2].Scheduler })
		ctx := WithGrant(t.Context(), &Grant{Topics: []string{"order.*"}})
		all := search(ctx, t, always(f.Nodes[0].Scheduler), SearchQuery{Text: "7"})
		if !maps.Equal(all.tasks, map[string]State{"order-7": Pending, "dead-7": Dead, "kept-7": Finished, "taken-7": Delivering}) || all.last.Of != 4 {
			t.Errorf("found %v among %d", all.tasks, all.last.Of)
		}
		if all.groups["7"] || !all.groups["g77"] {
			t.Errorf("groups %v", all.groups)
		}
		ctx = WithGrant(t.Context(), &Grant{Topics: []string{"none"}})
		if all := search(ctx, t, always(f.Nodes[0].Scheduler), SearchQuery{Text: "7"}); len(all.tasks)+len(all.groups)+len(all.topics)+all.last.Of > 0 {
			t.Errorf("a token of no topic finds %+v", all)
		}
	})
}

// A node that does not answer is named, the search goes on without it, and is complete no more even
// if it comes back.
func TestSearchOfAPart(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, c := f.Nodes[0], f.Nodes[2]
		for i := range 30 {
			n := f.Nodes[i%3]
			n.Must(Request{ID: n.IDAt(0), Topic: "x", Group: fmt.Sprint("g", i%3), Delay: time.Hour})
		}
		rig.Pass(3 * time.Second)
		cut := func(from, to string, _ []byte) bool { return from == c.Name || to == c.Name }
		f.Lose(cut)
		all := search(t.Context(), t, func(parts int) *Scheduler {
			if parts > 5 {
				f.Lose(nil)
			}
			return a.Scheduler
		}, SearchQuery{Text: "g", Limit: 1})
		if all.first.Complete || all.last.Complete || !all.missing["c"] || !all.groups["g0"] || !all.groups["g1"] {
			t.Errorf("without c: %+v", all)
		}
		rig.Pass(3 * time.Second)
		if all := search(t.Context(), t, always(a.Scheduler), SearchQuery{Text: "g"}); !all.last.Complete || len(all.groups) != 3 {
			t.Errorf("with c: %+v", all)
		}
		f.Lose(cut)
		if all := search(t.Context(), t, always(a.Scheduler), SearchQuery{Text: "g"}); all.last.Complete || len(all.groups) != 2 || all.parts > 6 {
			t.Errorf("without c to the end: %+v", all)
		}
		c.Crash()
		f.Lose(nil)
		rig.Pass(time.Second)
		if all := search(t.Context(), t, always(a.Scheduler), SearchQuery{Text: "g"}); all.last.Complete || !all.missing["c"] {
			t.Errorf("c has crashed: %+v", all)
		}
	})
}

// While a shard goes from node to node, nothing of it is left out.
func TestSearchWhileAShardMoves(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		want := make(map[string]bool)
		for i := range 60 {
			id := fmt.Sprint("find-", i)
			f.Nodes[i%2].Must(Request{ID: id, Topic: "x", Delay: time.Hour})
			want[id] = true
		}
		rig.Pass(3 * time.Second)
		for range 3 {
			all := search(t.Context(), t, func(parts int) *Scheduler {
				from, to := a, b
				if parts%2 == 0 {
					from, to = b, a
				}
				if parts > 9 {
					return a.Scheduler
				}
				if err := to.Cluster().AcceptOffer(t.Context(), a.ShardID(0), from.Name); err != nil && parts%3 == 0 {
					synctest.Wait()
				}
				return f.Nodes[parts%2].Scheduler
			}, SearchQuery{Text: "find", Limit: 7})
			for id := range want {
				if _, found := all.tasks[id]; !found {
					t.Errorf("%s is left out; complete: %v, missing %v", id, all.last.Complete, all.missing)
				}
			}
			if !all.last.Complete || all.parts < 9 {
				t.Errorf("%d parts, complete: %v, missing %v", all.parts, all.last.Complete, all.missing)
			}
		}
	})
}

// What is there from the beginning of a search to its end is found, whatever becomes of it
// meanwhile, and nothing else than what a plain filter selects.
func TestSearchMissesNothing(t *testing.T) {
	t.Parallel()
	r, seed := rig.Disturbing(t)
	const tasks = 1500
	for i := range tasks {
		r.Must(Request{ID: fmt.Sprint("task-", i), Topic: "x", Group: fmt.Sprint("g", i%50), Delay: time.Duration(i%2) * time.Hour})
	}
	stop := r.Disturb(seed, 2, tasks)
	rng := rand.New(rand.NewPCG(seed, 9))
	for range 6 {
		text := []string{"task", "-1", "9", fmt.Sprint("K-", rng.IntN(20)), fmt.Sprint("task-", rng.IntN(tasks)), "g4"}[rng.IntN(6)]
		all := search(t.Context(), t, always(r.Scheduler), SearchQuery{Text: text, Limit: 20 + rng.IntN(300)})
		var found, want []string
		for i := range tasks {
			if id := fmt.Sprint("task-", i); strings.Contains(id, strings.ToLower(text)) {
				want = append(want, id)
			}
		}
		found = slices.Sorted(maps.Keys(all.tasks))
		slices.Sort(want)
		if d := cmp.Diff(want, found); d != "" || !all.last.Complete {
			t.Errorf("%q in %d parts, complete: %v: %s", text, all.parts, all.last.Complete, d)
		}
		for i := range 50 {
			if g := fmt.Sprint("g", i); all.groups[g] != strings.Contains(g, text) {
				t.Errorf("%q: group %s is found: %v", text, g, all.groups[g])
			}
		}
	}
	stop()
}

// A node reads for four callers at a time: a search that does not get its turn gets nowhere, and
// goes on later.
func TestSearchesAtOnce(t *testing.T) {
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		n := f.Nodes[0]
		n.Must(Request{ID: "a-1", Topic: "x"})
		rig.Pass(time.Second)
		ds, err := n.Reserve(t.Context(), "x", 1, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		_, err = n.Settle(t.Context(), Verdict{Verb: Bury, Reason: "refused"}, []string{ds[0].Receipt()})
		rig.Want(t, "Settle", err, nil)
		rig.Pass(time.Second)
		first, _, err := n.Admin().FleetSearch(t.Context(), SearchQuery{Text: "a"})
		if rig.Want(t, "FleetSearch", err, nil); first.Cursor == "" {
			t.Fatal("the dead were not left to the second part")
		}
		release := n.Member.Hold("ListDead")
		defer release()
		waits, leave := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				_, _, err := n.Admin().FleetSearch(waits, SearchQuery{Text: "a", Cursor: first.Cursor, Within: 10 * time.Second})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("a search that was left: %v", err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		stuck, _, err := n.Admin().FleetSearch(t.Context(), SearchQuery{Text: "a", Cursor: first.Cursor})
		if rig.Want(t, "FleetSearch", err, nil); len(stuck.Tasks) > 0 || stuck.Cursor == "" || time.Since(began) != time.Second {
			t.Errorf("the fifth one: %+v after %v", stuck, time.Since(began))
		}
		leave()
		group.Wait()
		release()
		next, _, err := n.Admin().FleetSearch(t.Context(), SearchQuery{Text: "a", Cursor: stuck.Cursor})
		if rig.Want(t, "FleetSearch", err, nil); len(next.Tasks) != 1 || next.Tasks[0].Task.State != Dead {
			t.Errorf("later: %+v", next)
		}
	})
}

// turnsTaken returns the cursor of a search whose next part reads the dead, and has four such parts
// wait for the ledger of b, which has the dead, as long as their callers do. These ask at.
func turnsTaken(t *testing.T, f *rig.Fleet, at *rig.Node) (cursor string, leave, release func()) {
	t.Helper()
	first, _, err := at.Admin().FleetSearch(t.Context(), SearchQuery{Text: "7"})
	if rig.Want(t, "FleetSearch", err, nil); first.Cursor == "" {
		t.Fatal("the dead were not left to the second part")
	}
	release = f.Node("b").Member.Hold("ListDead")
	waits, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			_, _, err := at.Admin().FleetSearch(waits, SearchQuery{Text: "7", Cursor: first.Cursor, Within: 10 * time.Second})
			rig.Want(t, "a search that was left", err, context.Canceled)
		})
	}
	synctest.Wait()
	return first.Cursor, func() { cancel(); group.Wait() }, release
}

// While another node has no turn for it, a search stays where it is, however long that takes: no
// shard is missing.
func TestSearchWaitsForTheTurnOfAnotherNode(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		fillStates(t, func(i int) *Scheduler { return f.Nodes[(i+1)%2].Scheduler })
		cursor, leave, release := turnsTaken(t, f, b)
		for range 5 {
			stuck, reach, err := a.Admin().FleetSearch(t.Context(), SearchQuery{Text: "7", Cursor: cursor})
			if rig.Want(t, "FleetSearch", err, nil); !stuck.Complete || len(reach.Missing) > 0 || stuck.Cursor != cursor || len(stuck.Tasks) > 0 {
				t.Fatalf("without a turn of b: %+v, missing %v", stuck, reach.Missing)
			}
		}
		leave()
		release()
		all := search(t.Context(), t, always(a.Scheduler), SearchQuery{Text: "7", Cursor: cursor})
		if all.tasks["dead-7"] != Dead || all.tasks["kept-7"] != Finished || !all.last.Complete {
			t.Errorf("later: %+v", all)
		}
	})
}

// A caller that leaves gives back the turns of all nodes.
func TestSearchThatIsLeftEndsEverywhere(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		fillStates(t, func(i int) *Scheduler { return f.Nodes[(i+1)%2].Scheduler })
		_, leave, release := turnsTaken(t, f, a)
		defer release()
		began := time.Now()
		leave()
		synctest.Wait()
		found, err := b.Admin().Search(t.Context(), SearchQuery{Text: "7"})
		if rig.Want(t, "Search", err, nil); len(found.Tasks) == 0 || time.Since(began) > 0 {
			t.Errorf("b has no turn: %+v after %v", found, time.Since(began))
		}
	})
}
