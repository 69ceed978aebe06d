package engine

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// An Offloading that ends leaves the deliveries that may be of another one, and the last one leaves
// none.
func TestOffloadingEnds(t *testing.T) {
	var cfg task.Checked
	cfg.Log, cfg.AnswerWithin, cfg.Clock = slog.New(slog.DiscardHandler), time.Minute, time.Now
	s := New(context.Background(), nil, cfg)
	topic := &Topic{}
	topic.Deliverer = task.HandlerFunc(nil)
	way := topic.Way()()
	one, other := &Offloading{s, topic, way}, &Offloading{s, topic, way}
	topic.Offloads = 2
	topic.keepOffloaded([]*Delivery{{}})
	if left := other.End(); len(left) != 0 || topic.Offloaded != 1 {
		t.Errorf("%d deliveries are returned, %d are left", len(left), topic.Offloaded)
	}
	if left := one.End(); len(left) != 1 || topic.Offloaded != 0 || topic.Offloads != 0 {
		t.Errorf("%d deliveries are returned, %d are left, %d offload", len(left), topic.Offloaded, topic.Offloads)
	}
}
