package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unheardError is the error of a message that no node received.
type unheardError struct{ error }

func (unheardError) Unheard() bool { return true }

var errNoListener = fmt.Errorf("sending: %w", unheardError{errors.New("no node listens")})

// A network carries messages with the faults that the test sets.
type network struct {
	mu    sync.Mutex // guards everything below
	ports []*port
	drop  func(from, to string, message []byte) bool // nil drops nothing
	twice float64                                    // share of messages that come twice
	delay time.Duration                              // messages take up to so long
	sends int
	most  int // bytes of the longest message
	rand  *rand.Rand
}

// newNetwork makes a network that drops a share of all messages.
func newNetwork(seed uint64, drop, twice float64, delay time.Duration) *network {
	n := &network{twice: twice, delay: delay, rand: rand.New(rand.NewPCG(seed, 1))}
	n.drop = func(string, string, []byte) bool { return n.rand.Float64() < drop }
	return n
}

// A port is one process's bus.
type port struct {
	n       *network
	node    string
	coming  sync.WaitGroup // messages that the network has taken
	turn    sync.Mutex     // calls of receive come one at a time
	last    chan struct{}  // closed when the last message has come; guarded by network.mu
	receive func([]byte)
	err     error         // of Send; guarded by network.mu
	hung    chan struct{} // Send waits until it is closed; nil: for nothing; guarded by network.mu
}

func (n *network) port(node string) *port { return &port{n: n, node: node} }

func (p *port) Listen(receive func([]byte)) error {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	p.receive = receive
	p.n.ports = append(p.n.ports, p)
	return nil
}

func (p *port) StopListening(context.Context) {
	p.unplug()
	p.coming.Wait()
}

// unplug is how a process stops to listen that is killed.
func (p *port) unplug() {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	p.n.ports = slices.DeleteFunc(p.n.ports, func(q *port) bool { return q == p })
}

func (p *port) Send(ctx context.Context, node string, message []byte) error {
	n := p.n
	n.mu.Lock()
	hung := p.hung
	n.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sends++
	n.most = max(n.most, len(message))
	if p.err != nil {
		return p.err
	}
	message = slices.Clone(message)
	listening := 0
	for _, to := range n.ports {
		if to.node != node && (node != "" || to == p) {
			continue
		}
		listening++
		copies := 1
		if n.rand.Float64() < n.twice {
			copies = 2
		}
		for range copies {
			if n.drop != nil && n.drop(p.node, to.node, message) {
				continue
			}
			var delay time.Duration
			before, come := to.last, make(chan struct{})
			if n.delay > 0 {
				delay = time.Duration(n.rand.Int64N(int64(n.delay)))
				before = nil
			}
			to.last = come
			to.coming.Add(1)
			time.AfterFunc(delay, func() {
				defer to.coming.Done()
				defer close(come)
				if before != nil { // without delays, messages come in their order
					<-before
				}
				to.turn.Lock()
				defer to.turn.Unlock()
				to.receive(slices.Clone(message))
			})
		}
	}
	if listening == 0 {
		return errNoListener
	}
	return nil
}

// set changes the network.
func (n *network) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// open makes a relay for a node; change may be nil.
func open(t testing.TB, n *network, node, incarnation string, change func(c *Config)) (*Relay, *port) {
	t.Helper()
	p := n.port(node)
	c := Config{
		Bus: p, Node: node, Incarnation: incarnation,
		Answer: func(_ context.Context, q Call) []byte { return append([]byte(q.Method+":"), q.Body...) },
	}
	if change != nil {
		change(&c)
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r, p
}

// within is a context that ends.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
