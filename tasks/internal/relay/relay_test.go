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

// wantError checks that an error of Call is one, and none of those that exclude it.
func wantError(t *testing.T, err, want error) {
	t.Helper()
	kinds := 0
	for _, e := range []error{ErrUnheard, ErrOverloaded, ErrNoAnswer} {
		if errors.Is(err, e) {
			kinds++
		}
	}
	if !errors.Is(err, want) || kinds != 1 {
		t.Fatalf("Call: %v, want %v", err, want)
	}
}

func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		open(t, n, "b", "1", nil)
		for _, size := range []int{0, 1, pieceSize, pieceSize + 1, 16 << 20, MaxBody - 4} {
			body := bytes.Repeat([]byte("lapse"), size/5+1)[:size]
			answer, err := a.Call(within(t, time.Minute), "b", "get", body)
			if err != nil || !bytes.Equal(answer, append([]byte("get:"), body...)) {
				t.Fatalf("a body of %d bytes: an answer of %d, %v", size, len(answer), err)
			}
		}
		if n.most > messageSize+frameSize+maxHeader {
			t.Errorf("a message has %d bytes", n.most)
		}
		if s := a.Stats(); s.Asked != 6 || s.Resent != 0 || s.Asking != 0 {
			t.Errorf("Stats: %+v", s)
		}
	})
}

// Every call is executed exactly once, or not at all if Call returns ErrUnheard, however badly
// the bus behaves.
func TestOnce(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(seed, 0.3, 0.3, 400*time.Millisecond)
			var mu sync.Mutex
			executed := map[string]int{}
			answer := func(_ context.Context, q Call) []byte {
				mu.Lock()
				executed[string(q.Body[:12])]++
				pause := time.Duration(len(executed)%50) * 10 * time.Millisecond
				mu.Unlock()
				time.Sleep(pause)
				return q.Body
			}
			var relays []*Relay
			for _, node := range []string{"a", "b", "c"} {
				r, _ := open(t, n, node, node+"1", func(c *Config) { c.Answer = answer })
				relays = append(relays, r)
			}
			time.Sleep(2 * restartMargin)
			nodes := []string{"b", "c", "a"}
			var wg sync.WaitGroup
			var answered atomic.Int64
			for i := range 600 {
				wg.Go(func() {
					body := fmt.Appendf(nil, "%d-%010d", i%3, i)
					if i%50 == 0 {
						body = append(body, make([]byte, 500_000)...)
					}
					got, err := relays[i%3].Call(within(t, 10*time.Second), nodes[i%3], "method", body)
					mu.Lock()
					times := executed[string(body[:12])]
					mu.Unlock()
					switch {
					case err == nil && times == 1 && bytes.Equal(got, body):
						answered.Add(1)
					case errors.Is(err, ErrNoAnswer) && times <= 1:
					default:
						t.Errorf("seed %d: call %d was executed %d times: %v", seed, i, times, err)
					}
				})
			}
			wg.Wait()
			if answered.Load() < 570 {
				t.Errorf("seed %d: only %d were answered", seed, answered.Load())
			}
			time.Sleep(time.Minute)
			for _, r := range relays {
				if s := r.Stats(); s.Garbage != 0 || s.Remembered != 0 || s.RememberedBytes != 0 || s.Queued != 0 || s.Answering != 0 || s.Repeats == 0 || r.working != 0 {
					t.Errorf("seed %d: %+v", seed, s)
				}
			}
			for id, times := range executed {
				if times != 1 {
					t.Errorf("seed %d: %s was executed %d times", seed, id, times)
				}
			}
		})
	}
}

// No node is there: the call was not executed. A node may be there: the outcome is unknown.
func TestUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, p := open(t, n, "a", "1", nil)
		call := func() error {
			_, err := a.Call(within(t, time.Second), "b", "get", nil)
			return err
		}
		err := call()
		wantError(t, err, ErrUnheard)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Call: %v, which does not tell why", err)
		}
		n.set(func() { p.err = errors.New("the bus is broken") })
		wantError(t, call(), ErrNoAnswer)
		n.set(func() { p.err = nil })
		open(t, n, "b", "1", nil)
		n.set(func() { n.drop = func(string, string, []byte) bool { return true } })
		wantError(t, call(), ErrNoAnswer)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = a.Call(ended, "b", "get", nil)
		wantError(t, err, ErrUnheard)
		_, err = a.Call(t.Context(), "a", "get", nil)
		wantError(t, err, ErrUnheard)
		_, err = a.Call(t.Context(), "b", "get", make([]byte, MaxBody+1))
		wantError(t, err, ErrUnheard)
		if s := a.Stats(); s.Unheard != 1 || s.Unanswered != 2 || s.Failed == 0 {
			t.Errorf("Stats: %+v", s)
		}
	})
}

