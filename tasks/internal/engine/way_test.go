package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

func to(where string) tasks.TopicSettings {
	return tasks.TopicSettings{Kind: "postal", Delivery: json.RawMessage(`{"to":"` + where + `"}`)}
}

// A topic's way of delivery is chosen and changed while its tasks come in. What is being
// delivered ends as it began; what waits goes the new way.
func TestWayIsChosenAtRunTime(t *testing.T) {
	p := &rig.Postal{}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{p}}, func(t *testing.T, r *rig.Rig) {
		got := make(chan error, 1)
		go func() {
			_, err := r.Reserve(t.Context(), "x", 1, time.Minute, 0)
			got <- err
		}()
		rig.Pass(time.Second)
		set, next := to("rome"), to("oslo")
		set.Concurrency, next.Concurrency = 1, 1
		r.MustSetTopic("x", set)
		rig.Want(t, "Reserve of a topic that is no longer pulled", <-got, tasks.ErrHandled)
		rig.Want(t, "Handle", r.Handle("x", func(context.Context, *tasks.Delivery) error { return nil }), tasks.ErrHandled)

		r.Must(tasks.Request{ID: "a", Topic: "x"})
		r.Must(tasks.Request{ID: "b", Topic: "x"})
		rig.Pass(500 * time.Millisecond)
		r.MustSetTopic("x", next)
		rig.Pass(5 * time.Second)
		if text := p.Text(); text != "a to rome, b to oslo" {
			t.Errorf("delivered: %s", text)
		}
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", true), nil)
		x, err := r.Topic("x")
		rig.Want(t, "Topic", err, nil)
		if x.Settings.Kind != "postal" || !strings.Contains(string(x.Settings.Delivery), "oslo") || !x.Settings.Paused {
			t.Errorf("paused it is %+v", x.Settings)
		}
		r.Must(tasks.Request{ID: "c", Topic: "x"})
		r.Restart()
		rig.Pass(5 * time.Second)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", false), nil)
		rig.Pass(5 * time.Second)
		if text := p.Text(); text != "a to rome, b to oslo, c to oslo" {
			t.Errorf("after a restart: %s", text)
		}
		r.Must(tasks.Request{ID: "d", Topic: "x"})
		rig.Pass(500 * time.Millisecond)
		r.Must(tasks.Request{ID: "e", Topic: "x"})
		r.MustSetTopic("x", tasks.TopicSettings{})
		rig.Pass(5 * time.Second)
		r.Ack(r.Pull("x", "e")[0])
		r.CheckConsistency()
	})
}

// Settings that a process cannot follow keep the tasks waiting, and say so; better
// ones release them.
func TestWayThatIsMissing(t *testing.T) {
	p := &rig.Postal{}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{p}}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", to("rome"))
		r.Must(tasks.Request{ID: "a", Topic: "x"})
		rig.Pass(2 * time.Second)
		r.Must(tasks.Request{ID: "b", Topic: "x", Delay: time.Minute})
		r.Cfg.Ways = nil
		r.Restart()
		x, err := r.Topic("x")
		rig.Want(t, "Topic", err, nil)
		if !strings.Contains(x.Undeliverable, "delivery.kind") || x.Settings.Kind != "postal" {
			t.Errorf("without the way: %+v", x)
		}
		_, err = r.Reserve(t.Context(), "x", 1, 0, 0)
		rig.Want(t, "Reserve", err, tasks.ErrHandled)
		rig.Pass(2 * time.Minute)
		if task := r.MustGet("b"); task.State != tasks.Ready {
			t.Errorf("it is %v", task.State)
		}
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", false), nil)
		r.MustSetTopic("x", tasks.TopicSettings{})
		r.Ack(r.Pull("x", "b")[0])
		r.CheckConsistency()
	})
}

func TestWaysAreChecked(t *testing.T) {
	p := &rig.Postal{}
	for name, cfg := range map[string]tasks.Config{
		"two of a kind":  {Ways: []tasks.Way{p, p}},
		"brought badly":  {Ways: []tasks.Way{p}, Topics: map[string]tasks.TopicSettings{"x": {Kind: "postal"}}},
		"brought unmade": {Topics: map[string]tasks.TopicSettings{"x": to("rome")}},
	} {
		if err := cfg.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	rig.Bubble(t, tasks.Config{Ways: []tasks.Way{p}}, func(t *testing.T, r *rig.Rig) {
		for field, set := range map[string]tasks.TopicSettings{
			"delivery.to":   {Kind: "postal", Delivery: json.RawMessage(`{}`)},
			"delivery.kind": {Kind: "pigeon"},
			"delivery":      {Delivery: json.RawMessage(`{"to":"rome"}`)},
		} {
			_, err := r.SetTopic(t.Context(), "x", set, -1)
			var invalid *tasks.InvalidError
			if !errors.As(err, &invalid) || len(invalid.Fields) != 1 || invalid.Fields[0].Field != field {
				t.Errorf("%+v: %v, want a fault of %s", set, err, field)
			}
		}
		if _, err := r.Topic("x"); !errors.Is(err, tasks.ErrNoTopic) {
			t.Errorf("a refused change has made the topic: %v", err)
		}
	})
}
