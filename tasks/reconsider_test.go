package tasks_test

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A picky way accepts settings only while it has what it needs.
type picky struct {
	*postal
	lacks atomic.Bool
}

func (p *picky) Deliverer(topic string, settings json.RawMessage) (Deliverer, error) {
	if p.lacks.Load() {
		return nil, task.Invalid("to", "must be known")
	}
	return p.postal.Deliverer(topic, settings)
}

// A way that has got what it lacked delivers what waits, and only then.
func TestReconsider(t *testing.T) {
	p := &picky{postal: &postal{}}
	bubble(t, Config{Ways: []Way{p}}, func(t *testing.T, r *rig) {
		r.topic("x", to("rome"))
		r.topic("other", TopicSettings{})
		p.lacks.Store(true)
		r.restart()
		r.must(Request{ID: "a", Topic: "x"})
		for range 2 {
			r.Reconsider()
			pass(2 * time.Second)
			if x, err := r.Topic("x"); err != nil || x.Undeliverable == "" || p.text() != "" {
				t.Fatalf("while it lacks something: %+v, %v, delivered: %s", x, err, p.text())
			}
		}
		p.lacks.Store(false)
		r.Reconsider()
		pass(2 * time.Second)
		if x, err := r.Topic("x"); err != nil || x.Undeliverable != "" || p.text() != "a to rome" || x.Settings.Kind != "postal" {
			t.Errorf("when it has it: %+v, %v, delivered: %s", x, err, p.text())
		}
		if x, err := r.Topic("other"); err != nil || x.Settings.Kind == "postal" {
			t.Errorf("another topic: %+v, %v", x, err)
		}
		// Changes are still told from those that another caller has made.
		x, err := r.Topic("x")
		want(t, "Topic", err, nil)
		_, err = r.SetTopic(t.Context(), "x", to("oslo"), x.Revision)
		want(t, "SetTopic", err, nil)
		r.checkConsistency()
	})
}

// A window that was taken from a topic while its way could not be had is gone when the way
// is there again.
func TestReconsiderWithoutTheWindow(t *testing.T) {
	p := &picky{postal: &postal{}}
	bubble(t, Config{Ways: []Way{p}}, func(t *testing.T, r *rig) {
		set := to("rome")
		set.Spread = 24 * time.Hour
		r.topic("x", set)
		for i := range 20 {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		pass(time.Second)
		p.lacks.Store(true)
		set.Spread = 0
		value, err := json.Marshal(set.Stored())
		want(t, "Marshal", err, nil)
		// By another node.
		_, err = r.faulty.PutSetting(t.Context(), task.SettingPrefix+"x", 1, value)
		want(t, "PutSetting", err, nil)
		want(t, "refresh", r.Engine().Refresh(r.faulty), nil)
		pass(time.Second)
		p.lacks.Store(false)
		r.Reconsider()
		pass(3 * time.Second)
		if n := r.counts("x"); n.Delivered != 20 {
			t.Errorf("%+v", n)
		}
		r.checkConsistency()
	})
}
