package cluster

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// Each node gets its tasks at once and in their order. Those that were not found are left out.
func TestEachNode(t *testing.T) {
	all := []item{
		{id: "1", at: Location{Node: "b"}}, {id: "2"}, {id: "3", err: task.ErrNotFound},
		{id: "4", at: Location{Node: "a"}}, {id: "5", at: Location{Node: "b"}}, {id: "6"},
	}
	var mu sync.Mutex // guards got
	got := make(map[string][]string)
	note := func(node string, some []*item) {
		mu.Lock()
		defer mu.Unlock()
		got[node] = append(append(got[node], idsOf(some)...), "end")
	}
	eachNode(pointersTo(all), func(some []*item) { note("", some) }, note)
	want := map[string][]string{"": {"2", "6", "end"}, "a": {"4", "end"}, "b": {"1", "5", "end"}}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Only the last way to find a task makes it final that there is none, and what has become of the
// task once a shard is known. A task that has left the node where it was selected is looked up.
func TestAttemptsOfAnItem(t *testing.T) {
	for _, c := range []struct {
		what         string
		p            item
		again, later bool
		from         lookupStage
	}{
		{"done", item{}, false, false, byMemory},
		{"gone from memory", item{err: task.ErrNotFound}, true, false, byID},
		{"finished, by memory", item{err: engine.ErrFinished}, true, false, byID},
		{"not at the shard of its id", item{at: Location{stage: byID}, err: task.ErrNotFound}, true, false, byDirectory},
		{"finished at the shard of its id", item{at: Location{stage: byID}, err: engine.ErrFinished}, false, false, byMemory},
		{"nowhere", item{at: Location{stage: byDirectory}, err: task.ErrNotFound}, false, false, byMemory},
		{"on its way", item{from: byDirectory, err: errNotMine}, true, true, byMemory},
		{"not where it was selected", item{node: "b", err: errNotMine}, true, false, byMemory},
		{"being delivered", item{err: task.ErrDelivering}, false, false, byMemory},
	} {
		again, later := c.p.again()
		if again != c.again || later != c.later || c.p.from != c.from || c.p.node != "" {
			t.Errorf("%s: again %t, later %t, from %d at %q", c.what, again, later, c.p.from, c.p.node)
		}
	}
}
