package relay

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// With Close, a caller learns that there will be no answer, and a node whose call is being
// executed still gets its answer.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		wait := func(c *Config) {
			c.Answer = func(ctx context.Context, _ Call) []byte {
				<-ctx.Done()
				return fmt.Append(nil, context.Cause(ctx))
			}
		}
		a, _ := open(t, n, "a", "1", wait)
		b, _ := open(t, n, "b", "1", wait)
		ended := make(chan error)
		go func() {
			_, err := b.Call(t.Context(), "a", "wait", nil)
			ended <- err
		}()
		time.AfterFunc(time.Second, b.Close)
		answer, err := a.Call(within(t, time.Minute), "b", "wait", nil)
		if err != nil || string(answer) != ErrClosed.Error() {
			t.Errorf("Call: %q, %v", answer, err)
		}
		err = <-ended
		wantError(t, err, ErrNoAnswer)
		if !errors.Is(err, ErrClosed) {
			t.Errorf("Call: %v", err)
		}
		b.Close()
		_, err = b.Call(t.Context(), "a", "get", nil)
		wantError(t, err, ErrUnheard)
		if err := b.Send("a", "get", nil); !errors.Is(err, ErrClosed) {
			t.Errorf("Tell: %v", err)
		}
		_, err = a.Call(within(t, time.Second), "b", "get", nil)
		wantError(t, err, ErrUnheard)
	})
}

// A call that the bus has taken before its node stopped to listen is answered, however late the
// message is. Its caller must not wonder whether it was executed.
func TestCloseAnswersWhatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		b, _ := open(t, n, "b", "1", nil)
		for i := range 100 {
			n.set(func() { n.delay = 70 * time.Millisecond }) // less than the pause before a copy
			answered := make(chan error)
			go func() {
				_, err := a.Call(within(t, time.Minute), "b", "get", nil)
				answered <- err
			}()
			synctest.Wait()
			b.Close()
			n.set(func() { n.delay = 0 })
			if err := <-answered; err != nil {
				t.Errorf("Call: %v", err)
			}
			b, _ = open(t, n, "b", fmt.Sprint("later ", i), nil)
		}
	})
}

// A call whose body has to be fetched is refused while its node closes.
func TestCloseRefusesLargeCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		a, _ := open(t, n, "a", "1", nil)
		b, _ := open(t, n, "b", "1", nil)
		n.set(func() { n.delay = 70 * time.Millisecond })
		answered := make(chan error)
		began := time.Now()
		go func() {
			_, err := a.Call(within(t, time.Minute), "b", "get", make([]byte, pieceSize+1))
			answered <- err
		}()
		synctest.Wait()
		b.Close()
		wantError(t, <-answered, ErrOverloaded)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the refusal took %v", took)
		}
	})
}

// Close does not wait for a bus that hangs.
func TestCloseWithHungBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(Config{Bus: hungBus{}, Node: "a", Incarnation: "1", Answer: func(context.Context, Call) []byte { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			if err := a.Send(fmt.Sprint("node ", i%10), "x", make([]byte, pieceSize)); err != nil {
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

func (hungBus) StopListening(ctx context.Context) { <-ctx.Done() }

func (hungBus) Send(ctx context.Context, _ string, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}
