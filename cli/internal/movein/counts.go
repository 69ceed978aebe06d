package movein

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// reasonsKept is how many reasons of refusals are kept.
const reasonsKept = 20

// Counts say what an import has done. They may be read while it runs.
type Counts struct {
	Read      atomic.Int64 // things of the source that were looked at, with repeats
	Imported  atomic.Int64 // new tasks
	Repeated  atomic.Int64 // tasks that were there already
	Moved     atomic.Int64 // tasks of an earlier import that got a new deadline or payload
	Cancelled atomic.Int64 // tasks of an earlier import whose thing was deleted in the source
	Kept      atomic.Int64 // ids that a task has which is not of this import; it was left as it is
	NoTTL     atomic.Int64 // keys without a TTL
	Gone      atomic.Int64 // gone from the source before they were read
	Taken     atomic.Int64 // jobs that a worker of the source took meanwhile
	Deleted   atomic.Int64 // things deleted in the source after their tasks were accepted

	mu      sync.Mutex // guards refused, reasons
	refused int64
	reasons []error
}

// Refuse counts a thing of which no task was made.
func (c *Counts) Refuse(name string, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused++; len(c.reasons) < reasonsKept {
		c.reasons = append(c.reasons, fmt.Errorf("%q: %w", name, why))
	}
}

// Refused returns how many things were refused, and why the first of them were.
func (c *Counts) Refused() (int64, []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused, c.reasons
}

// A Figure is one of the counts.
type Figure struct {
	N    int64
	Name string // in JSON
	text string
}

// Figures returns all counts.
func (c *Counts) Figures() []Figure {
	refused, _ := c.Refused()
	return []Figure{
		{c.Imported.Load(), "imported", "imported %d"},
		{c.Repeated.Load(), "repeated", "there already %d"},
		{c.Moved.Load(), "moved", "moved %d"},
		{c.Cancelled.Load(), "cancelled", "cancelled %d"},
		{c.NoTTL.Load(), "without_ttl", "without TTL %d"},
		{c.Gone.Load(), "gone", "gone meanwhile %d"},
		{c.Taken.Load(), "taken", "taken by a worker meanwhile %d"},
		{c.Kept.Load(), "kept", "left to tasks that are not of this import %d"},
		{c.Deleted.Load(), "deleted", "deleted in the source %d"},
		{refused, "refused", "refused %d"},
	}
}

// String tells the counts that are not zero, and that of new tasks.
func (c *Counts) String() string {
	var parts []string
	for i, f := range c.Figures() {
		if f.N > 0 || i == 0 {
			parts = append(parts, fmt.Sprintf(f.text, f.N))
		}
	}
	return strings.Join(parts, ", ")
}

// Accepted is how many things have tasks now.
func (c *Counts) Accepted() int64 { return c.Imported.Load() + c.Repeated.Load() + c.Moved.Load() }

// ErrSource is wrapped by errors of the source, which cannot be reached or used.
var ErrSource = errors.New("the source cannot be read")

// ErrNothing is wrapped by the error of an import that has found nothing to import, mostly for
// a slip in the name of what to import. The error says what the source has.
var ErrNothing = errors.New("nothing was found to import")

// Nothing makes an ErrNothing. why says what was looked for. has are the names of the things that
// the source has.
func Nothing(why, things string, has []string) error {
	if len(has) == 0 {
		return fmt.Errorf("%w: %s; it has no %s", ErrNothing, why, things)
	}
	more := ""
	if n := len(has) - namesTold; n > 0 {
		has, more = has[:namesTold], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%w: %s; its %s are %s%s", ErrNothing, why, things, strings.Join(has, ", "), more)
}

// namesTold is how many names an ErrNothing has at most.
const namesTold = 10
