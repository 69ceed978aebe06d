package redistest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// A Proxy forwards connections to a server, with the faults that the test sets.
type Proxy struct {
	Addr string

	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex // guards everything below
	target  string
	change  *sync.Cond
	deaf    bool
	severed Severance // 0 while connections are passed on
	ill     illness
	names   []renaming
	rate    int       // bytes of answers a second, of all connections together; 0: any
	free    time.Time // when the line is free again
	// throttled is how often the bound was set.
	throttled int
	closed    bool
	links     map[*link]struct{}
}

// A Severance is a way in which a network keeps two machines apart.
type Severance uint8

// The ways of Sever.
const (
	// Stall makes packets vanish: old and new connections stall without an error. What was sent
	// arrives when the network heals, however late, even if its sender has given up.
	Stall Severance = iota + 1
	// Reset breaks connections, and refuses new ones.
	Reset
)

// A link is one connection and its state.
type link struct {
	client, server net.Conn
	held           bool // requests wait; guarded by Proxy.mu
	listens        bool // it has subscribed to channels; guarded by Proxy.mu
	dead           bool // see Proxy.HalfOpen; guarded by Proxy.mu
}

// NewProxy makes a proxy in front of a server's address.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: listener.Addr().String(), target: target, listener: listener, links: map[*link]struct{}{}}
	p.change = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL is the proxy's address for a ledger.
func (p *Proxy) URL() string { return "redis://" + p.Addr }

// SetDeaf drops the server's answers: requests are executed, and their senders get no answer.
// Connections that were deaf once are closed when it ends, because their answers would be taken
// for those of later requests.
func (p *Proxy) SetDeaf(deaf bool) {
	p.mu.Lock()
	p.deaf = deaf
	p.mu.Unlock()
	if !deaf {
		p.Cut()
	}
}

// Throttle bounds how many bytes of answers pass in a second, over all connections together; 0
// lifts the bound. Data that waits under an earlier bound passes at once.
func (p *Proxy) Throttle(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate, p.free = rate, time.Now()
	p.throttled++
	p.change.Broadcast()
}

// takeTurn waits until the line has room for some bytes.
func (p *Proxy) takeTurn(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rate == 0 {
		return
	}
	if now := time.Now(); p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(bytes) * time.Second / time.Duration(p.rate))
	until, bound := p.free, p.throttled
	timer := time.AfterFunc(time.Until(until), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.change.Broadcast()
	})
	defer timer.Stop()
	for !p.closed && p.throttled == bound && time.Now().Before(until) {
		p.change.Wait()
	}
}

// Sever separates the client and the server until Heal.
func (p *Proxy) Sever(how Severance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.severed = how
	if how == Reset {
		for l := range p.links {
			l.reset()
		}
	}
	p.change.Broadcast() // stalled connections may have to be reset
}

// Heal ends what Sever began.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.severed = 0
	p.change.Broadcast()
}

// Retarget breaks all connections, and forwards new ones to another server.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	for l := range p.links {
		l.reset()
	}
	p.change.Broadcast()
}

func (p *Proxy) leadsTo() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// Hold keeps back requests over the present connections, until release is called: they then reach
// the server, though their sender has long given up, and release returns when the server has
// executed them. New connections work at once.
func (p *Proxy) Hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var held []*link
	for l := range p.links {
		l.held = true
		held = append(held, l)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, l := range held {
			l.held = false
			_ = l.client.(*net.TCPConn).CloseRead() // data that has arrived is still read
		}
		p.change.Broadcast()
		for _, l := range held {
			for _, there := p.links[l]; there && !p.closed; _, there = p.links[l] {
				p.change.Wait()
			}
		}
	}
}

// Cut breaks all connections that are not held.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if !l.held {
			_, _ = l.client.Close(), l.server.Close()
		}
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		_, _ = l.client.Close(), l.server.Close()
	}
	p.change.Broadcast()
	p.mu.Unlock()
	_ = p.listener.Close()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		// Connections that come while the network stalls wait in the listener's queue.
		if p.pass() == Reset {
			reset(client)
			continue
		}
		target := p.leadsTo()
		server, err := net.Dial("tcp", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{client: client, server: server}
		p.mu.Lock()
		closed := p.closed
		p.links[l] = struct{}{}
		if p.severed == Reset || p.target != target {
			l.reset()
		}
		p.mu.Unlock()
		if closed {
			_, _ = client.Close(), server.Close()
			return
		}
		p.wg.Go(func() { p.up(l) })
		p.wg.Go(func() { p.down(l) })
	}
}

// pass waits while the network stalls, and returns in which way it is severed then.
func (p *Proxy) pass() Severance {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.severed == Stall && !p.closed {
		p.change.Wait()
	}
	return p.severed
}

func (l *link) reset() {
	reset(l.client)
	reset(l.server)
}

// reset closes a connection in such a way that its other end sees an error.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// up forwards requests. A request arrives even if its client has closed the connection.
func (p *Proxy) up(l *link) {
	_, _ = io.Copy(writer(func(b []byte) (int, error) {
		p.mu.Lock()
		l.listens = l.listens || subscribes(b)
		for (l.held || p.severed == Stall || p.stillLocked(l)) && !p.closed {
			p.change.Wait()
		}
		p.mu.Unlock()
		p.dawdle()
		return l.server.Write(b)
	}), l.client)
	p.pass() // the end of the data is delayed, too
	_ = l.server.(*net.TCPConn).CloseWrite()
}

// down forwards answers, and closes the connection when the server does.
func (p *Proxy) down(l *link) {
	gone := false
	_, _ = io.Copy(writer(func(b []byte) (int, error) {
		p.pass()
		p.dawdle()
		if !gone {
			p.takeTurn(len(b))
		}
		p.mu.Lock()
		for p.stillLocked(l) && !p.closed {
			p.change.Wait()
		}
		deaf, names := p.deaf, p.names
		p.mu.Unlock()
		if !deaf {
			_, err := l.client.Write(renamed(b, names)) // the client may have gone
			gone = err != nil
		}
		return len(b), nil
	}), l.server)
	p.pass()
	_, _ = l.client.Close(), l.server.Close()
	p.mu.Lock()
	delete(p.links, l)
	p.change.Broadcast()
	p.mu.Unlock()
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
