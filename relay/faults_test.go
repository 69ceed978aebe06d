package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A record keeps the bodies that were executed.
type record struct {
	mu     sync.Mutex // guards bodies
	bodies []string
}

func (e *record) answer(_ context.Context, q Question) []byte {
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

// An answer for a process that is gone does not reach the next one of its name, though
// both have asked their first question.
func TestAnswerForPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		old, p := open(t, n, "a", "1", nil)
		open(t, n, "b", "1", func(c *Config) {
			c.Answer = func(_ context.Context, q Question) []byte {
				if string(q.Body) == "new" {
					time.Sleep(time.Second)
				}
				time.Sleep(time.Second)
				return q.Body
			}
		})
		go func() { _, _ = old.Ask(within(t, time.Minute), "b", "get", []byte("old")) }()
		time.Sleep(time.Millisecond)
		p.unplug()
		late := 0
		next, _ := open(t, n, "a", "2", func(c *Config) { c.Late = func(string, string, []byte, time.Time) { late++ } })
		answer, err := next.Ask(within(t, time.Minute), "b", "get", []byte("new"))
		if err != nil || string(answer) != "new" {
			t.Errorf("Ask: %q, %v", answer, err)
		}
		time.Sleep(5 * time.Second)
		if late > 0 {
			t.Error("the answer for the old one was handed to the new one")
		}
	})
}

// What a process may have executed before it was replaced, the next one does not execute,
// and what nobody can have heard it does.
func TestQuestionForPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		var old, next record
		_, p := open(t, n, "b", "1", func(c *Config) { c.Answer = old.answer })
		n.set(func() { n.drop = func(from, _ string, _ []byte) bool { return from == "b" } })
		time.Sleep(time.Second)
		ended := make(chan error)
		go func() {
			_, err := a.Ask(within(t, time.Minute), "b", "cancel", []byte("first"))
			ended <- err
		}()
		time.Sleep(time.Second)
		p.unplug()
		n.set(func() { n.drop = nil })
		unheard := make(chan error)
		go func() {
			_, err := a.Ask(within(t, time.Minute), "b", "cancel", []byte("second"))
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

// hold keeps messages to a node back, as a process that is stopped does not read them,
// and lets them go, all at once, when it is called again.
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

// A process was stopped for a minute, and finds questions whose askers have gone, and one
// whose asker still waits.
func TestStoppedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		var done record
		b, _ := open(t, n, "b", "1", func(c *Config) { c.Answer = done.answer })
		if _, err := a.Ask(within(t, time.Second), "b", "x", []byte("before")); err != nil {
			t.Fatal(err)
		}
		release := n.hold("b")
		ended := make(chan error)
		go func() {
			_, err := a.Ask(within(t, 100*time.Second), "b", "x", []byte("patient"))
			ended <- err
		}()
		_, err := a.Ask(within(t, 5*time.Second), "b", "x", []byte("gone"))
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

// Copies that come when their question has been forgotten are not executed again.
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
		_, err := a.Ask(within(t, 3*time.Second), "b", "x", []byte("once"))
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

// The clock of a suspended machine stands still. All that it sends afterwards looks late,
// and is answered all the same.
func TestClockStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 10*time.Millisecond)
		a, _ := open(t, n, "a", "1", nil)
		b, _ := open(t, n, "b", "1", nil)
		ask := func(from *Relay, node string) {
			t.Helper()
			began := time.Now()
			if _, err := from.Ask(within(t, 3*time.Second), node, "x", nil); err != nil || time.Since(began) > time.Second {
				t.Errorf("an answer after %v: %v", time.Since(began), err)
			}
		}
		time.Sleep(2 * time.Hour)
		ask(a, "b")
		ask(b, "a")
		a.mu.Lock()
		a.start = a.start.Add(time.Hour) // its clock is an hour behind what it would be
		a.mu.Unlock()
		ask(a, "b")
		ask(b, "a")
		if s := b.Stats(); s.Expired != 1 {
			t.Errorf("Stats: %+v", s)
		}
		ask(a, "b")
		if s := b.Stats(); s.Expired != 1 {
			t.Errorf("it was not believed: %+v", s)
		}
	})
}

// A clock stands still for a moment, too short for what its machine sends to look late.
// Questions from there have less time for a minute or two, and then all of it again; and
// what is late is late also after a long silence.
func TestClockStoodStillForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		var left time.Duration
		b, _ := open(t, n, "b", "1", func(c *Config) {
			c.Answer = func(ctx context.Context, _ Question) []byte {
				deadline, _ := ctx.Deadline()
				left = time.Until(deadline)
				return nil
			}
		})
		ask := func() error {
			_, err := a.Ask(within(t, 2*time.Second), "b", "x", nil)
			return err
		}
		for second := range 200 {
			if second == 60 {
				a.mu.Lock()
				a.start = a.start.Add(1500 * time.Millisecond)
				a.mu.Unlock()
			}
			if err := ask(); err != nil {
				t.Fatal(err)
			}
			if (second < 60 || second >= 180) && left < 1990*time.Millisecond {
				t.Errorf("in second %d a question of 2 s has %v", second, left)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(30 * time.Minute)
		release := n.hold("b")
		wantError(t, ask(), ErrNoAnswer)
		time.Sleep(3 * time.Second)
		expired := b.Stats().Expired
		release()
		synctest.Wait()
		if s := b.Stats(); s.Expired == expired {
			t.Errorf("Stats: %+v", s)
		}
	})
}

