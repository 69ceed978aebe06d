package respapi

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/respapi/internal/glob"
	"github.com/lapsehq/lapse/respapi/internal/resp"
)

// Bounds of subscriptions.
const (
	mostSubscriptions     = 10_000  // channels and patterns of a connection
	mostSubscriptionBytes = 2 << 20 // of them, as weight counts them
	mostHubSubscriptions  = 1_000_000
	mostHubBytes          = 256 << 20
	// mostChannelName is how long the name of a channel is at most, as that of a pattern.
	mostChannelName = glob.MaxPattern

	// batchBytes is how many bytes for a subscriber are gathered before they go to its output.
	batchBytes = 64 << 10
)

// A hub has the subscriptions of all connections of this node. Its mutex may be held when that of
// an output is taken, not the other way round.
type hub struct {
	mu          sync.Mutex // guards what follows
	flags       classes    // of notify-keyspace-events
	channels    map[string]*entry
	patterns    map[string]*entry
	subscribers map[*subscriber]struct{}
	order       []*entry // patterns as a list that is never changed; nil: it has to be made anew
	total       int      // subscriptions, each of a connection counted
	bytes       int      // of them
	keyevents   [32]int
	keyspaces   int // entries that may hear channels of keys
	events      int // subscribers that receive as eventReceiver
	spaces      int // as keyReceiver
	doses       doses
	dirty       []*subscriber
	encoding    [2]resp.Writer // of the message on its way, for both versions

	wants   atomic.Uint32 // classes that subscribers of this node wish for; with anyMessage
	came    atomic.Uint32 // counts when one may have come that receives further keys
	changed func()        // is called under mu when wants or came has changed
}

// An entry has the subscribers of a channel or a pattern.
type entry struct {
	name    string
	pattern *glob.Pattern // nil: it is a channel
	want    want
	all     []*subscriber
}

// weight returns how many bytes an entry has: those of its name and of its pattern.
func (e *entry) weight() int {
	if e.pattern == nil {
		return len(e.name)
	}
	return len(e.name) + e.pattern.Size()
}

// A subscriber is a connection that has subscribed to something.
type subscriber struct {
	out     *output
	three   bool // version 3 of the protocol
	caller  *edge.Caller
	callers *edge.Callers // that caller is one of; nil: there are no tokens
	// channels and patterns have the place of the subscriber in entry.all.
	channels, patterns map[string]int
	bytes              int
	ofEvents, ofKeys   int    // subscriptions by want.receives
	batch              []byte // messages on their way to out
	end                int64  // of what out was given, for output.taken
	gone               bool   // out has failed
	stalled            bool   // it takes nothing
	unread             bool   // it has ended, and perhaps not read the last that it took
}

func newHub(flags classes) *hub {
	h := &hub{
		flags: flags, channels: make(map[string]*entry), patterns: make(map[string]*entry),
		subscribers: make(map[*subscriber]struct{}), changed: func() {},
	}
	h.came.Store(rand.Uint32()) // that of a process before says nothing of this one
	return h
}

// count returns how many subscriptions there are.
func (u *subscriber) count() int { return len(u.channels) + len(u.patterns) }

// of returns the subscriptions of one sort.
func (u *subscriber) of(pattern bool) map[string]int {
	if pattern {
		return u.patterns
	}
	return u.channels
}

func (h *hub) of(pattern bool) map[string]*entry {
	if pattern {
		return h.patterns
	}
	return h.channels
}

// hears reports whether a subscriber may hear of a topic's keys, by the rights that it has now.
func (u *subscriber) hears(topic string) bool {
	return u.may(edge.MayReceive) && (u.caller.Grant == nil || topic != "" && u.caller.MayUse(topic))
}

// listening are the rights of which a subscriber needs one.
const listening = edge.MayReceive | edge.MaySchedule

// may reports whether a subscriber has one of these rights now.
func (u *subscriber) may(rights edge.Rights) bool {
	if u.caller != nil {
		u.caller = u.callers.Now(u.caller)
	}
	return u.caller != nil && u.caller.Rights.Open(rights)
}

var errChannelLong = "ERR the name of a channel must be at most " + strconv.Itoa(mostChannelName) + " bytes long"

// errSubscriptions is returned by addLocked if there are too many subscriptions.
var errSubscriptions = errors.New("too many subscriptions")

