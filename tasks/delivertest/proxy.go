package delivertest

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// flaky is how many of the pieces that pass a flaky proxy break their connection. Several
// concurrent tasks depend on each.
const flaky = 0.03

// A Proxy passes TCP connections on to a broker, with a fault in between. Rigs use it to
// be a [Breaker].
type Proxy struct {
	Addr string // where it listens, host:port

	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex // guards everything below
	change *sync.Cond
	fault  Fault
	closed bool
	links  map[*link]struct{}
}

// A link is one connection, and what was made of it.
type link struct{ client, server net.Conn }

func (l *link) cut() { _, _ = l.client.Close(), l.server.Close() }

// NewProxy makes a proxy in front of a broker's address, without a fault. It ends with
// the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: listener.Addr().String(), target: target, listener: listener, fault: None, links: map[*link]struct{}{}}
	p.change = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Break replaces the fault. What Hang has held back goes on.
func (p *Proxy) Break(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	if f == Refuse {
		p.cutLocked()
	}
	p.change.Broadcast()
}

func (p *Proxy) cutLocked() {
	for l := range p.links {
		l.cut()
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.cutLocked()
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
		p.wg.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	if p.current() == Refuse {
		_ = client.Close()
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client, server}
	p.mu.Lock()
	p.links[l] = struct{}{}
	if p.closed || p.fault == Refuse {
		l.cut()
	}
	p.mu.Unlock()
	p.wg.Go(func() { p.pass(l, l.server, l.client, Cut) })
	p.pass(l, l.client, l.server, Lose)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// pass copies from one end to the other. It ends the connection with either end, or with the first
// piece that comes while deadly is the fault.
func (p *Proxy) pass(l *link, to io.Writer, from io.Reader, deadly Fault) {
	defer l.cut()
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if err != nil {
			return
		}
		f := p.current()
		if f == deadly || f == Flaky && rand.Float64() < flaky {
			return
		}
		if _, err := to.Write(piece[:n]); err != nil {
			return
		}
	}
}

// current is the fault that a piece meets. While it is Hang, it waits.
func (p *Proxy) current() Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.fault == Hang && !p.closed {
		p.change.Wait()
	}
	return p.fault
}
