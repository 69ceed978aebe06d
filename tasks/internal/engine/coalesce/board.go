package coalesce

import (
	"cmp"
	"container/list"
	"time"
)

const (
	// MostRemembered bounds how many candidates that were let go are remembered, about 200 bytes
	// each.
	MostRemembered = 1 << 17
	// RememberedFor is how long, or as long as they wait.
	RememberedFor = time.Hour

	unsettledBeyond = 10 * time.Second
	waitingBeyond   = 10 * time.Minute
	leaseAtMost     = time.Hour
	beforeLate      = 5 * time.Second
)

// A Group is one of a topic.
type Group struct{ Topic, Name string }

// A Candidate is a misfired task of a group.
type Candidate struct {
	Group
	Due, Created int64 // Unix ms
	ID           string
}

// Later orders the candidates of a group: no two are equal.
func (c *Candidate) Later(than *Candidate) bool {
	return cmp.Or(cmp.Compare(c.Due, than.Due), cmp.Compare(c.Created, than.Created), cmp.Compare(c.ID, than.ID)) > 0
}

// A Standing is what is known of the candidates of a group that are later than a given one. Of two,
// the greater one counts.
type Standing int

// The standings. They travel between nodes: do not change their values.
const (
	None      Standing = iota // there is none
	Unsettled                 // there may be some
	Waiting                   // one is held back, ready or being delivered
	Delivered                 // one was acknowledged
)

// Bounds say for how long a choice may be held back.
type Bounds struct {
	FailoverAfter time.Duration // after that the shards of a dead node are adopted
	Lease         time.Duration // of the topic: as long a delivery may take
	Late          time.Duration // when its max_lateness passes, on the clock of leases; 0: never
}

// A Choice is the latest candidate of this node in a group, and is held back.
type Choice struct {
	Candidate
	bounds Bounds
	since  time.Duration // when the wait began, on the clock that leases run on
	queued *list.Element
}

// NewChoice returns a choice whose wait begins now.
func NewChoice(c *Candidate, now time.Duration, b Bounds) *Choice {
	return &Choice{Candidate: *c, bounds: b, since: now}
}

// Restart begins the wait anew.
func (c *Choice) Restart(now time.Duration) { c.since = now }

// Waits reports whether a choice is still held back at that time and with that knowledge.
func (c *Choice) Waits(known Standing, now time.Duration) bool {
	if c.bounds.Late != 0 && now >= c.bounds.Late-beforeLate {
		return false
	}
	switch known {
	case Unsettled:
		return now-c.since < 2*c.bounds.FailoverAfter+unsettledBeyond
	case Waiting:
		return now-c.since < min(c.bounds.Lease, leaseAtMost)+waitingBeyond
	}
	return false
}

// remembered is a candidate that was let go.
type remembered struct {
	Candidate
	delivered bool
	at        time.Duration
}

// A Board has the choices of one node, and what it remembers. The zero value is empty.
type Board struct {
	open   map[Group]*Choice
	queue  list.List // of *Choice: those that are open, and not with a caller of Next
	let    map[Group]*list.Element
	letOut list.List // of *remembered, the oldest first
}

// Open returns how many choices are held back.
func (b *Board) Open() int { return len(b.open) }

// OpenIn returns the choice that is held back in a group; nil if there is none.
func (b *Board) OpenIn(g Group) *Choice { return b.open[g] }

// Hold enters a choice. It replaces the one of its group.
func (b *Board) Hold(c *Choice) {
	if b.open == nil {
		b.open = make(map[Group]*Choice)
	}
	if before := b.open[c.Group]; before != nil {
		b.End(before)
	}
	b.open[c.Group] = c
	b.Requeue(c)
}

// Next takes the choice that has been in the queue for longest; nil if there is none. The caller
// decides about it, and then ends it or queues it again.
func (b *Board) Next() *Choice {
	first := b.queue.Front()
	if first == nil {
		return nil
	}
	c := b.queue.Remove(first).(*Choice)
	c.queued = nil
	return c
}

// Requeue queues a choice again.
func (b *Board) Requeue(c *Choice) { c.queued = b.queue.PushBack(c) }

// IsOpen reports whether a choice was neither ended nor replaced.
func (b *Board) IsOpen(c *Choice) bool { return b.open[c.Group] == c }

// End forgets a choice.
func (b *Board) End(c *Choice) {
	if b.open[c.Group] == c {
		delete(b.open, c.Group)
	}
	if c.queued != nil {
		b.queue.Remove(c.queued)
		c.queued = nil
	}
}

// Remember remembers a candidate that is let go now, instead of another one of its group: that one
// was earlier, or does not come any more. A later one that was acknowledged stays.
func (b *Board) Remember(c *Candidate, now time.Duration) {
	if before := b.let[c.Group]; before != nil {
		if r := before.Value.(*remembered); r.delivered && r.Later(c) {
			return
		}
		b.forget(before)
	}
	if b.let == nil {
		b.let = make(map[Group]*list.Element)
	}
	b.let[c.Group] = b.letOut.PushBack(&remembered{Candidate: *c, at: now})
	if len(b.let) > MostRemembered {
		b.forget(b.letOut.Front())
	}
}

// Acknowledged is called when a task was delivered. It costs a look into an empty map unless
// candidates are remembered.
func (b *Board) Acknowledged(topic string, group, id []byte) {
	if e := b.let[Group{topic, string(group)}]; e != nil {
		if r := e.Value.(*remembered); r.ID == string(id) {
			r.delivered = true
		}
	}
}

// Remembered returns the candidate that was let go in a group, and whether it was acknowledged; nil
// if none is remembered.
func (b *Board) Remembered(g Group) (c *Candidate, delivered bool) {
	e := b.let[g]
	if e == nil {
		return nil, false
	}
	r := e.Value.(*remembered)
	return &r.Candidate, r.delivered
}

// Forget looks at most at so many candidates that were let go too long ago, and forgets all but
// those that still come: they are remembered as long again. It reports whether there may be more.
func (b *Board) Forget(now time.Duration, most int, comes func(c *Candidate) bool) (more bool) {
	for range most {
		e := b.letOut.Front()
		if e == nil {
			return false
		}
		r := e.Value.(*remembered)
		switch {
		case now-r.at < RememberedFor:
			return false
		case comes(&r.Candidate):
			r.at = now
			b.letOut.MoveToBack(e)
		default:
			b.forget(e)
		}
	}
	return true
}

func (b *Board) forget(e *list.Element) {
	delete(b.let, b.letOut.Remove(e).(*remembered).Group)
}
