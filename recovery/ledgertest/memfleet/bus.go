package memfleet

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// Listen implements recovery.Bus.
func (m *Member) Listen(receive func(message []byte)) error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.receive = receive
	return nil
}

// StopListening implements recovery.Bus.
func (m *Member) StopListening(ctx context.Context) {
	m.f.mu.Lock()
	listens := m.receive != nil
	m.receive = nil
	m.f.mu.Unlock()
	if !listens {
		return
	}
	received := make(chan struct{})
	m.mail.add(func(recovery.Watcher) { close(received) }, m)
	select {
	case <-received:
	case <-m.mail.ended:
	case <-ctx.Done():
	}
}

// Send implements recovery.Bus.
func (m *Member) Send(ctx context.Context, node string, message []byte) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	heard := false
	for name, o := range m.f.members {
		if o == m || node != "" && name != node || o.dead || o.cut || o.receive == nil {
			continue
		}
		heard = true
		if m.f.drop == nil || !m.f.drop(m.name, name, message) {
			receive := o.receive
			o.mail.add(func(recovery.Watcher) { receive(slices.Clone(message)) }, o)
		}
	}
	if !heard && node != "" {
		return fmt.Errorf("memory ledger: node %s: %w", node, recovery.ErrUnheard)
	}
	return nil
}

// news are queued calls of a member's watcher and receiver, one after another.
type news struct {
	mu    sync.Mutex // guards everything below
	calls []func()
	wake  chan struct{}
	over  bool
	ended chan struct{} // closed when run has returned
}

func newNews() *news { return &news{wake: make(chan struct{}, 1), ended: make(chan struct{})} }

func (n *news) add(call func(recovery.Watcher), m *Member) {
	n.mu.Lock()
	n.calls = append(n.calls, func() {
		m.f.mu.Lock()
		w := m.watcher
		m.f.mu.Unlock()
		call(w)
	})
	n.mu.Unlock()
	n.signal()
}

func (n *news) end() {
	n.mu.Lock()
	n.over = true
	n.mu.Unlock()
	n.signal()
}

func (n *news) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *news) run() {
	defer close(n.ended)
	for range n.wake {
		for {
			n.mu.Lock()
			if n.over {
				n.mu.Unlock()
				return
			}
			if len(n.calls) == 0 {
				n.mu.Unlock()
				break
			}
			call := n.calls[0]
			n.calls = n.calls[1:]
			n.mu.Unlock()
			call()
		}
	}
}
