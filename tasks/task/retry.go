package task

import (
	"math/rand/v2"
	"time"
)

// Retry is the schedule of attempts after a failed one: exponential backoff with full jitter. The
// n-th pause is drawn evenly from MinBackoff up to MinBackoff * 2^n, and is never longer than
// MaxBackoff.
type Retry struct {
	// MaxAttempts is how many attempts may fail before the task is dead; 1 to MaxRetryAttempts. The
	// default is MaxRetryAttempts, or 20 with CountCrashes.
	MaxAttempts int
	MinBackoff  time.Duration // 1 ms to 24 h, default 1 s
	MaxBackoff  time.Duration // MinBackoff to 30 days, default 10 min

	// MaxAge ends a task with the first attempt that fails so long after its deadline: 1 s to 3660
	// days. Default 24 h where MaxAttempts has its default, or no bound. A task whose first attempt
	// came late, because no process ran or the topic was paused, still has as many attempts as fit
	// into MaxAge on average, at most 20. A new deadline begins it anew.
	MaxAge time.Duration `json:",omitempty"`
}

const (
	// MaxRetryAttempts bounds Retry.MaxAttempts, and is its default: with that, MaxAge ends a task
	// long before.
	MaxRetryAttempts = 1_000_000
	defaultMaxAge    = 24 * time.Hour
	// FairAttempts is how many attempts a task has at most before its age counts.
	FairAttempts = 20
	// crashAttempts bounds the attempts of a task that may end its process, unless the caller says
	// otherwise.
	crashAttempts = 20
)

// bound fills in the bound that ends a task: its age, unless the settings bound the attempts.
func (r *Retry) bound(countsCrashes bool) {
	switch {
	case r.MaxAttempts != 0 && r.MaxAttempts != MaxRetryAttempts:
	case countsCrashes && r.MaxAttempts == 0:
		r.MaxAttempts = crashAttempts
	default:
		r.MaxAttempts = MaxRetryAttempts
		orDefault(&r.MaxAge, defaultMaxAge)
	}
}

// Over reports whether a failed attempt is the last one; age, in ms, is the time since the
// deadline.
func (r Retry) Over(attempt uint32, age int64) bool {
	switch {
	case int(attempt) >= r.MaxAttempts:
		return true
	case r.MaxAge == 0 || age < r.MaxAge.Milliseconds():
		return false
	}
	return int(attempt) >= r.Fair()
}

// Fair returns how many attempts fit into MaxAge if each pause is as long as the average, at most
// FairAttempts: a task whose first attempt came late has so many.
func (r Retry) Fair() int {
	n := 1
	for sum := time.Duration(0); n < FairAttempts; n++ {
		if sum += (r.MinBackoff + r.longest(uint32(n))) / 2; sum > r.MaxAge {
			break
		}
	}
	return n
}

// Pause returns the pause after the n-th attempt, drawn evenly from MinBackoff to MinBackoff * 2^n,
// at most MaxBackoff: exponential backoff with full jitter (Marc Brooker, "Exponential Backoff And
// Jitter", AWS Architecture Blog, 2015), with a floor.
//
// Example: MinBackoff 1 s, MaxBackoff 10 min. After the first attempt 1 to 2 s, after the second 1
// to 4 s, after the tenth and later 1 s to 10 min.
func (r Retry) Pause(attempt uint32) time.Duration {
	return r.MinBackoff + rand.N(r.longest(attempt)-r.MinBackoff+1)
}

// longest returns the upper bound of the pause after the n-th attempt.
func (r Retry) longest(attempt uint32) time.Duration {
	high := r.MaxBackoff
	if shift := min(attempt, 40); r.MinBackoff < r.MaxBackoff>>shift {
		high = r.MinBackoff << shift
	}
	return max(high, r.MinBackoff)
}
