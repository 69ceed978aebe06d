package redistest

import (
	"bytes"
	"time"
)

// An illness is what ails the network while most of it still passes.
type illness struct {
	delay   time.Duration // of each piece that passes, in each direction
	unheard bool          // what is published does not arrive
}

// SetDelay makes each piece that passes late, in each direction. Zero ends it.
func (p *Proxy) SetDelay(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ill.delay = delay
}

// HalfOpen makes the connections that exist now stand still in both directions, and
// nobody is told, as when a router has forgotten them. New ones are passed on. When end
// is called they are reset.
func (p *Proxy) HalfOpen() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var dead []*link
	for l := range p.links {
		l.dead = true
		dead = append(dead, l)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, l := range dead {
			l.dead = false
			l.reset()
		}
		p.change.Broadcast()
	}
}

// SetUnheard makes connections that have subscribed to channels stand still, old ones and
// new ones; all others are passed on. When it ends they are reset.
func (p *Proxy) SetUnheard(unheard bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ill.unheard = unheard
	for l := range p.links {
		if l.listens && !unheard {
			l.reset()
		}
	}
	p.change.Broadcast()
}

// stillLocked tells whether a connection stands still.
func (p *Proxy) stillLocked(l *link) bool { return l.dead || p.ill.unheard && l.listens }

// dawdle waits as long as each piece has to.
func (p *Proxy) dawdle() {
	p.mu.Lock()
	delay := p.ill.delay
	p.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay)
	}
}

// subscribes tells whether a request is to listen to channels. A piece may begin in the
// middle of one; the ledger sends this one alone, on a connection of its own.
func subscribes(request []byte) bool {
	return bytes.HasPrefix(request, []byte("*")) && bytes.Contains(request[:min(len(request), 64)], []byte("subscribe\r\n"))
}
