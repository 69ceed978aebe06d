package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A record keeps the bodies that were executed.
type record struct {
	mu     sync.Mutex // guards bodies
	bodies []string
}

func (e *record) answer(_ context.Context, q Call) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bodies = append(e.bodies, string(q.Body))
	return q.Body
}

func (e *record) want(t *testing.T, want ...string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.bodies, want) {
		t.Errorf("executed: %q, want %q", e.bodies, want)
	}
}

// An answer for a process that has ended does not reach the next one of its name, though both have
// called their first call.
func TestAnswerForPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		old, p := open(t, n, "a", "1", nil)
		open(t, n, "b", "1", func(c *Config) {
			c.Answer = func(_ context.Context, q Call) []byte {
				if string(q.Body) == "new" {
					time.Sleep(time.Second)
				}
				time.Sleep(time.Second)
				return q.Body
			}
		})
		go func() { _, _ = old.Call(within(t, time.Minute), "b", "get", []byte("old")) }()
		time.Sleep(time.Millisecond)
		p.unplug()
		late := 0
		next, _ := open(t, n, "a", "2", func(c *Config) { c.Late = func(string, string, []byte, time.Time) { late++ } })
		answer, err := next.Call(within(t, time.Minute), "b", "get", []byte("new"))
		if err != nil || string(answer) != "new" {
			t.Errorf("Call: %q, %v", answer, err)
		}
		time.Sleep(5 * time.Second)
		if late > 0 {
			t.Error("the answer for the old one was handed to the new one")
		}
	})
}

// Calls that a process may have executed before it was replaced are not executed by the next
// one; those that no process can have received are.
func TestCallForPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		var old, next record
		_, p := open(t, n, "b", "1", func(c *Config) { c.Answer = old.answer })
		n.set(func() { n.drop = func(from, _ string, _ []byte) bool { return from == "b" } })
		time.Sleep(time.Second)
		ended := make(chan error)
		go func() {
			_, err := a.Call(within(t, time.Minute), "b", "cancel", []byte("first"))
			ended <- err
		}()
		time.Sleep(time.Second)
		p.unplug()
		n.set(func() { n.drop = nil })
		unheard := make(chan error)
		go func() {
			_, err := a.Call(within(t, time.Minute), "b", "cancel", []byte("second"))
			unheard <- err
		}()
		time.Sleep(time.Second)
		open(t, n, "b", "2", func(c *Config) { c.Answer = next.answer })
		wantError(t, <-ended, ErrNoAnswer)
		if err := <-unheard; err != nil {
			t.Error(err)
		}
		old.want(t, "first")
		next.want(t, "second")
	})
}

// hold delays messages to a node, as a stopped process does not read them, and delivers all of them
// at once when it is called again.
func (n *network) hold(node string) (release func()) {
	var held [][]byte
	n.set(func() {
		n.drop = func(_, to string, message []byte) bool {
			if to == node {
				held = append(held, message)
			}
			return to == node
		}
	})
	return func() {
		var to *port
		n.set(func() {
			n.drop = nil
			for _, p := range n.ports {
				if p.node == node {
					to = p
				}
			}
		})
		for _, m := range held {
			to.turn.Lock()
			to.receive(m)
			to.turn.Unlock()
		}
	}
}

// A process was stopped for a minute, and finds calls whose callers have left, and one whose
// caller still waits.
func TestStoppedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		var done record
		b, _ := open(t, n, "b", "1", func(c *Config) { c.Answer = done.answer })
		if _, err := a.Call(within(t, time.Second), "b", "x", []byte("before")); err != nil {
			t.Fatal(err)
		}
		release := n.hold("b")
		ended := make(chan error)
		go func() {
			_, err := a.Call(within(t, 100*time.Second), "b", "x", []byte("patient"))
			ended <- err
		}()
		_, err := a.Call(within(t, 5*time.Second), "b", "x", []byte("gone"))
		wantError(t, err, ErrNoAnswer)
		time.Sleep(time.Minute)
		release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		done.want(t, "before", "patient")
		if s := b.Stats(); s.Expired == 0 {
			t.Errorf("Stats: %+v", s)
		}
	})
}

// Copies that come when their call has been forgotten are not executed again.
func TestLateCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		var done record
		b, p := open(t, n, "b", "1", func(c *Config) { c.Answer = done.answer })
		var copies [][]byte
		n.set(func() {
			n.drop = func(from, _ string, message []byte) bool {
				if from == "a" {
					copies = append(copies, message)
				}
				return from == "b"
			}
		})
		_, err := a.Call(within(t, 3*time.Second), "b", "x", []byte("once"))
		wantError(t, err, ErrNoAnswer)
		time.Sleep(30 * time.Second)
		if s := b.Stats(); s.Remembered != 0 {
			t.Fatalf("Stats: %+v", s)
		}
		for _, m := range copies {
			p.receive(m)
			time.Sleep(time.Second)
		}
		done.want(t, "once")
	})
}