// A node that begins to listen while it is being called answers.
func TestListensLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		time.AfterFunc(1500*time.Millisecond, func() { open(t, n, "b", "1", nil) })
		if _, err := a.Call(within(t, 10*time.Second), "b", "get", nil); err != nil {
			t.Error(err)
		}
	})
}

// A long answer is awaited without many copies of the call, and its context ends with the
// caller's.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		var took time.Duration
		open(t, n, "b", "1", func(c *Config) {
			c.Answer = func(ctx context.Context, q Call) []byte {
				began := time.Now()
				select {
				case <-ctx.Done():
				case <-time.After(30 * time.Second):
				}
				took = time.Since(began)
				time.Sleep(time.Millisecond) // the caller has left first
				return nil
			}
		})
		if _, err := a.Call(within(t, time.Minute), "b", "wait", nil); err != nil {
			t.Fatal(err)
		}
		if s := a.Stats(); took != 30*time.Second || s.Resent > 15 {
			t.Errorf("after %v there were %d copies", took, s.Resent)
		}
		_, err := a.Call(within(t, 3*time.Second), "b", "wait", nil)
		synctest.Wait()
		wantError(t, err, ErrNoAnswer)
		if took != 3*time.Second {
			t.Errorf("it was executed for %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = a.Call(ctx, "b", "wait", nil)
		synctest.Wait()
		wantError(t, err, ErrNoAnswer)
		if took != time.Second {
			t.Errorf("withdrawn, it was executed for %v", took)
		}
	})
}

// An answer that comes when its caller has left is passed on, once, be it short or long.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 1, 0)
		var mu sync.Mutex
		var got []string
		a, _ := open(t, n, "a", "1", func(c *Config) {
			c.Late = func(node, method string, answer []byte, called time.Time) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprint(node, " ", method, " ", len(answer)))
				if age := time.Since(called); age < time.Second || age > 2*time.Second {
					t.Errorf("it was asked for %v ago", age)
				}
			}
		})
		open(t, n, "b", "1", func(c *Config) {
			c.Answer = func(_ context.Context, q Call) []byte {
				time.Sleep(time.Second)
				if q.Method == "much" {
					return make([]byte, 1<<20)
				}
				return []byte("x")
			}
		})
		for _, method := range []string{"little", "much"} {
			if _, err := a.Call(within(t, 2*time.Second), "b", method, nil); err != nil {
				t.Error(err)
			}
			_, err := a.Call(within(t, time.Second/2), "b", method, nil)
			wantError(t, err, ErrNoAnswer)
			time.Sleep(10 * time.Second)
		}
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"b little 1", "b much 1048576"}; !slices.Equal(got, want) {
			t.Errorf("Late got %q, want %q", got, want)
		}
	})
}

// Calls beyond the limits are refused, and not executed later by a copy.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 1, 300*time.Millisecond)
		a, _ := open(t, n, "a", "1", func(c *Config) { c.MaxCalls = 20 })
		var executed atomic.Int64
		b, _ := open(t, n, "b", "1", func(c *Config) {
			c.MaxAnswering = 5
			c.Answer = func(ctx context.Context, _ Call) []byte {
				executed.Add(1)
				<-ctx.Done()
				return nil
			}
		})
		// Until then b cannot know whether a copy is the first, if that has overtaken it.
		time.Sleep(2 * restartMargin) // fake
		var here, there, unknown atomic.Int64
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				_, err := a.Call(within(t, 5*time.Second), "b", "wait", nil)
				switch {
				case errors.Is(err, ErrOverloaded) && b.Stats().Refused == 0:
					here.Add(1)
				case errors.Is(err, ErrOverloaded):
					there.Add(1)
				case errors.Is(err, ErrNoAnswer):
					unknown.Add(1)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if here.Load() != 10 || there.Load() != 15 || unknown.Load() != 5 || executed.Load() != 5 {
			t.Errorf("%d refused here, %d there, %d unknown, %d executed", here.Load(), there.Load(), unknown.Load(), executed.Load())
		}
	})
}

