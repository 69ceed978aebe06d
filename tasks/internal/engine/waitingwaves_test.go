package engine_test

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// While a wave is counted, only so many others wait for their turn.
func TestWavesThatWait(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		ended := rig.Engine(r.Scheduler).TopicTable.History.Ended
		now := time.Now().Truncate(time.Minute)
		count := func() error {
			_, err := r.Admin().Waves(t.Context(), tasks.WaveQuery{From: now, To: now.Add(time.Hour)})
			return err
		}
		ended.Looks <- struct{}{}
		answers := make(chan error)
		for range cap(ended.Waits) {
			go func() { answers <- count() }()
		}
		rig.Pass(0)
		rig.Want(t, "one too many", count(), tasks.ErrOverloaded)
		<-ended.Looks
		for range cap(ended.Waits) {
			rig.Want(t, "one that has waited", <-answers, nil)
		}
		rig.Want(t, "afterwards", count(), nil)
	})
}
