package respapi

import (
	"slices"
	"time"
)

const (
	// doubtful is for how long, and for how many bytes, a client has perhaps not read what its
	// machine has. More bytes than that do not wait there.
	doubtful      = time.Minute
	doubtfulBytes = 16 << 20
	// doseKeys is how many keys a dose has at most, and doseTime how long it takes up more.
	doseKeys = 256
	doseTime = time.Second
	// keyOverheadInDose is what a key takes up beside its bytes.
	keyOverheadInDose = 24
	doseOverhead      = 200
	pointerBytes      = 8
)

// A dose is some expired events of a topic that receivers have taken. If all of these have perhaps
// not read them, they are published again.
type dose struct {
	by    []*subscriber
	at    time.Time // of the first of them
	topic string
	keys  []string
	// others: receivers of other nodes were sent the dose, too. It is left to them as long as there
	// are any.
	others bool
}

// isDoubted reports whether no receiver has read the dose for sure.
func (d *dose) isDoubted() bool {
	return !slices.ContainsFunc(d.by, func(u *subscriber) bool { return !u.stalled && !u.unread })
}

// bytes returns how much memory a dose takes up, about.
func (d *dose) bytes() (n int) {
	n = doseOverhead + pointerBytes*len(d.by)
	for _, key := range d.keys {
		n += keyOverheadInDose + len(key)
	}
	return n
}

// doses are what was taken in the last minute, and what is to be published again. The hub guards
// them.
type doses struct {
	taken, doubted doseQueue
	relied         bool // some of taken are doubted, and left to other nodes
}

// A doseQueue has doses of at most doubtfulBytes.
type doseQueue struct {
	list          []*dose
	bytes, events int
}

// push adds a dose, and drops old ones for that. It returns how many events it drops.
func (q *doseQueue) push(d *dose) (dropped int64) {
	q.list, q.bytes, q.events = append(q.list, d), q.bytes+d.bytes(), q.events+len(d.keys)
	for q.bytes > doubtfulBytes {
		dropped += int64(len(q.pop().keys))
	}
	return dropped
}

// pop takes the oldest one out; nil: there is none.
func (q *doseQueue) pop() *dose {
	if len(q.list) == 0 {
		return nil
	}
	d := q.list[0]
	q.list[0], q.list = nil, q.list[1:]
	q.bytes, q.events = q.bytes-d.bytes(), q.events-len(d.keys)
	return d
}

// filter drops the doses that do not fit.
func (q *doseQueue) filter(fits func(d *dose) bool) {
	old := q.list
	*q = doseQueue{}
	for _, d := range old {
		if fits(d) {
			q.push(d)
		}
	}
}

// add adds a dose that was taken now. If its receivers have ended meanwhile, it is to be published
// again. It returns how many events are given up for that.
func (a *doses) add(d *dose, now time.Time) (lost int64) {
	switch doubted := d.isDoubted(); {
	case doubted && d.others:
		a.relied = true
	case doubted:
		return a.doubted.push(d)
	}
	for len(a.taken.list) > 0 && now.Sub(a.taken.list[0].at) > doubtful {
		a.taken.pop()
	}
	if n := len(a.taken.list); n > 0 {
		if last := a.taken.list[n-1]; last.topic == d.topic && last.others == d.others && now.Sub(last.at) < doseTime && len(last.keys)+len(d.keys) <= doseKeys && slices.Equal(last.by, d.by) {
			last.keys = append(slices.Clip(last.keys), d.keys...)
			a.taken.bytes, a.taken.events = a.taken.bytes+d.bytes()-(&dose{by: d.by}).bytes(), a.taken.events+len(d.keys)
			return 0
		}
	}
	d.at = now
	a.taken.push(d) // the oldest have been read since
	return 0
}

// doubt has the doses published again that are doubted now. It returns how many events they are,
// and how many are given up for them. others: other nodes have receivers.
func (a *doses) doubt(now time.Time, others bool) (n int, lost int64) {
	a.relied = false
	a.taken.filter(func(d *dose) bool {
		switch {
		case !d.isDoubted():
			return true
		case d.others && now.Sub(d.at) > doubtful: // those have read it since
			return false
		case d.others && others:
			a.relied = true
			return true
		}
		n += len(d.keys)
		lost += a.doubted.push(d)
		return false
	})
	return n, lost
}

// trust takes back what was to be published again because a subscriber was stalled.
func (a *doses) trust(u *subscriber) {
	a.doubted.filter(func(d *dose) bool {
		if !slices.Contains(d.by, u) {
			return true
		}
		a.taken.push(d)
		return false
	})
}
