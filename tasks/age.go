package tasks

import "time"

const (
	defaultMaxAge = 24 * time.Hour
	// So many attempts a task has at most before its age counts.
	fairAttempts = 20
	// What bounds a task that may end its process, unless the caller says otherwise.
	crashAttempts = 20
)

// bound fills in what ends a task: its age, unless the settings bound the attempts.
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

// over tells that a failed attempt is the last one; age, in ms, is the time since the deadline.
func (r Retry) over(attempt uint32, age int64) bool {
	switch {
	case int(attempt) >= r.MaxAttempts:
		return true
	case r.MaxAge == 0 || age < r.MaxAge.Milliseconds():
		return false
	}
	return int(attempt) >= r.fair()
}

// fair is how many attempts fit into MaxAge if each pause is as long as the average, at most
// fairAttempts: so many has a task whose first attempt came late.
func (r Retry) fair() int {
	n := 1
	for sum := time.Duration(0); n < fairAttempts; n++ {
		if sum += (r.MinBackoff + r.longest(uint32(n))) / 2; sum > r.MaxAge {
			break
		}
	}
	return n
}
