package engine_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A topic whose name is misspelt is told of once, with the one that was meant.
func TestUnaskedTopic(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		rig.Want(t, "Handle", r.Handle("order.unpaid", func(context.Context, *tasks.Delivery) error { return nil }), nil)
		for _, topic := range []string{"order.unpiad", "order.unpaid", "polled", "paused"} {
			r.Must(tasks.Request{ID: topic, Topic: topic})
		}
		r.Must(tasks.Request{ID: "tomorrow", Topic: "tomorrow", Delay: 24 * time.Hour})
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "paused", true), nil)
		ds, err := r.Reserve(t.Context(), "polled", 1, 0, time.Hour)
		rig.Want(t, "Reserve", err, nil)
		r.Admin().Return(ds) // it is ready again
		told := func() (lines []string) {
			for line := range strings.Lines(r.Log.All()) {
				if _, rest, is := strings.Cut(line, "no receiver has asked"); is {
					_, rest, _ = strings.Cut(rest, "topic=")
					lines = append(lines, strings.TrimSpace(rest))
				}
			}
			return lines
		}
		rig.Pass(9 * time.Second)
		if lines := told(); lines != nil {
			t.Errorf("too early: %q", lines)
		}
		rig.Pass(time.Hour)
		if lines := told(); len(lines) != 1 || lines[0] != "order.unpiad topics=1 did_you_mean=order.unpaid" {
			t.Errorf("told %q", lines)
		}
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "paused", false), nil)
		rig.Pass(9 * time.Second)
		if lines := told(); len(lines) != 1 {
			t.Errorf("too early after the pause: %q", lines)
		}
		rig.Pass(time.Minute)
		if lines := told(); len(lines) != 2 || lines[1] != "paused topics=1" {
			t.Errorf("told %q", lines)
		}
	})
}
