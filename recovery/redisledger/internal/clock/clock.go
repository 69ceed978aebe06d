// Package clock measures time on machines that may be suspended: the monotonic clock stops
// meanwhile, and other nodes go on. It owns nothing, calls nothing and cannot fail.
package clock

import "time"

// Since is the time since then, by the clock on which more has passed.
func Since(then time.Time) time.Duration { return Between(then, time.Now()) }

// Between is the time from one moment to another, by the clock on which more has passed.
func Between(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}
