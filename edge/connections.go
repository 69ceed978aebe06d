package edge

import (
	"cmp"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// unfinishedFor is how long a connection may be unfinished before it gives way at the limit.
	unfinishedFor = 500 * time.Millisecond
	// unreadFor is how long a write may be blocked before its connection gives way. It is longer
	// than unfinishedFor, since the buffers of the operating system hide a slow reader's progress
	// for a while.
	unreadFor = 2 * time.Second
	// lookEvery is how often a connection that waits looks for one that gives way, at most. A look
	// is at all connections: it takes no more than a part in lookShare of the time, unless the next
	// one would be later than lookAtLeast.
	lookEvery   = 50 * time.Millisecond
	lookShare   = 20
	lookAtLeast = time.Second
)

// Closed counts the connections that were closed because of a bound: new ones of an address that
// has too many, and those that gave way to new ones.
type Closed struct {
	Address    atomic.Int64 // their address had too many
	Unfinished atomic.Int64 // their callers had not sent a whole request, or not said who they are
	Unread     atomic.Int64 // their callers did not read
}

// ConnectionLimits say how many connections a door has, and what happens beyond. Of those that
// belong to a caller (Conn.Enter), one token has at most half.
type ConnectionLimits struct {
	Most int
	// PerAddress is how many one address has at most, or one /64 of IPv6. Further ones are closed
	// at once. The loopback address has no bound. 0: half of Most.
	PerAddress int
	// KeepIdle: a connection does not give way because it is idle. So it is where a client takes
	// that for a fault.
	KeepIdle bool
	// Full is called with a new connection that finds no place, and that none will make soon. It
	// may tell the client, and is followed by Close. Nil: the connection waits for a place.
	Full func(net.Conn)
	// Closed counts those that are closed. Several Connections may have the same.
	Closed *Closed
	// Log receives messages for the operator.
	Log *slog.Logger
}

// Connections bounds the connections of a door, over all of its listeners. A new connection is
// closed if its address has ConnectionLimits.PerAddress. At ConnectionLimits.Most, it takes the
// place of another one. The first that applies gives way:
//
//  1. the connection that has been unfinished for the longest time, if that is longer than
//     unfinishedFor;
//  2. the connection that has been idle for the longest time, unless ConnectionLimits.KeepIdle, or
//     so many connections are unfinished or unread that the idle ones would be gone before them;
//  3. the connection that has been blocked in a write for the longest time, if that is longer than
//     unreadFor: its caller does not read.
//
// If none gives way, the new connection waits, or is refused. One that is already accepted waits in
// front of the door, and the others wait in the backlog of the operating system. A burst is delayed
// that way, not refused.
//
// What a connection does is noted without a lock. Only at the limit are all of them looked at. It
// is safe for concurrent use.
type Connections struct {
	limits ConnectionLimits
	began  time.Time

	addresses  *addresses
	tokens     *Places       // that connections of callers have
	unfinished atomic.Int64  // connections
	waiting    atomic.Int64  // connections that wait for a place
	changed    chan struct{} // 1: a connection was closed, or became idle

	mu     sync.Mutex // guards everything below
	open   map[*Conn]struct{}
	looked time.Time
	pause  time.Duration // until the next look
	warned time.Time
	// What the last look has found; the first gives way first.
	slow, idle, unread []candidate
}

// A candidate is a connection that may give way, as long as it does what it did when it was found.
type candidate struct {
	conn  *Conn
	doing int64 // Conn.doing, or Conn.writing
}

// NewConnections returns a count of connections, of which there are none.
func NewConnections(limits ConnectionLimits) *Connections {
	return &Connections{
		limits: limits, began: time.Now(), changed: make(chan struct{}, 1), open: make(map[*Conn]struct{}),
		addresses: newAddresses(limits), tokens: NewPlaces(math.MaxInt, max(1, limits.Most/2)),
	}
}

// ConnectionCounts are how many connections there are, and what they do.
type ConnectionCounts struct {
	Open       int // all
	Unfinished int // those that have not sent a whole request, or not said who they are
	Idle       int
	Unread     int // blocked in a write for two seconds
}

// Counts returns how many connections there are. It looks at all of them.
func (c *Connections) Counts() ConnectionCounts {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := ConnectionCounts{Open: len(c.open), Unfinished: int(c.unfinished.Load())}
	for conn := range c.open {
		if phaseOf(conn.now()) == idle {
			n.Idle++
		}
		if conn.isUnread(conn.writes()) {
			n.Unread++
		}
	}
	return n
}

// Listener returns a listener whose connections have places. They are of type *Conn.
func (c *Connections) Listener(l net.Listener) net.Listener {
	return &places{Listener: l, of: c, closed: make(chan struct{})}
}

