package task

import (
	"cmp"
	"slices"
	"time"
)

// Bounds of a count of tasks.
const (
	// MaxCountedTopics bounds how many topics a TaskCounts tells of.
	MaxCountedTopics = 100
	// CountWithin is how long a count takes at most, unless the caller says otherwise, from
	// MinWithin to MaxWithin.
	CountWithin = 2 * time.Second
	MinWithin   = 50 * time.Millisecond
	MaxWithin   = 10 * time.Second
)

// A StateCount counts tasks by their state. What is retrying or held is pending, too.
type StateCount struct {
	Pending    int // those that wait for their time, the next two among them
	Retrying   int // of which an attempt was made
	Held       int // whose countdown is held
	Ready      int
	Delivering int
	Dead       int // counted with the state Dead only
	Finished   int // counted with the state Finished only
}

// Add adds other tasks.
func (c *StateCount) Add(o *StateCount) {
	c.Pending += o.Pending
	c.Retrying += o.Retrying
	c.Held += o.Held
	c.Ready += o.Ready
	c.Delivering += o.Delivering
	c.Dead += o.Dead
	c.Finished += o.Finished
}

// All returns how many tasks were counted.
func (c *StateCount) All() int { return c.Pending + c.Ready + c.Delivering + c.Dead + c.Finished }

// A TopicCount counts tasks of a topic.
type TopicCount struct {
	Topic string
	StateCount
}

// TaskCounts says how many tasks a query selects, by topic and state.
type TaskCounts struct {
	Total    StateCount
	Topics   []TopicCount // those of most tasks first
	LeftOut  int          // tasks in Total that none of Topics counts
	LookedAt int          // how many tasks were looked at, about
	Of       int          // of how many, about; those of nodes that are missing are not among them
	Complete bool         // Total has all that are selected
}

// A CountTally adds up counts. The zero value has none, and is not complete.
type CountTally struct {
	TaskCounts
	at map[string]int // in Topics
}

// TopicOf returns the counts of a topic. They are valid until the next call.
func (t *CountTally) TopicOf(name string) *StateCount {
	at, known := t.at[name]
	if !known {
		if t.at == nil {
			t.at = make(map[string]int)
		}
		at = len(t.Topics)
		t.at[name], t.Topics = at, append(t.Topics, TopicCount{Topic: name})
	}
	return &t.Topics[at].StateCount
}

// Add adds what another node has counted.
func (t *CountTally) Add(o *TaskCounts) {
	for i := range o.Topics {
		t.TopicOf(o.Topics[i].Topic).Add(&o.Topics[i].StateCount)
	}
	t.Total.Add(&o.Total)
	t.LeftOut += o.LeftOut
	t.LookedAt += o.LookedAt
	t.Of += o.Of
	t.Complete = t.Complete && o.Complete
}

// Most returns what was counted, with the topics of most tasks, at most so many.
func (t *CountTally) Most(limit int) TaskCounts {
	most := t.TaskCounts
	most.Topics = slices.DeleteFunc(slices.Clone(most.Topics), func(c TopicCount) bool { return c.All() == 0 })
	slices.SortFunc(most.Topics, func(a, b TopicCount) int {
		return cmp.Or(cmp.Compare(b.All(), a.All()), cmp.Compare(a.Topic, b.Topic))
	})
	for i := range most.Topics[min(limit, len(most.Topics)):] {
		most.LeftOut += most.Topics[limit+i].All()
	}
	most.Topics = most.Topics[:min(limit, len(most.Topics))]
	return most
}
