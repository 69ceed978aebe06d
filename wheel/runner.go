package wheel

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/RussellLuo/timingwheel/delayqueue"
	"github.com/hashicorp/go-multierror"
)

// Config says how a Runner runs.
type Config struct {
	// Tick is the resolution: deadlines are rounded up to a multiple of it.
	// Whole milliseconds; 1 ms if zero.
	Tick time.Duration

	// Clock is the wall clock that deadlines are compared with; time.Now if
	// nil. It is read from several goroutines, and under the Runner's mutex: it
	// must not call the Runner.
	Clock func() time.Time

	// Fire receives what is due, one batch at a time; required. No lock is held meanwhile, so it
	// may call any method of the Runner but Close, which would wait for it. It is called from the
	// Runner's goroutine. The slice is valid only during the call. Until Fire returns, that
	// goroutine fires nothing else: it should hand over, not work.
	Fire func(values []uint64)
}

func (c Config) withDefaults() Config {
	if c.Tick == 0 {
		c.Tick = time.Millisecond
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

func (c Config) validate() error {
	var faults *multierror.Error
	if c.Tick < 0 || c.Tick%time.Millisecond != 0 {
		faults = multierror.Append(faults, fmt.Errorf("wheel: tick %v is not a positive number of whole milliseconds", c.Tick))
	}
	if c.Fire == nil {
		faults = multierror.Append(faults, errors.New("wheel: Fire is required"))
	}
	return faults.ErrorOrNil()
}

// Runner fires values when they are due by the wall clock: never before, and
// usually within a millisecond after. Its methods may be called concurrently.
// Make one with [NewRunner].
type Runner struct {
	clock func() time.Time
	fire  func(values []uint64)
	queue *delayqueue.DelayQueue

	exit    chan struct{}  // closed by Close, after closed was set
	running sync.WaitGroup // the poller, the loop and the callers of Overdue
	firing  atomic.Bool    // the loop calls fire; set under mu

	mu      sync.Mutex // guards what follows, and every Offer to queue
	closed  bool
	wheel   *Wheel // nil once closed
	queued  [buckets]int64
	nudged  bool          // nudge is in queue
	turns   uint64        // batches that the loop has taken, empty ones included
	stalled bool          // Overdue has found that the loop does not move, and it has not since
	spare   []*element    // for reuse
	buffers [][]uint64    // for reuse
	pulse   chan struct{} // closed when the loop next fills a batch; nil without callers of Pulse
}

// NewRunner starts a Runner; Close stops it. The error lists everything that is
// wrong with cfg.
func NewRunner(cfg Config) (*Runner, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Runner{
		clock: cfg.Clock,
		fire:  cfg.Fire,
		queue: delayqueue.New(slots), // it cannot grow from nothing
		exit:  make(chan struct{}),
		wheel: New(cfg.Tick.Milliseconds(), cfg.Clock().UnixMilli()),
	}
	for b := range r.queued {
		r.queued[b] = notQueued
	}
	r.running.Go(func() { r.queue.Poll(r.exit, r.nextMillis) })
	r.running.Go(r.loop)
	return r, nil
}

// Add arms value for due, in Unix milliseconds, rounded up to a tick. What is
// past due is fired at once, from the Runner's goroutine. It returns the zero
// Timer once the Runner is closed.
func (r *Runner) Add(due int64, value uint64) Timer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	if r.wheel.opens(due) {
		// It takes an Offer anyway, so this is the time for a look at the
		// clock. A wheel that had nothing to do is behind; from its present
		// the entry would be placed too coarsely, and a past due taken for
		// one that the poller has missed.
		r.readClockLocked()
	}
	t := r.wheel.Add(due, value)
	if r.wheel.opened {
		r.offerLocked()
	}
	return t
}

// Cancel disarms t. It reports false if t was fired, cancelled or never made,
// and once the Runner is closed. A batch on its way to Fire counts as fired; so
// after true, Fire will not see the value.
func (r *Runner) Cancel(t Timer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	_, ok := r.wheel.Cancel(t)
	return ok
}

// Len returns the number of values that wait: 0 once the Runner is closed.
func (r *Runner) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	return r.wheel.Len()
}

// Pulse returns a channel that is closed when the Runner's goroutine next reads its clock to fire
// what is due. If it is not doing so already, it is woken through the queue, as by a timer. The
// channel is closed at once if the Runner is closed. Pulse waits for the Runner's mutex: a caller
// that wants to know whether the Runner moves calls it from a goroutine of its own.
func (r *Runner) Pulse() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pulse == nil {
		r.pulse = make(chan struct{})
	}
	pulse := r.pulse
	if r.closed {
		r.beatLocked()
	} else {
		r.nudgeLocked()
	}
	return pulse
}

// beatLocked tells the callers of Pulse that the loop moves.
func (r *Runner) beatLocked() {
	if r.pulse != nil {
		close(r.pulse)
		r.pulse = nil
	}
}

// loop fires what is due whenever the time of an element has come. Which element does not matter,
// only that the clock is read afterwards.
func (r *Runner) loop() {
	rest := r.newAlarm() // for the soonest of the early ones
	defer rest.close()
	var early []*element
	for {
		select {
		case e := <-r.queue.C:
			early = append(early, e.(*element))
		case <-rest.timer.C:
			rest.at = notQueued
		case <-rest.rings:
			rest.at = notQueued
		case <-r.exit:
			return
		}
		early = slices.DeleteFunc(early, func(e *element) bool {
			isDue := r.left(e) <= 0
			if isDue {
				r.taken(e)
			}
			return isDue
		})
		for _, e := range early {
			rest.setFor(e.at, r.left(e))
		}
	}
}
