package recovery

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// A Waiting says what is stuck or not served yet, for readiness and for people.
type Waiting struct {
	What   string    // what waits, such as "replay of shard 3"
	Detail string    // what it waits for, with the last error if there is one
	Since  time.Time // when it began to wait
}

// maxWaiting bounds the entries of a WaitList.
const maxWaiting = 64

// A WaitList holds what waits at the moment, by name. It keeps 64 entries and leaves out
// what comes beyond. The zero value is an empty list. Its methods may be called from any
// goroutine, and under any lock.
type WaitList struct {
	mu      sync.Mutex // guards entries
	entries map[string]Waiting
}

// Set enters what waits, or gives it another detail. An entry keeps the time at which it
// was set first, until it is cleared.
func (l *WaitList) Set(what, detail string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, known := l.entries[what]
	if !known {
		if len(l.entries) == maxWaiting {
			return
		}
		w = Waiting{What: what, Since: time.Now()}
	}
	if l.entries == nil {
		l.entries = map[string]Waiting{}
	}
	w.Detail = detail
	l.entries[what] = w
}

// Clear takes an entry out. One that is not in the list is no error.
func (l *WaitList) Clear(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, what)
}

// List returns the entries, what has waited longest first.
func (l *WaitList) List() []Waiting {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Waiting, 0, len(l.entries))
	for _, w := range l.entries {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b Waiting) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.What, b.What))
	})
	return all
}
