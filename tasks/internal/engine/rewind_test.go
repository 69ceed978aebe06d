package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// What lists the dead waits for a restoration as long as its caller, and is asked again then. If
// another one came meanwhile, the list may lack some.
func TestListsWaitForRestorations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cfg task.Checked
		cfg.Log, cfg.AnswerWithin, cfg.Clock = slog.New(slog.DiscardHandler), 2*time.Second, time.Now
		s := New(t.Context(), nil, cfg)
		wait := func(ctx context.Context, wanted error) (begun int64) {
			t.Helper()
			begun, err := s.awaitDead(ctx)
			if !errors.Is(err, wanted) {
				t.Errorf("%v, want %v", err, wanted)
			}
			return begun
		}
		s.Shards.restoring, s.Figures.Rewinds = 1, 1
		// A call to all nodes has less time.
		shorter, cancel := context.WithTimeout(t.Context(), time.Second)
		wait(shorter, task.ErrReplaying)
		cancel()
		wait(t.Context(), task.ErrReplaying)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		wait(gone, context.Canceled)

		time.AfterFunc(time.Second, func() { s.restored(nil) })
		begun := wait(t.Context(), nil)
		if err := s.restoredSince(begun); err != nil {
			t.Errorf("without another restoration: %v", err)
		}
		s.Figures.Rewinds++ // it has begun and ended
		if err := s.restoredSince(begun); !errors.Is(err, task.ErrReplaying) {
			t.Errorf("after another restoration: %v", err)
		}
		s.Shards.restoring = 1
		s.Life.End()
		wait(t.Context(), task.ErrClosed)
	})
}