// The clock of a suspended machine stands still. All its messages look late afterwards, and are
// answered all the same.
func TestClockStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 10*time.Millisecond)
		a, _ := open(t, n, "a", "1", nil)
		b, _ := open(t, n, "b", "1", nil)
		call := func(from *Relay, node string) {
			t.Helper()
			began := time.Now()
			if _, err := from.Call(within(t, 3*time.Second), node, "x", nil); err != nil || time.Since(began) > time.Second {
				t.Errorf("an answer after %v: %v", time.Since(began), err)
			}
		}
		time.Sleep(2 * time.Hour)
		call(a, "b")
		call(b, "a")
		a.mu.Lock()
		a.start = a.start.Add(time.Hour) // its clock lags by an hour
		a.mu.Unlock()
		call(a, "b")
		call(b, "a")
		if s := b.Stats(); s.Expired != 1 {
			t.Errorf("Stats: %+v", s)
		}
		call(a, "b")
		if s := b.Stats(); s.Expired != 1 {
			t.Errorf("it was not believed: %+v", s)
		}
	})
}

// A clock stands still for a moment, too short for its machine's messages to look late. Calls
// from there have less time for a minute or two, and then all of it again. Late messages are
// recognised also after a long silence.
func TestClockStoodStillForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		var left time.Duration
		b, _ := open(t, n, "b", "1", func(c *Config) {
			c.Answer = func(ctx context.Context, _ Call) []byte {
				deadline, _ := ctx.Deadline()
				left = time.Until(deadline)
				return nil
			}
		})
		call := func() error {
			_, err := a.Call(within(t, 2*time.Second), "b", "x", nil)
			return err
		}
		for second := range 200 {
			if second == 60 {
				a.mu.Lock()
				a.start = a.start.Add(1500 * time.Millisecond)
				a.mu.Unlock()
			}
			if err := call(); err != nil {
				t.Fatal(err)
			}
			if (second < 60 || second >= 180) && left < 1990*time.Millisecond {
				t.Errorf("in second %d a call of 2 s has %v", second, left)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(30 * time.Minute)
		release := n.hold("b")
		wantError(t, call(), ErrNoAnswer)
		time.Sleep(3 * time.Second)
		expired := b.Stats().Expired
		release()
		synctest.Wait()
		if s := b.Stats(); s.Expired == expired {
			t.Errorf("Stats: %+v", s)
		}
	})
}

// Processes come and go, and calls stay without an answer: in time, nothing of them is kept.
func TestNothingIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", func(c *Config) { c.Late = func(string, string, []byte, time.Time) {} })
		for i := range 3 {
			b, p := open(t, n, fmt.Sprint("b", i), "1", nil)
			if _, err := b.Call(within(t, time.Second), "a", "x", nil); err != nil {
				t.Error(err)
			}
			n.set(func() { n.drop = func(from, _ string, _ []byte) bool { return from != "a" } })
			_, err := a.Call(within(t, time.Second), fmt.Sprint("b", i), "x", nil)
			wantError(t, err, ErrNoAnswer)
			n.set(func() { n.drop = nil })
			p.unplug()
		}
		kept := func() (peers, calls int) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.peers), len(a.abandoned)
		}
		if peers, calls := kept(); peers != 3 || calls != 3 {
			t.Errorf("it knows %d processes and %d calls", peers, calls)
		}
		time.Sleep(abandonedTime + 2*sweepEvery)
		if peers, calls := kept(); peers != 3 || calls != 0 {
			t.Errorf("after a minute, it knows %d processes and %d calls", peers, calls)
		}
		time.Sleep(peerTime)
		if peers, _ := kept(); peers != 0 {
			t.Errorf("after an hour, it knows %d processes", peers)
		}
	})
}

// A prompt call gives up when the bus does not take it, and earlier while that is known. Others
// wait.
func TestCallPromptly(t *testing.T) {
	for name, stop := range map[string]func(p *port){
		"failing": func(p *port) { p.err = errors.New("the bus is broken") },
		"silent":  func(p *port) { p.hung = make(chan struct{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1, 0, 0, 0)
				const patience = 50 * time.Millisecond
				a, p := open(t, n, "a", "1", func(c *Config) { c.Patience = patience })
				open(t, n, "b", "1", nil)
				prompt := func() error {
					_, err := a.CallPromptly(within(t, time.Second), "b", "get", nil)
					return err
				}
				for range 2 {
					if err := prompt(); err != nil {
						t.Fatal(err)
					}
					n.set(func() { stop(p) })
					for i, limit := range []time.Duration{patience, patience / stuckShare, patience / stuckShare} {
						began := time.Now()
						err := prompt()
						if !errors.Is(err, ErrNotTaken) || errors.Is(err, ErrUnheard) == errors.Is(err, ErrNoAnswer) {
							t.Errorf("call %d: %v", i, err)
						}
						if took := time.Since(began); took != limit {
							t.Errorf("call %d has taken %v", i, took)
						}
					}
					began := time.Now()
					_, err := a.Call(within(t, time.Second), "b", "get", nil)
					if took := time.Since(began); err == nil || took != time.Second {
						t.Errorf("another call has taken %v: %v", took, err)
					}
					n.set(func() {
						p.err = nil
						if p.hung != nil {
							close(p.hung)
							p.hung = nil
						}
					})
					time.Sleep(sendTimeout)
				}
			})
		})
	}
}
