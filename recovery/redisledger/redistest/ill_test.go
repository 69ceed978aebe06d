package redistest

import (
	"context"
	"testing"
	"time"
)

// TestHalfOpen: present connections stall, and new ones work.
func TestHalfOpen(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr)
	c := through(t, p, 100*time.Millisecond)
	answers(t, c)
	end := p.HalfOpen()
	if c.Ping(t.Context()).Err() == nil {
		t.Error("the server has answered over a dead connection")
	}
	answers(t, c) // over a new one
	end()
	answers(t, c)
}

// TestUnheard: published messages do not arrive, and all other commands work.
func TestUnheard(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr)
	c := through(t, p, 5*time.Second)
	listener := c.Subscribe(t.Context(), "news")
	t.Cleanup(func() { _ = listener.Close() })
	if _, err := listener.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.SetUnheard(true)
	if n, err := c.Publish(t.Context(), "news", "1").Result(); err != nil || n != 1 {
		t.Fatalf("published to %d, %v", n, err)
	}
	if m, err := listener.ReceiveTimeout(t.Context(), 100*time.Millisecond); err == nil {
		t.Errorf("%v has arrived", m)
	}
	p.SetUnheard(false)
	soon(t, func() error {
		_, err := c.Publish(context.Background(), "news", "2").Result()
		if err == nil {
			_, err = listener.ReceiveTimeout(t.Context(), 100*time.Millisecond)
		}
		return err
	})
}

// TestDelay: data arrives late.
func TestDelay(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr)
	c := through(t, p, 5*time.Second)
	answers(t, c)
	p.SetDelay(50 * time.Millisecond)
	began := time.Now()
	if err := c.Ping(t.Context()).Err(); err != nil || time.Since(began) < 100*time.Millisecond {
		t.Errorf("answered %v after %v", err, time.Since(began))
	}
	p.SetDelay(0)
}
