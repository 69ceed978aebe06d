package engine_test

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// A picky way accepts settings only while it has what it needs.
type picky struct {
	*rig.Postal
	lacks atomic.Bool
}

func (p *picky) Deliverer(topic string, settings json.RawMessage) (Deliverer, error) {
	if p.lacks.Load() {
		return nil, task.Invalid("to", "must be known")
	}
	return p.Postal.Deliverer(topic, settings)
}

// A way that has got what it lacked delivers what waits, and only then.
func TestReconsider(t *testing.T) {
	p := &picky{Postal: &rig.Postal{}}
	rig.Bubble(t, Config{Ways: []Way{p}}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", to("rome"))
		r.MustSetTopic("other", TopicSettings{})
		p.lacks.Store(true)
		r.Restart()
		r.Must(Request{ID: "a", Topic: "x"})
		for range 2 {
			r.Admin().Reconsider()
			rig.Pass(2 * time.Second)
			if x, err := r.Topic("x"); err != nil || x.Undeliverable == "" || p.Text() != "" {
				t.Fatalf("while it lacks something: %+v, %v, delivered: %s", x, err, p.Text())
			}
		}
		p.lacks.Store(false)
		r.Admin().Reconsider()
		rig.Pass(2 * time.Second)
		if x, err := r.Topic("x"); err != nil || x.Undeliverable != "" || p.Text() != "a to rome" || x.Settings.Kind != "postal" {
			t.Errorf("when it has it: %+v, %v, delivered: %s", x, err, p.Text())
		}
		if x, err := r.Topic("other"); err != nil || x.Settings.Kind == "postal" {
			t.Errorf("another topic: %+v, %v", x, err)
		}
		// Changes are still told from those that another caller has made.
		x, err := r.Topic("x")
		rig.Want(t, "Topic", err, nil)
		_, err = r.SetTopic(t.Context(), "x", to("oslo"), x.Revision)
		rig.Want(t, "SetTopic", err, nil)
		r.CheckConsistency()
	})
}

// A window that was taken from a topic while its way could not be had is gone when the way
// is there again.
func TestReconsiderWithoutTheWindow(t *testing.T) {
	p := &picky{Postal: &rig.Postal{}}
	rig.Bubble(t, Config{Ways: []Way{p}}, func(t *testing.T, r *rig.Rig) {
		set := to("rome")
		set.Spread = 24 * time.Hour
		r.MustSetTopic("x", set)
		for i := range 20 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		rig.Pass(time.Second)
		p.lacks.Store(true)
		set.Spread = 0
		value, err := json.Marshal(set.Stored())
		rig.Want(t, "Marshal", err, nil)
		// By another node.
		_, err = r.Faulty.PutSetting(t.Context(), task.SettingPrefix+"x", 1, value)
		rig.Want(t, "PutSetting", err, nil)
		rig.Want(t, "refresh", r.Engine().Refresh(r.Faulty), nil)
		rig.Pass(time.Second)
		p.lacks.Store(false)
		r.Admin().Reconsider()
		rig.Pass(3 * time.Second)
		if n := r.Counts("x"); n.Delivered != 20 {
			t.Errorf("%+v", n)
		}
		r.CheckConsistency()
	})
}
