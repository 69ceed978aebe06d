package redistest

import (
	"bytes"
	"time"
)

// An illness is a fault of the network while most of it still works.
type illness struct {
	delay   time.Duration // of each piece of data, in each direction
	unheard bool          // published messages do not arrive
}

// SetDelay delays each piece of data, in each direction. Zero ends it.
func (p *Proxy) SetDelay(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ill.delay = delay
}

// HalfOpen stalls the present connections in both directions without closing them, as a router
// does that has forgotten them. New connections work. When end is called, the stalled ones are
// reset.
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

// SetUnheard stalls connections that have subscribed to channels, present and new ones; all
// others work. When it ends they are reset.
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

// stillLocked reports whether a connection is stalled.
func (p *Proxy) stillLocked(l *link) bool { return l.dead || p.ill.unheard && l.listens }

// dawdle waits for the delay.
func (p *Proxy) dawdle() {
	p.mu.Lock()
	delay := p.ill.delay
	p.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay)
	}
}

// subscribes reports whether a request subscribes to channels. A piece may begin in the middle
// of a request; the ledger sends this one alone, on a connection of its own.
func subscribes(request []byte) bool {
	return bytes.HasPrefix(request, []byte("*")) && bytes.Contains(request[:min(len(request), 64)], []byte("subscribe\r\n"))
}
