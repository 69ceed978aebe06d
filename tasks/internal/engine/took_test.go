package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Each attempt that the process makes is timed, whatever becomes of it.
func TestDeliveriesAreTimed(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustHandle("x", func(_ context.Context, d *Delivery) error {
			switch d.ID {
			case "fails":
				time.Sleep(300 * time.Millisecond)
				return Kill(errors.New("no use"))
			case "panics":
				time.Sleep(2 * time.Second)
				panic("a fault")
			}
			time.Sleep(30 * time.Millisecond)
			return nil
		})
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 1}})
		for _, id := range []string{"a", "b", "fails", "panics"} {
			r.Must(Request{ID: id, Topic: "x"})
		}
		rig.Pass(time.Minute)
		took := r.Stats().Took.Attempts[Handler]
		if want := 60*time.Millisecond + 300*time.Millisecond + 2*time.Second; took.Sum != want || took.Total() != 4 {
			t.Errorf("%d attempts took %v; want 4, %v", took.Total(), took.Sum, want)
		}
		for bound, want := range map[time.Duration]int64{50 * time.Millisecond: 2, 500 * time.Millisecond: 1, 2 * time.Second: 1} {
			for i, b := range LatencyBounds {
				if b == bound && took.Buckets[i] != want {
					t.Errorf("%d took up to %v; want %d", took.Buckets[i], b, want)
				}
			}
		}
	})
}

// A batch of the ledger takes from its first sending to its answer.
func TestCommitsAreTimed(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "before", Topic: "x", Delay: time.Hour})
		before := r.Stats().Took.Commits
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go r.Must(Request{ID: "a", Topic: "x", Delay: time.Hour})
		rig.Pass(300 * time.Millisecond)
		if now := r.Stats().Took.Commits; now != before {
			t.Errorf("timed before the answer: %+v; want %+v", now, before)
		}
		release()
		synctest.Wait()
		after, commits := r.Stats().Took.Commits, r.Stats().Ledger.Commits
		if took := after.Sum - before.Sum; took != 300*time.Millisecond || after.Total() != commits {
			t.Errorf("the batch took %v, %d of %d are timed; want 300ms", took, after.Total(), commits)
		}
	})
}