// Without room to remember it, nothing is executed.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		b, _ := open(t, n, "b", "1", func(c *Config) {
			c.MaxRemembered, c.MaxBytes = 3, MaxBody
			c.Answer = func(_ context.Context, q Call) []byte { return make([]byte, MaxBody/2) }
		})
		for i := range 5 {
			_, err := a.Call(within(t, 3*time.Second), "b", "get", nil)
			if i < 3 && err != nil {
				t.Error(err)
			}
			if i >= 3 {
				wantError(t, err, ErrNoAnswer)
				break
			}
		}
		if s := b.Stats(); s.Answered != 3 || s.RememberedBytes != MaxBody {
			t.Errorf("Stats: %+v", s)
		}
		time.Sleep(10 * time.Second)
		if _, err := a.Call(within(t, 3*time.Second), "b", "get", nil); err != nil {
			t.Error(err)
		}
	})
}

// An answer that could not be kept is not given twice, nor is its call executed again.
func TestForgottenAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		noAnswers := func(from, _ string, _ []byte) bool { return from == "b" }
		b, _ := open(t, n, "b", "1", func(c *Config) {
			c.MaxBytes = MaxBody
			c.Answer = func(_ context.Context, q Call) []byte { return make([]byte, MaxBody) }
		})
		n.set(func() { n.drop = noAnswers })
		ended := make(chan error)
		go func() {
			_, err := a.Call(within(t, time.Minute), "b", "get", nil)
			ended <- err
		}()
		time.Sleep(time.Second)
		n.set(func() { n.drop = nil })
		if _, err := a.Call(within(t, time.Minute), "b", "get", nil); err != nil {
			t.Error(err)
		}
		wantError(t, <-ended, ErrNoAnswer)
		if s := b.Stats(); s.Answered != 2 {
			t.Errorf("Stats: %+v", s)
		}
	})
}

// A call about which the other node sends nothing is given up after Config.Silence, however
// long its caller would wait; one that is being executed, or whose body is being fetched, is not.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silence = 2 * time.Second
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", func(c *Config) { c.Silence = silence })
		open(t, n, "b", "1", func(c *Config) {
			c.Answer = func(_ context.Context, q Call) []byte {
				time.Sleep(10 * silence)
				return q.Body
			}
		})
		large := make([]byte, 8*pieceSize)
		for _, body := range [][]byte{nil, large} {
			if answer, err := a.Call(within(t, time.Minute), "b", "work", body); err != nil || len(answer) != len(body) {
				t.Errorf("Call of a node that is working: %d bytes, %v", len(answer), err)
			}
		}
		for _, c := range []struct {
			what string
			drop func(from, to string, message []byte) bool
		}{
			{"no message arrives", func(_, to string, _ []byte) bool { return to == "b" }},
			{"mute", func(from, _ string, _ []byte) bool { return from == "b" }},
			{"mute in the middle of its answer", func(from, _ string, message []byte) bool { return from == "b" && len(message) > pieceSize }},
		} {
			n.set(func() { n.drop = c.drop })
			began := time.Now()
			_, err := a.Call(within(t, time.Minute), "b", "work", large)
			wantError(t, err, ErrNoAnswer)
			most := 2 * silence
			if c.drop("b", "a", nil) || c.drop("a", "b", nil) {
				most = silence
			} else {
				most += 10 * silence
			}
			if took := time.Since(began); took < silence || took > most {
				t.Errorf("%s: given up after %v", c.what, took)
			}
			n.set(func() { n.drop = nil })
			time.Sleep(time.Minute)
		}
		began := time.Now()
		_, err := a.Call(within(t, time.Minute), "absent", "work", nil)
		wantError(t, err, ErrUnheard)
		if took := time.Since(began); took != silence {
			t.Errorf("absent: given up after %v", took)
		}
	})
}
