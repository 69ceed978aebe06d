package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A coalesceModel is what a caller may rely on in a topic that coalesces: a task that was not
// delivered was cancelled, or a later one of its group was delivered.
type coalesceModel struct {
	*coalescing
	rnd     *rand.Rand
	cancels bool // tasks are cancelled meanwhile
	faults  bool // nodes die, shards change hands and messages get lost meanwhile

	ids map[string][]string // by group, in the order of their deadlines
	mu  sync.Mutex          // guards all below
	// How often each was delivered and acknowledged; which ones may have been cancelled.
	delivered map[string]int
	cancelled map[string]bool
}

func TestCoalesceAgainstModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	for round := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed, ".", round), func(t *testing.T) {
			coalescingBubble(t, 3, TopicSettings{Retry: Retry{MaxBackoff: time.Second}}, func(t *testing.T, c *coalescing) {
				m := &coalesceModel{
					coalescing: c, rnd: rand.New(rand.NewPCG(seed, round)), cancels: round%2 == 1, faults: round%4 >= 2,
					ids: make(map[string][]string), delivered: make(map[string]int), cancelled: make(map[string]bool),
				}
				m.T = t
				m.run()
			})
		})
	}
}

func (m *coalesceModel) run() {
	for i := range 60 {
		group := fmt.Sprint("g", m.rnd.IntN(8))
		n := m.Nodes[m.rnd.IntN(3)]
		id := n.Create(Request{ID: n.IDAt(0), Topic: "x", Group: group, Delay: time.Second + time.Duration(i)*time.Millisecond})
		m.ids[group] = append(m.ids[group], id)
	}
	m.crash()
	rig.Pass(time.Minute)
	if m.faults {
		m.Lose(func(_, _ string, _ []byte) bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.rnd.IntN(8) == 0
		})
	}
	for _, i := range m.rnd.Perm(3) {
		m.start(m.Nodes[i])
		m.meanwhile(time.Duration(m.draw(5)) * time.Second)
	}
	if m.faults {
		for range 5 {
			m.upset()
			m.meanwhile(time.Duration(m.draw(4000)) * time.Millisecond)
		}
	}
	m.Lose(nil)
	for _, n := range m.Nodes {
		if n.Dead {
			m.start(n)
		}
	}
	rig.Pass(2 * time.Minute)
	m.verify()
}

// draw returns a number below n. Handlers draw as well.
func (m *coalesceModel) draw(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rnd.IntN(n)
}

func (m *coalesceModel) start(n *rig.Node) {
	n.Restart()
	rig.Want(m.T, "Handle", n.Handle("x", func(ctx context.Context, d *Delivery) error {
		select {
		case <-time.After(time.Duration(m.draw(1500)) * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if m.draw(4) == 0 {
			return errors.New("not this time")
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.delivered[d.ID]++
		return nil
	}), nil)
}

// meanwhile lets time pass. Callers may cancel tasks.
func (m *coalesceModel) meanwhile(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); rig.Pass(200 * time.Millisecond) {
		n := m.Nodes[m.draw(3)]
		if !m.cancels || n.Dead || m.draw(3) > 0 {
			continue
		}
		of := m.ids[fmt.Sprint("g", m.draw(8))]
		if len(of) == 0 {
			continue
		}
		id := of[len(of)-1-m.draw(min(3, len(of)))] // one of the newest
		ctx, cancel := context.WithTimeout(m.T.Context(), 100*time.Millisecond)
		err := n.Cancel(ctx, id)
		cancel()
		if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrDelivering) {
			m.mu.Lock()
			m.cancelled[id] = true // perhaps
			m.mu.Unlock()
		}
	}
}

// upset does something to the fleet.
func (m *coalesceModel) upset() {
	from, to := m.Nodes[m.draw(3)], m.Nodes[m.draw(3)]
	switch {
	case from == to:
	case from.Dead && m.draw(2) == 0:
		m.start(from) // and asks for what is its own
	case to.Dead:
	case from.Dead:
		to.Member.AdoptFrom(from.Member.Member)
	case m.draw(2) == 0:
		from.Crash()
	default:
		to.Member.AdoptFrom(from.Member.Member) // which was cut off, and hears of it
	}
}

func (m *coalesceModel) verify() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for group, ids := range m.ids {
		var delivered []int
		for i, id := range slices.Backward(ids) {
			if m.delivered[id] > 0 {
				delivered = append(delivered, i)
			}
			if one, err := m.Nodes[0].Get(m.T.Context(), id); !errors.Is(err, ErrNotFound) {
				m.T.Errorf("%s of %s is %v in the end (%v)", id, group, one.State, err)
			}
			later := ids[i+1:]
			excused := m.cancelled[id] ||
				slices.ContainsFunc(later, func(id string) bool { return m.delivered[id] > 0 || m.cancelled[id] })
			if m.delivered[id] == 0 && !excused {
				m.T.Errorf("%d of %d of %s was not delivered, nor a later one: %v", i, len(ids), group, delivered)
			}
		}
		if !m.cancels && !m.faults && len(delivered) != 1 {
			m.T.Errorf("of %s %v were delivered; want the last of %d alone", group, delivered, len(ids))
		}
		if !m.cancels && !slices.Contains(delivered, len(ids)-1) {
			m.T.Errorf("of %s %v were delivered; want the last of %d", group, delivered, len(ids))
		}
	}
}
