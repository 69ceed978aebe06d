package rig

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// Bury makes tasks die, one each second.
func (r *Rig) Bury(topic string, ids ...string) {
	r.T.Helper()
	for _, id := range ids {
		d := r.One(id, topic)
		if a := r.SettleOne(tasks.Verdict{Verb: tasks.Bury, Reason: "no use"}, d); a.Err != nil || !a.Recorded {
			r.T.Fatalf("Bury: %+v", a)
		}
		Pass(time.Second)
	}
}

// Requeued is how many tasks came back.
func Requeued(r tasks.Requeued, err error) (int, error) { return r.Requeued, err }

// IDsOf are the ids of tasks, in their order.
func IDsOf(tasks []tasks.Task) []string {
	var ids []string
	for _, task := range tasks {
		ids = append(ids, task.ID)
	}
	return ids
}

// MustHandle registers a handler that has to be accepted.
func (r *Rig) MustHandle(topic string, f tasks.HandlerFunc) {
	r.T.Helper()
	if err := r.Handle(topic, f); err != nil {
		r.T.Fatalf("Handle(%q): %v", topic, err)
	}
}

// OwnTopics is the context of a caller who may use the topics own.* only.
func OwnTopics(ctx context.Context) context.Context {
	return tasks.WithGrant(ctx, &tasks.Grant{Topics: []string{"own.*"}})
}

// ListedAt is where a task stands in a list: held ones come last.
func ListedAt(task *tasks.Task) time.Time {
	if task.State == tasks.Held {
		return time.UnixMilli(record.HeldUntil)
	}
	return task.Next
}

// KeepsFor sets up how long a topic keeps its finished tasks.
func (r *Rig) KeepsFor(topic string, keep time.Duration) {
	r.T.Helper()
	r.MustSetTopic(topic, tasks.TopicSettings{KeepFinished: keep})
}

// Finish has a task of a topic delivered.
func (r *Rig) Finish(id, topic string) tasks.Task {
	r.T.Helper()
	task := r.Must(tasks.Request{ID: id, Topic: topic, Payload: []byte(id)})
	r.Ack(r.Pull(topic, id)[0])
	return task
}

// Pages reads all pages of a query.
func (r *Rig) Pages(q tasks.Query) (all []tasks.Task) {
	r.T.Helper()
	for range MostPages {
		page, err := r.List(r.T.Context(), q)
		if err != nil {
			r.T.Fatal("List:", err)
		}
		all = append(all, page.Tasks...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all
		}
		if len(page.Tasks) != q.Limit {
			r.T.Fatalf("a page of %d, with another behind it", len(page.Tasks))
		}
	}
	r.T.Fatalf("List(%+v) does not end", q)
	return nil
}

// Only wants a single task of a topic that is not dead, and returns it.
func (r *Rig) Only(topic string) tasks.Task {
	r.T.Helper()
	list := r.Pages(tasks.Query{Topic: topic})
	if len(list) != 1 {
		r.T.Fatalf("%q: there are %d tasks: %q; want one", topic, len(list), IDsOf(list))
	}
	return list[0]
}

// WantFollowUps wants so many tasks of a topic to be dead, and its figures of their follow-ups.
func (r *Rig) WantFollowUps(what, topic string, dead, made, lost, ended int64) {
	r.T.Helper()
	if c := r.Counts(topic); c.Dead != dead || c.FollowUps != made || c.FollowUpsLost != lost || c.FollowUpsEnded != ended {
		r.T.Errorf("%s: %d dead; follow-ups: %d made, %d lost, %d ended; want %d, %d, %d, %d", what, c.Dead, c.FollowUps, c.FollowUpsLost, c.FollowUpsEnded, dead, made, lost, ended)
	}
	r.CheckConsistency()
}

// Kinds are the two ways in which a ledger hands out what it has.
var Kinds = map[string][]memledger.Option{
	"Snapshot":   {memledger.Strict()},
	"Nominating": {memledger.Strict(), memledger.Nominating(), memledger.Shards(4)},
}

// An ObserverFunc is an Observer that is one function.
type ObserverFunc func(tasks.Event)

// Observe implements Observer.
func (f ObserverFunc) Observe(e tasks.Event) { f(e) }