// places is a listener whose connections have places.
type places struct {
	net.Listener
	of     *Connections
	once   sync.Once
	closed chan struct{}
}

// Accept waits for a connection, and then for a place for it.
func (p *places) Accept() (net.Conn, error) {
	for {
		inner, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := &Conn{Conn: inner, of: p.of, from: addressOf(inner.RemoteAddr())}
		if !p.of.addresses.begin(conn.from) {
			inner.Close()
			continue
		}
		placed, err := p.of.await(conn, p.closed)
		if placed {
			return conn, nil
		}
		p.of.addresses.end(conn.from)
		if err == nil {
			p.of.limits.Full(inner)
		}
		inner.Close()
		if err != nil {
			return nil, err
		}
	}
}

// Close closes the listener and ends the wait for a place.
func (p *places) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
}

// await waits for a place for a connection. It reports false if there is none, and the connection
// is to be refused. Error: net.ErrClosed once closed is.
func (c *Connections) await(conn *Conn, closed <-chan struct{}) (placed bool, err error) {
	if placed, _ = c.place(conn); placed {
		return true, nil
	}
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	for {
		placed, soon := c.place(conn)
		if placed || !soon && c.limits.Full != nil {
			return placed, nil
		}
		select {
		case <-c.changed:
		case <-again.C: // until a connection has been unfinished, or unread, for too long
		case <-closed:
			return false, net.ErrClosed
		}
	}
}

// place takes a place for a connection. If there is none, it makes room for the next attempt if it
// can, and reports whether there may be room soon.
func (c *Connections) place(conn *Conn) (placed, soon bool) {
	c.mu.Lock()
	if len(c.open) < c.limits.Most {
		c.open[conn] = struct{}{}
		conn.Begin()
		c.mu.Unlock()
		return true, true
	}
	victim := c.victimLocked()
	soon = victim != nil || c.unfinished.Load() > 0 || len(c.unread) > 0
	full := victim == nil && time.Since(c.warned) > time.Minute
	if full {
		c.warned = time.Now()
	}
	c.mu.Unlock()
	switch {
	case victim != nil:
		victim.cut() // which wakes await
	case full:
		c.limits.Log.Warn("all connections are in use; others wait", "limit", c.limits.Most)
	}
	return false, soon
}

// victimLocked returns the connection that gives way; nil: none does.
func (c *Connections) victimLocked() *Conn {
	c.lookLocked()
	slow, resting, unread := first(&c.slow, (*Conn).now), first(&c.idle, (*Conn).now), first(&c.unread, (*Conn).writes)
	switch {
	case slow != nil && c.since(slow.doing) >= unfinishedFor:
		c.slow = c.slow[1:]
		c.limits.Closed.Unfinished.Add(1)
		return slow.conn
	case resting != nil && !c.limits.KeepIdle && max(int(c.unfinished.Load()), len(c.unread)) <= c.limits.Most/4:
		c.idle = c.idle[1:]
		return resting.conn
	case unread != nil:
		c.unread = c.unread[1:]
		c.limits.Closed.Unread.Add(1)
		return unread.conn
	}
	return nil
}

// first drops those that do something else by now, and returns the first of the others; nil: there
// is none.
func first(all *[]candidate, now func(*Conn) int64) *candidate {
	for len(*all) > 0 && now((*all)[0].conn) != (*all)[0].doing {
		*all = (*all)[1:]
	}
	if len(*all) == 0 {
		return nil
	}
	return &(*all)[0]
}

// lookLocked looks at all connections, unless it has done that lately. Those that began to do
// something since then have done it for a shorter time than those that it has found.
func (c *Connections) lookLocked() {
	begun := time.Now()
	if begun.Sub(c.looked) < c.pause {
		return
	}
	c.slow, c.idle, c.unread = nil, nil, nil
	for conn := range c.open {
		switch doing := conn.now(); phaseOf(doing) {
		case unfinished:
			c.slow = append(c.slow, candidate{conn, doing})
		case idle:
			c.idle = append(c.idle, candidate{conn, doing})
		}
		if writing := conn.writes(); conn.isUnread(writing) {
			c.unread = append(c.unread, candidate{conn, writing})
		}
	}
	for _, all := range [][]candidate{c.slow, c.idle, c.unread} {
		slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.doing, b.doing) })
	}
	c.looked = time.Now()
	c.pause = min(max(lookEvery, lookShare*c.looked.Sub(begun)), lookAtLeast)
}

// since returns for how long a connection has done something.
func (c *Connections) since(doing int64) time.Duration {
	return time.Since(c.began) - time.Duration(doing>>phaseBits)
}

