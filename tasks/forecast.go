package tasks

import (
	"context"
	"fmt"
	"time"
)

// Limits of a forecast.
const (
	MinForecast      = time.Second // of its window; at most MaxAhead
	MaxForecastSteps = 1000
)

// An Outlook says what a forecast is about.
type Outlook struct {
	Topic  string        // empty: all topics
	Window time.Duration // how far to look ahead, MinForecast to MaxAhead
	Step   time.Duration // 1 to MaxForecastSteps of them make up the window; rounded up to a millisecond
}

// A Forecast tells how many deliveries will start when. It counts the next attempt
// of each task in memory, be it the first or a retry. It is no snapshot: a task that
// moves meanwhile may be counted twice or not at all.
type Forecast struct {
	From       time.Time     // where the first step begins: now
	Step       time.Duration // length of each step
	Counts     []int64       // by step: tasks whose time comes in it; the last one ends with the window or after
	Ready      int64         // tasks whose time has come, and that wait for their receiver
	Delivering int64         // tasks that are being delivered
	Later      int64         // tasks whose time comes after the last step
	Complete   bool          // false while replay runs: what was not read yet is missing
}

// Forecast counts tasks by the time of their next attempt. Like List it visits every
// task in memory once, a few thousand under one lock.
//
// Errors: ErrInvalid, ErrNotGranted, ErrClosed, or why ctx has ended.
func (s *Scheduler) Forecast(ctx context.Context, o Outlook) (Forecast, error) {
	if err := o.faults().err(); err != nil {
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
	topics := pick{o.Topic, patternsOf(ctx)}
	for from := 0; ; from += chunkSlots {
		if err := ctx.Err(); err != nil {
			return Forecast{}, err
		}
		if more, err := s.countChunk(&f, from, &topics, now, step); err != nil || !more {
			return f, err
		}
	}
}

// countChunk adds one chunk of slots to a forecast, and reports whether there was one.
func (s *Scheduler) countChunk(f *Forecast, from int, topics *pick, now, step int64) (bool, error) {
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return false, ErrClosed
	}
	if from >= len(s.book.chunks)*chunkSlots {
		return false, nil
	}
	only, ok := s.pickedLocked(topics)
	if !ok {
		return false, nil
	}
	chunk := s.book.chunks[from/chunkSlots]
	for i := range chunk {
		sl := &chunk[i]
		shown := sl.state.shown()
		if shown == 0 || !only.has(sl.topic) {
			continue
		}
		switch k := (sl.next - now) / step; {
		case shown == Delivering:
			f.Delivering++
		case sl.next <= now:
			f.Ready++
		case k < int64(len(f.Counts)):
			f.Counts[k]++
		default:
			f.Later++
		}
	}
	return true, nil
}

func (o *Outlook) faults() (f faults) {
	if o.Topic != "" && !validName(o.Topic) {
		f.add("topic", nameProblem)
	}
	switch {
	case o.Window < MinForecast || o.Window > MaxAhead:
		f.add("window", "must be from 1 s to 3660 days")
	case o.Step <= 0 || o.Step > o.Window || o.Step < o.Window/MaxForecastSteps:
		f.add("step", fmt.Sprintf("must be at most the window, and at least its %dth part", MaxForecastSteps))
	}
	return f
}
