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
		for _, topic := range []string{"order.unpiad", "order.unpaid", "pulled", "paused", "later"} {
			r.Must(tasks.Request{ID: topic, Topic: topic})
		}
		r.Must(tasks.Request{ID: "tomorrow", Topic: "tomorrow", Delay: 24 * time.Hour})
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "paused", true), nil)
		if _, err := r.Reserve(t.Context(), "pulled", 1, 0, time.Hour); err != nil {
			t.Fatal(err)
		}
		told := func() []string {
			var lines []string
			for line := range strings.Lines(r.Log.All()) {
				if strings.Contains(line, "no receiver has asked") {
					_, rest, _ := strings.Cut(line, "topic=")
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
		if lines := strings.Join(told(), "; "); lines != "later; order.unpiad did_you_mean=order.unpaid" &&
			lines != "order.unpiad did_you_mean=order.unpaid; later" {
			t.Errorf("told %q", lines)
		}
	})
}
