package delivertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A Targeted is a Rig of a way that delivers tasks to targets of their own. Its receiver sets
// Arrival.Own.
type Targeted interface {
	Rig
	// Targets returns settings of a task that lead to the receiver as well, but not as the topic
	// does, and others that the way has to refuse.
	Targets() (own json.RawMessage, refused []json.RawMessage)
}

// testTargets: tasks with targets of their own and tasks without are delivered side by side, each
// where it belongs. Targets that the way cannot reach are refused. While the topic does not allow
// targets, tasks that have one wait.
func testTargets(f *fixture) {
	rig, ok := f.rig.(Targeted)
	if !ok {
		f.Skip("it has no targets of tasks")
	}
	f.start(func(set *tasks.TopicSettings) { set.TaskDelivery = true })
	own, refused := rig.Targets()
	task := func(kind string, i int, due time.Time) tasks.Request {
		r := tasks.Request{ID: fmt.Sprint(kind, "-", i), Topic: subject, Due: due}
		if kind != "plain" {
			r.Target = &tasks.Target{Settings: own}
		}
		return r
	}
	var reqs []tasks.Request
	for i := range 60 {
		reqs = append(reqs, task("own", i, now().Add(-time.Minute)), task("plain", i, now().Add(-time.Minute)))
	}
	f.ask(reqs...)
	f.wait("all are delivered", func() bool { return f.counts().Delivered == int64(len(reqs)) })
	for _, settings := range refused {
		_, err := f.s.Schedule(f.Context(), tasks.Request{Topic: subject, Target: &tasks.Target{Settings: settings}})
		if !errors.Is(err, tasks.ErrInvalid) {
			f.Errorf("%s is not refused: %v", settings, err)
		}
	}
	got, err := f.s.Schedule(f.Context(), task("waits", 0, now().Add(time.Hour)))
	if err != nil || got.Target == nil || got.Target.Receiver == "" {
		f.Errorf("the target is %+v, %v", got.Target, err)
	}

	set := f.settings
	set.TaskDelivery = false
	if _, err := f.s.SetTopic(f.Context(), subject, set, -1); err != nil {
		f.Fatal(err)
	}
	if _, err := f.s.Fire(f.Context(), "waits-0"); err != nil {
		f.Fatal(err)
	}
	f.ask(task("plain", 1000, now()))
	f.wait("the task without a target is delivered", func() bool { return f.counts().Delivered == int64(len(reqs))+1 })
	if t := f.get("waits-0"); t == nil || t.State != tasks.Ready || t.Target.Undeliverable == "" {
		f.Errorf("the other one is %+v", t)
	}
	set.TaskDelivery = true
	if _, err := f.s.SetTopic(f.Context(), subject, set, -1); err != nil {
		f.Fatal(err)
	}
	f.wait("it is delivered as well", func() bool { return f.counts().Delivered == int64(len(reqs))+2 })
	f.wait("all have arrived", func() bool { return f.receiver.came(true) == 61 && f.receiver.came(false) == 61 })
	if n := f.receiver.misplaced(); n != 0 {
		f.Errorf("%d tasks came where they do not belong", n)
	}
}
