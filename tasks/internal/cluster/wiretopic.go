package cluster

import (
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A wireTopic is what a task.Topic says of one node. Its settings are not part of it: all nodes
// have them from the ledger.
type wireTopic struct {
	Name           string      `json:"name"`
	Counts         task.Counts `json:"counts"`
	ConcurrencyNow int         `json:"concurrency_now,omitempty"`
	Undeliverable  string      `json:"undeliverable,omitempty"`
	LastError      string      `json:"last_error,omitempty"`
	LastFailed     time.Time   `json:"last_failed,omitzero"`
}

func encodeTopic(t *task.Topic) wireTopic {
	return wireTopic{t.Name, t.Counts, t.ConcurrencyNow, t.Undeliverable, t.LastError, t.LastFailed}
}

// decode returns the topic without settings. Its text says which node cannot deliver the tasks.
func (w *wireTopic) decode(node string) task.Topic {
	t := task.Topic{Name: w.Name, Counts: w.Counts, ConcurrencyNow: w.ConcurrencyNow, LastError: w.LastError, LastFailed: w.LastFailed}
	if w.Undeliverable != "" {
		t.Undeliverable = "node " + node + ": " + w.Undeliverable
	}
	return t
}

// size is about how many bytes of a message the topic takes up.
func (w *wireTopic) size() int {
	const fields, bucket = 400, 30
	return fields + bucket*(w.Counts.Lateness.Counts.Used()+w.Counts.Recent.Counts.Used()) + len(w.Name) + len(w.Undeliverable) + len(w.LastError)
}

func haveTasks(c *task.Counts) bool { return c.Pending+c.Ready+c.Delivering+c.Dead > 0 }
