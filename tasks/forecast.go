package tasks

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Forecast counts tasks by the time of their next attempt. Like List it visits every
// task in memory once, a few thousand under one lock.
//
// Errors: ErrInvalid, ErrNotGranted, ErrClosed, or why ctx has ended.
func (s *engine) Forecast(ctx context.Context, o Outlook) (Forecast, error) {
	if err := o.Faults().Err(); err != nil {
		return Forecast{}, err
	}
	step := roundUpMillis(o.Step)
	now := s.now()
	f := Forecast{
		From: time.UnixMilli(now), Step: time.Duration(step) * time.Millisecond,
		Counts:   make([]int64, (roundUpMillis(o.Window)+step-1)/step),
		Complete: s.isReplayed(),
	}
	if o.Topic != "" {
		if err := granted(ctx, o.Topic); err != nil {
			return Forecast{}, err
		}
	}
	topics := pick{o.Topic, task.PatternsOf(ctx)}
	for from := uint32(0); ; from += store.ChunkSlots {
		if err := ctx.Err(); err != nil {
			return Forecast{}, err
		}
		if more, err := s.countChunk(&f, from, &topics, now, step); err != nil || !more {
			return f, err
		}
	}
}

// countChunk adds one chunk of slots to a forecast, and reports whether there was one.
func (s *engine) countChunk(f *Forecast, from uint32, topics *pick, now, step int64) (bool, error) {
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return false, ErrClosed
	}
	if from >= s.store.Slots() {
		return false, nil
	}
	only, ok := s.pickedLocked(topics)
	if !ok {
		return false, nil
	}
	chunk := s.store.Rest(from)
	for i := range chunk {
		sl := &chunk[i]
		shown := sl.State.Shown()
		if shown == 0 || !only.has(sl.Topic) {
			continue
		}
		switch k := (sl.Next - now) / step; {
		case shown == Delivering:
			f.Delivering++
		case sl.Next <= now:
			f.Ready++
		case k < int64(len(f.Counts)):
			f.Counts[k]++
		default:
			f.Later++
		}
	}
	return true, nil
}
