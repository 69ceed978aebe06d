package edge

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A Door serves the connections of a protocol, and ends them in order. A protocol of package
// net/http needs none: http.Server does the same. It is safe for concurrent use.
type Door struct {
	places *Connections
	limits ConnectionLimits
	begin  func(net.Conn) Guest
	fault  atomic.Pointer[error] // why the last connection could not be accepted
	ended  atomic.Bool           // a listener has
	ending context.Context       // done once Close is called
	end    context.CancelFunc

	mu        sync.Mutex // guards what follows
	listeners []net.Listener
	guests    map[Guest]struct{}
	work      sync.WaitGroup
}

// A Guest is a connection of a Door, as its protocol sees it.
type Guest interface {
	// Serve answers the client until it leaves or is dismissed, and closes the connection.
	Serve()
	// Dismiss has Serve return once what has arrived is answered.
	Dismiss()
	// Cut closes the connection at once.
	Cut()
}

// NewDoor returns a door. begin makes the guest of a connection that has a place. The connection is
// a *Conn, or has one beneath: see ConnOf.
func NewDoor(limits ConnectionLimits, begin func(net.Conn) Guest) *Door {
	d := &Door{places: NewConnections(limits), limits: limits, begin: begin, guests: make(map[Guest]struct{})}
	d.ending, d.end = context.WithCancel(context.Background())
	return d
}

// Serve accepts connections until Close is called, and then returns nil. It may be called for
// several listeners.
func (d *Door) Serve(l net.Listener) error {
	l = d.places.Listener(l)
	if !d.listen(l) {
		return l.Close()
	}
	for pause := time.Duration(0); ; {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			d.fault.Store(nil)
			d.accept(nc)
		case d.ending.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			d.ended.Store(true)
			return err
		default: // too many open files, say
			d.fault.Store(&err)
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			d.limits.Log.Warn("a connection cannot be accepted", "listener", l.Addr().String(), "error", err, "again_in", pause)
			select {
			case <-time.After(pause):
			case <-d.ending.Done():
			}
		}
	}
}

// listen notes a listener. It reports false once Close is called.
func (d *Door) listen(l net.Listener) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ending.Err() != nil {
		return false
	}
	d.listeners = append(d.listeners, l)
	return true
}

// accept begins to serve a connection.
func (d *Door) accept(nc net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ending.Err() != nil {
		nc.Close()
		return
	}
	g := d.begin(nc)
	d.guests[g] = struct{}{}
	d.work.Go(func() {
		g.Serve()
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.guests, g)
	})
}

// Accepting returns nil as long as connections are accepted. Errors: net.ErrClosed once Close was
// called or a listener has ended, or why the last connection could not be accepted.
func (d *Door) Accepting() error {
	if d.ended.Load() || d.ending.Err() != nil {
		return net.ErrClosed
	}
	if fault := d.fault.Load(); fault != nil {
		return *fault
	}
	return nil
}

// Guests returns how many connections are served.
func (d *Door) Guests() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.guests)
}

// Close ends the door: it accepts no more, guests have until ctx ends to answer what has arrived,
// and then they are cut off. It returns when all have ended. Error: that of ctx if guests had to be
// cut off.
func (d *Door) Close(ctx context.Context) error {
	d.mu.Lock()
	d.end()
	for _, l := range d.listeners {
		l.Close()
	}
	d.mu.Unlock()
	d.each(Guest.Dismiss)
	left := make(chan struct{})
	go func() { d.work.Wait(); close(left) }()
	select {
	case <-left:
		return nil
	case <-ctx.Done():
	}
	d.each(Guest.Cut)
	<-left
	return ctx.Err()
}

func (d *Door) each(do func(Guest)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for g := range d.guests {
		do(g)
	}
}
