package record

import "time"

// Millis is t in Unix milliseconds, rounded up: a deadline is never moved forward
// in time.
func Millis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	return ms
}

// RoundUpMillis is d in milliseconds, rounded up.
func RoundUpMillis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// FromMillis is the time of Unix milliseconds.
func FromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// FromNanos is the time of Unix nanoseconds.
func FromNanos(ns int64) time.Time { return time.Unix(0, ns).UTC() }
