package task

import (
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
	// Step is the length of each step, rounded up to a millisecond: 1 to MaxForecastSteps of them
	// make up the window.
	Step time.Duration
}

// Faults returns a fault for each field that is out of range.
func (o *Outlook) Faults() (f Faults) {
	if o.Topic != "" && !ValidName(o.Topic) {
		f.Add("topic", NameProblem)
	}
	switch {
	case o.Window < MinForecast || o.Window > MaxAhead:
		f.Add("window", "must be from 1 s to 3660 days")
	case o.Step <= 0 || o.Step > o.Window || o.Step < o.Window/MaxForecastSteps:
		f.Add("step", fmt.Sprintf("must be at most the window, and at least its %dth part", MaxForecastSteps))
	}
	return f
}

// A Forecast says how many deliveries will start when. It counts the next attempt of each task in
// memory, be it the first, at its place in a Spread, or a retry. It is no snapshot: a task that
// moves meanwhile may be counted twice or not at all.
type Forecast struct {
	From time.Time     // where the first step begins: now
	Step time.Duration // length of each step
	// Counts has for each step the tasks whose time comes in it. The last step ends with the window
	// or after it.
	Counts     []int64
	Ready      int64 // tasks whose time has come, and that wait for their receiver
	Delivering int64 // tasks that are being delivered
	Later      int64 // tasks whose time comes after the last step
	Held       int64 // tasks whose countdown is held
	// ReadyPaused are those of Ready whose topic is paused.
	ReadyPaused int64
	Complete    bool // false while replay runs or a node is missing: what it has is not counted

	Judgement Foresight // whether all of it will be delivered in time
}