// addLocked subscribes. Errors: errSubscriptions; that of glob.Compile.
func (h *hub) addLocked(u *subscriber, name string, pattern bool) error {
	if _, ok := u.of(pattern)[name]; ok {
		return nil
	}
	e := h.of(pattern)[name]
	fresh := e == nil
	if fresh {
		e = &entry{name: name}
		if pattern {
			p, err := glob.Compile(name)
			if err != nil {
				return err
			}
			e.pattern = p
		}
		e.want = wantOf(name, e.pattern)
	}
	if u.count() >= mostSubscriptions || u.bytes+e.weight() > mostSubscriptionBytes ||
		h.total >= mostHubSubscriptions || h.bytes+e.weight() > mostHubBytes {
		return errSubscriptions
	}
	if fresh {
		h.of(pattern)[name] = e
		h.order = nil
		h.weighLocked(e, 1)
	}
	u.of(pattern)[name] = len(e.all)
	e.all = append(e.all, u)
	h.subscribers[u] = struct{}{}
	h.total++
	h.receiveLocked(u, e, 1)
	u.bytes += e.weight()
	h.bytes += e.weight()
	h.reviewLocked()
	return nil
}

// removeLocked ends a subscription, if there is one.
func (h *hub) removeLocked(u *subscriber, name string, pattern bool) {
	i, ok := u.of(pattern)[name]
	if !ok {
		return
	}
	e := h.of(pattern)[name]
	last := len(e.all) - 1
	e.all[i] = e.all[last]
	e.all[i].of(pattern)[name] = i
	e.all[last] = nil
	e.all = e.all[:last]
	delete(u.of(pattern), name)
	if last == 0 {
		delete(h.of(pattern), name)
		h.order = nil
		h.weighLocked(e, -1)
	}
	h.total--
	h.receiveLocked(u, e, -1)
	u.bytes -= e.weight()
	h.bytes -= e.weight()
	if u.count() == 0 {
		delete(h.subscribers, u)
	}
	h.reviewLocked()
}

// orderLocked returns all patterns. The result stays as it is when h.mu is released.
func (h *hub) orderLocked() []*entry {
	if h.order == nil {
		h.order = slices.Collect(maps.Values(h.patterns))
	}
	return h.order
}

// weighLocked counts what an entry wants.
func (h *hub) weighLocked(e *entry, n int) {
	for i := range h.keyevents {
		if e.want.keyevent&(1<<i) != 0 {
			h.keyevents[i] += n
		}
	}
	if e.want.keyspace {
		h.keyspaces += n
	}
}

// receiveLocked counts a subscription.
func (h *hub) receiveLocked(u *subscriber, e *entry, n int) {
	h.setLocked(u, func() {
		switch e.want.receives {
		case eventReceiver:
			u.ofEvents += n
		case keyReceiver:
			u.ofKeys += n
		}
	})
	if n > 0 && e.want.receives == keyReceiver {
		h.cameLocked()
	}
}

// cameLocked tells of a receiver of further keys.
func (h *hub) cameLocked() {
	h.came.Add(1)
	h.changed()
}

// receives returns eventReceiver or keyReceiver if what the subscriber takes counts as received.
// One that hears events on both kinds of channels is an eventReceiver.
func (u *subscriber) receives() classes {
	switch {
	case u.stalled || u.gone:
	case u.ofEvents > 0:
		return eventReceiver
	case u.ofKeys > 0:
		return keyReceiver
	}
	return 0
}

// setLocked changes what receives depends on.
func (h *hub) setLocked(u *subscriber, change func()) {
	count := func(n int) {
		switch u.receives() {
		case eventReceiver:
			h.events += n
		case keyReceiver:
			h.spaces += n
		}
	}
	count(-1)
	change()
	count(1)
}

// reviewLocked finds out what the subscribers wish for, and tells of a change.
func (h *hub) reviewLocked() {
	var wants classes
	for i, n := range h.keyevents {
		if n > 0 && h.flags&toKeyevent != 0 {
			wants |= h.flags & (1 << i)
		}
	}
	if h.keyspaces > 0 && h.flags&toKeyspace != 0 {
		wants |= h.flags
	}
	wants &= events
	if h.flags&classExpired != 0 && h.flags&toKeyevent != 0 && h.events > 0 {
		wants |= eventReceiver
	}
	if h.flags&classExpired != 0 && h.flags&toKeyspace != 0 && h.spaces > 0 {
		wants |= keyReceiver
	}
	if h.total > 0 {
		wants |= anyMessage
	}
	if h.wants.Swap(uint32(wants)) != uint32(wants) {
		h.changed()
	}
}

// setFlags sets notify-keyspace-events.
func (h *hub) setFlags(flags classes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flags = flags
	h.reviewLocked()
}

func (h *hub) getFlags() classes {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.flags
}

// hasSent reports whether a subscriber was sent a message.
func (h *hub) hasSent(u *subscriber) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return u.end > 0
}

// has reports whether a subscriber has subscribed to anything.
func (h *hub) has(u *subscriber) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.subscribers[u]
	return ok
}