// Processes come and go, and questions stay without an answer: in time, nothing of them is
// kept.
func TestNothingIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", func(c *Config) { c.Late = func(string, string, []byte, time.Time) {} })
		for i := range 3 {
			b, p := open(t, n, fmt.Sprint("b", i), "1", nil)
			if _, err := b.Ask(within(t, time.Second), "a", "x", nil); err != nil {
				t.Error(err)
			}
			n.set(func() { n.drop = func(from, _ string, _ []byte) bool { return from != "a" } })
			_, err := a.Ask(within(t, time.Second), fmt.Sprint("b", i), "x", nil)
			wantError(t, err, ErrNoAnswer)
			n.set(func() { n.drop = nil })
			p.unplug()
		}
		kept := func() (peers, questions int) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.peers), len(a.abandoned)
		}
		if peers, questions := kept(); peers != 3 || questions != 3 {
			t.Errorf("it knows %d processes and %d questions", peers, questions)
		}
		time.Sleep(abandonedTime + 2*sweepEvery)
		if peers, questions := kept(); peers != 3 || questions != 0 {
			t.Errorf("after a minute, it knows %d processes and %d questions", peers, questions)
		}
		time.Sleep(peerTime)
		if peers, _ := kept(); peers != 0 {
			t.Errorf("after an hour, it knows %d processes", peers)
		}
	})
}

// With Close, who asks learns that there will be no answer, and who is being answered
// still gets his.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		wait := func(c *Config) {
			c.Answer = func(ctx context.Context, _ Question) []byte {
				<-ctx.Done()
				return fmt.Append(nil, context.Cause(ctx))
			}
		}
		a, _ := open(t, n, "a", "1", wait)
		b, _ := open(t, n, "b", "1", wait)
		ended := make(chan error)
		go func() {
			_, err := b.Ask(t.Context(), "a", "wait", nil)
			ended <- err
		}()
		time.AfterFunc(time.Second, b.Close)
		answer, err := a.Ask(within(t, time.Minute), "b", "wait", nil)
		if err != nil || string(answer) != ErrClosed.Error() {
			t.Errorf("Ask: %q, %v", answer, err)
		}
		err = <-ended
		wantError(t, err, ErrNoAnswer)
		if !errors.Is(err, ErrClosed) {
			t.Errorf("Ask: %v", err)
		}
		b.Close()
		_, err = b.Ask(t.Context(), "a", "get", nil)
		wantError(t, err, ErrUnheard)
		if err := b.Tell("a", "get", nil); !errors.Is(err, ErrClosed) {
			t.Errorf("Tell: %v", err)
		}
		_, err = a.Ask(within(t, time.Second), "b", "get", nil)
		wantError(t, err, ErrNoAnswer)
	})
}

// Close does not wait for a bus that hangs.
func TestCloseWithHungBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(Config{Bus: hungBus{}, Node: "a", Incarnation: "1", Answer: func(context.Context, Question) []byte { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			if err := a.Tell(fmt.Sprint("node ", i%10), "x", make([]byte, pieceSize)); err != nil {
				t.Error(err)
			}
		}
		began := time.Now()
		a.Close()
		if took := time.Since(began); took > sendTimeout {
			t.Errorf("Close took %v", took)
		}
	})
}

type hungBus struct{}

func (hungBus) Listen(func([]byte)) error { return nil }

func (hungBus) Send(ctx context.Context, _ string, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		var got [3]record
		var relays []*Relay
		for i, node := range []string{"a", "b", "c"} {
			r, _ := open(t, n, node, "1", func(c *Config) {
				c.Answer = func(ctx context.Context, q Question) []byte {
					if !q.Told || q.From != "a" {
						t.Errorf("got %+v", q)
					}
					return got[i].answer(ctx, q)
				}
			})
			relays = append(relays, r)
		}
		for _, telling := range []struct{ node, body string }{{"", "all"}, {"b", "one"}, {"absent", "none"}} {
			if err := relays[0].Tell(telling.node, "x", []byte(telling.body)); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		got[0].want(t)
		got[1].want(t, "all", "one")
		got[2].want(t, "all")
		if relays[0].Tell("b", "x", make([]byte, pieceSize+1)) == nil {
			t.Error("a telling that is too long was sent")
		}
	})
}

// What gathers while a message is on its way goes as one.
func TestBatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 10*time.Millisecond)
		a, p := open(t, n, "a", "1", nil)
		b, _ := open(t, n, "b", "1", nil)
		slow := &slowBus{Bus: p}
		a.cfg.Bus = slow
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, err := a.Ask(within(t, time.Second), "b", "get", make([]byte, 500)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if sends := slow.sends.Load(); sends > 8 {
			t.Errorf("1000 questions took %d messages", sends)
		}
		if s := b.Stats(); s.Answered != 1000 {
			t.Errorf("Stats: %+v", s)
		}
	})
}

type slowBus struct {
	Bus
	sends atomic.Int64
}

func (b *slowBus) Send(ctx context.Context, node string, message []byte) error {
	b.sends.Add(1)
	time.Sleep(10 * time.Millisecond)
	return b.Bus.Send(ctx, node, message)
}

// While the bus takes nothing, memory is bounded.
func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(Config{Bus: hungBus{}, Node: "a", Incarnation: "1", Limits: Limits{MaxBytes: MaxBody},
			Answer: func(context.Context, Question) []byte { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		refused := 0
		for range 500 {
			if a.Tell("b", "x", make([]byte, pieceSize)) != nil {
				refused++
			}
		}
		if s := a.Stats(); s.Queued > MaxBody || refused < 300 || s.Dropped != int64(refused) {
			t.Errorf("%d refused, %+v", refused, s)
		}
	})
}

func TestConfig(t *testing.T) {
	_, err := New(Config{Limits: Limits{MaxAsking: -1, MaxBytes: 1}})
	if err == nil || bytes.Count([]byte(err.Error()), []byte("must")) < 4 {
		t.Errorf("New: %v", err)
	}
}