// becameIdle is called by a connection while another one waits for a place.
func (c *Connections) becameIdle(conn *Conn, doing int64) {
	c.mu.Lock()
	c.idle = append(c.idle, candidate{conn, doing})
	c.mu.Unlock()
	c.wake()
}

func (c *Connections) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// A phase is what a connection does.
type phase int64

const (
	unfinished phase = iota // its caller has not sent a whole request, or not said who it is
	busy                    // a request is being answered
	idle
	gone

	phaseBits = 2
)

func phaseOf(doing int64) phase { return phase(doing & (1<<phaseBits - 1)) }

// A Conn is a connection that has a place until it is closed. All methods but Read, Write and Close
// may be called on nil, which has none.
type Conn struct {
	net.Conn
	of   *Connections
	from netip.Prefix // the address that it counts for

	// doing is what the connection does, in the lowest bits, and since when, as nanoseconds since
	// Connections.began. 0: it has no place.
	doing atomic.Int64
	// writing is when the write that is under way began, likewise; 0: none is.
	writing atomic.Int64

	mu     sync.Mutex
	caller *Caller // to whom it belongs; nil: to no one, or it is closed
}

// Enter notes that the connection belongs to a caller from now on; nil: to none. It reports false,
// and changes nothing, if the token of the caller has too many.
func (c *Conn) Enter(caller *Caller) bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case nameOf(caller) == nameOf(c.caller):
		return true
	case caller != nil && c.of.tokens.Begin(caller) != nil:
		return false
	case phaseOf(c.doing.Load()) == gone:
		if caller != nil {
			c.of.tokens.End(caller)
		}
		return true
	}
	c.leaveLocked()
	c.caller = caller
	return true
}

func (c *Conn) leaveLocked() {
	if c.caller != nil {
		c.of.tokens.End(c.caller)
		c.caller = nil
	}
}

// Begin notes that the caller has begun to send a request, or has to say who it is. It changes
// nothing if that was noted already.
func (c *Conn) Begin() { c.note(unfinished) }

// Arrived notes that a request has arrived, from a caller who has said who it is.
func (c *Conn) Arrived() { c.note(busy) }

// Rest notes that all requests are answered.
func (c *Conn) Rest() { c.note(idle) }

func (c *Conn) now() int64    { return c.doing.Load() }
func (c *Conn) writes() int64 { return c.writing.Load() }

func (c *Conn) note(what phase) {
	if c == nil {
		return
	}
	for {
		before := c.doing.Load()
		if was := phaseOf(before); before != 0 && (was == gone || was == what && what != idle) {
			return
		}
		if c.change(before, what) {
			return
		}
	}
}

// change notes what the connection does, if it still does what it did before.
func (c *Conn) change(before int64, what phase) bool {
	doing := max(int64(time.Since(c.of.began)), 1)<<phaseBits | int64(what)
	if !c.doing.CompareAndSwap(before, doing) {
		return false
	}
	if before != 0 && phaseOf(before) == unfinished {
		c.of.unfinished.Add(-1)
	}
	switch {
	case what == unfinished:
		c.of.unfinished.Add(1)
	case what == idle && c.of.waiting.Load() > 0:
		c.of.becameIdle(c, doing)
	}
	return true
}

// isUnread reports whether a write that began then has been blocked for too long.
func (c *Conn) isUnread(writing int64) bool {
	return writing != 0 && c.of.since(writing) >= unreadFor
}

// Write records when it began, for as long as it lasts.
func (c *Conn) Write(p []byte) (int, error) {
	c.writing.Store(max(int64(time.Since(c.of.began)), 1) << phaseBits)
	n, err := c.Conn.Write(p)
	c.writing.Store(0)
	return n, err
}

// Close closes the connection and frees its place.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	for {
		before := c.doing.Load()
		if before == 0 || phaseOf(before) == gone {
			return err
		}
		if c.change(before, gone) {
			break
		}
	}
	c.of.addresses.end(c.from)
	c.mu.Lock()
	c.leaveLocked()
	c.mu.Unlock()
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	c.of.wake()
	return err
}

// cut closes the connection without a word to the client, for which Close may wait, of TLS.
func (c *Conn) cut() {
	if t, ok := c.Conn.(interface{ NetConn() net.Conn }); ok {
		t.NetConn().Close()
	}
	c.Close()
}

// SyscallConn implements syscall.Conn. It fails if the connection beneath has none, as of TLS.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// ConnOf returns the Conn that a connection is, or that TLS has beneath; nil: there is none.
func ConnOf(conn net.Conn) *Conn {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn()
	}
	known, _ := conn.(*Conn)
	return known
}
