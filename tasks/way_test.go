package tasks_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A postal is a way of delivery whose deliverers note by which settings they delivered.
type postal struct {
	mu   sync.Mutex
	sent []string
}

func (p *postal) Kind() tasks.Kind { return "postal" }

func (p *postal) Deliverer(_ string, settings json.RawMessage) (tasks.Deliverer, error) {
	var set struct{ To string }
	if err := json.Unmarshal(settings, &set); err != nil || set.To == "" {
		return nil, task.Invalid("to", "must be given")
	}
	return tasks.HandlerFunc(func(_ context.Context, d *tasks.Delivery) error {
		time.Sleep(time.Second)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sent = append(p.sent, d.ID+" to "+set.To)
		return nil
	}), nil
}

func (p *postal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.sent, ", ")
}

func to(where string) tasks.TopicSettings {
	return tasks.TopicSettings{Kind: "postal", Delivery: json.RawMessage(`{"to":"` + where + `"}`)}
}

// A topic's way of delivery is chosen and changed while its tasks come in. What is being
// delivered ends as it began; what waits goes the new way.
func TestWayIsChosenAtRunTime(t *testing.T) {
	p := &postal{}
	bubble(t, tasks.Config{Ways: []tasks.Way{p}}, func(t *testing.T, r *rig) {
		got := make(chan error, 1)
		go func() {
			_, err := r.Reserve(t.Context(), "x", 1, time.Minute, 0)
			got <- err
		}()
		pass(time.Second)
		set, next := to("rome"), to("oslo")
		set.Concurrency, next.Concurrency = 1, 1
		r.topic("x", set)
		want(t, "Reserve of a topic that is no longer pulled", <-got, tasks.ErrHandled)
		want(t, "Handle", r.Handle("x", func(context.Context, *tasks.Delivery) error { return nil }), tasks.ErrHandled)

		r.must(tasks.Request{ID: "a", Topic: "x"})
		r.must(tasks.Request{ID: "b", Topic: "x"})
		pass(500 * time.Millisecond)
		r.topic("x", next)
		pass(5 * time.Second)
		if text := p.text(); text != "a to rome, b to oslo" {
			t.Errorf("delivered: %s", text)
		}
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", true), nil)
		x, err := r.Topic("x")
		want(t, "Topic", err, nil)
		if x.Settings.Kind != "postal" || !strings.Contains(string(x.Settings.Delivery), "oslo") || !x.Settings.Paused {
			t.Errorf("paused it is %+v", x.Settings)
		}
		r.must(tasks.Request{ID: "c", Topic: "x"})
		r.restart()
		pass(5 * time.Second)
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", false), nil)
		pass(5 * time.Second)
		if text := p.text(); text != "a to rome, b to oslo, c to oslo" {
			t.Errorf("after a restart: %s", text)
		}
		r.must(tasks.Request{ID: "d", Topic: "x"})
		pass(500 * time.Millisecond)
		r.must(tasks.Request{ID: "e", Topic: "x"})
		r.topic("x", tasks.TopicSettings{})
		pass(5 * time.Second)
		r.ack(r.pull("x", "e")[0])
		r.checkConsistency()
	})
}

// Settings that a process cannot follow keep the tasks waiting, and say so; better
// ones release them.
func TestWayThatIsMissing(t *testing.T) {
	p := &postal{}
	bubble(t, tasks.Config{Ways: []tasks.Way{p}}, func(t *testing.T, r *rig) {
		r.topic("x", to("rome"))
		r.must(tasks.Request{ID: "a", Topic: "x"})
		pass(2 * time.Second)
		r.must(tasks.Request{ID: "b", Topic: "x", Delay: time.Minute})
		r.cfg.Ways = nil
		r.restart()
		x, err := r.Topic("x")
		want(t, "Topic", err, nil)
		if !strings.Contains(x.Undeliverable, "delivery.kind") || x.Settings.Kind != "postal" {
			t.Errorf("without the way: %+v", x)
		}
		_, err = r.Reserve(t.Context(), "x", 1, 0, 0)
		want(t, "Reserve", err, tasks.ErrHandled)
		pass(2 * time.Minute)
		if task := r.get("b"); task.State != tasks.Ready {
			t.Errorf("it is %v", task.State)
		}
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", false), nil)
		r.topic("x", tasks.TopicSettings{})
		r.ack(r.pull("x", "b")[0])
		r.checkConsistency()
	})
}

func TestWaysAreChecked(t *testing.T) {
	p := &postal{}
	for name, cfg := range map[string]tasks.Config{
		"two of a kind":  {Ways: []tasks.Way{p, p}},
		"brought badly":  {Ways: []tasks.Way{p}, Topics: map[string]tasks.TopicSettings{"x": {Kind: "postal"}}},
		"brought unmade": {Topics: map[string]tasks.TopicSettings{"x": to("rome")}},
	} {
		if err := cfg.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	bubble(t, tasks.Config{Ways: []tasks.Way{p}}, func(t *testing.T, r *rig) {
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
