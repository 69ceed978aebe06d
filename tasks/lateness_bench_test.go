package tasks_test

import (
	"slices"
	"sync"
	"time"
)

// lateness collects how late things were.
type lateness struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *lateness) add(d time.Duration) {
	l.mu.Lock()
	l.all = append(l.all, d)
	l.mu.Unlock()
}

func (l *lateness) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

func (l *lateness) early() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.all {
		if d < 0 {
			n++
		}
	}
	return n
}

// quantile returns a quantile in milliseconds.
func (l *lateness) quantile(q float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return 0
	}
	slices.Sort(l.all)
	return float64(l.all[int(q*float64(len(l.all)-1))]) / float64(time.Millisecond)
}
