package relay

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		var got [3]record
		var relays []*Relay
		for i, node := range []string{"a", "b", "c"} {
			r, _ := open(t, n, node, "1", func(c *Config) {
				c.Answer = func(ctx context.Context, q Call) []byte {
					if !q.Told || q.From != "a" {
						t.Errorf("got %+v", q)
					}
					return got[i].answer(ctx, q)
				}
			})
			relays = append(relays, r)
		}
		for _, notification := range []struct{ node, body string }{{"", "all"}, {"b", "one"}, {"absent", "none"}} {
			if err := relays[0].Send(notification.node, "x", []byte(notification.body)); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		got[0].want(t)
		got[1].want(t, "all", "one")
		got[2].want(t, "all")
		if relays[0].Send("b", "x", make([]byte, pieceSize+1)) == nil {
			t.Error("a telling that is too long was sent")
		}
	})
}

// Frames that gather while a message is in flight go as one message.
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
				if _, err := a.Call(within(t, time.Second), "b", "get", make([]byte, 500)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if sends := slow.sends.Load(); sends > 8 {
			t.Errorf("1000 calls took %d messages", sends)
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

// While the bus accepts no message, memory is bounded.
func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(Config{Bus: hungBus{}, Node: "a", Incarnation: "1", Limits: Limits{MaxBytes: MaxBody},
			Answer: func(context.Context, Call) []byte { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		refused := 0
		for range 500 {
			if a.Send("b", "x", make([]byte, pieceSize)) != nil {
				refused++
			}
		}
		if s := a.Stats(); s.Queued > MaxBody || refused < 300 || s.Dropped != int64(refused) {
			t.Errorf("%d refused, %+v", refused, s)
		}
	})
}

func TestConfig(t *testing.T) {
	_, err := New(Config{Limits: Limits{MaxCalls: -1, MaxBytes: 1}})
	if err == nil || bytes.Count([]byte(err.Error()), []byte("must")) < 4 {
		t.Errorf("New: %v", err)
	}
}

// Notifications in order are answered in the order of their sender, one at a time. One that hangs
// keeps a bounded number of them waiting, and no others.
func TestNotificationsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, 0, 0, 0)
		sender, _ := open(t, n, "a", "1", nil)
		other, _ := open(t, n, "c", "1", nil)
		hang := make(chan struct{})
		var got, apart record
		b, _ := open(t, n, "b", "1", func(c *Config) {
			c.InOrder = func(method string) bool { return method == "ordered" }
			c.Answer = func(ctx context.Context, q Call) []byte {
				switch {
				case q.From == "a" && string(q.Body) == "hang":
					<-hang
				case q.Method == "ordered":
					return got.answer(ctx, q)
				}
				return apart.answer(ctx, q)
			}
		})
		send := func(r *Relay, method, body string) {
			t.Helper()
			if err := r.Send("b", method, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		var all []string
		for i := range 1000 {
			all = append(all, fmt.Sprint(i))
			send(sender, "ordered", all[i])
		}
		time.Sleep(time.Second)
		got.want(t, all...)

		send(sender, "ordered", "hang")
		for range maxInbox + 10 {
			send(sender, "ordered", "waits")
		}
		send(sender, "apart", "at once")
		send(other, "ordered", "of another process")
		time.Sleep(time.Second)
		apart.want(t, "at once")
		got.want(t, append(all, "of another process")...)
		if s := b.Stats(); s.Refused < 9 || s.Refused > 11 {
			t.Errorf("Stats: %+v", s)
		}
		close(hang)
		time.Sleep(time.Second)
		if s := b.Stats(); s.Answering != 0 || b.inTurn != 0 || int(s.Answered) != 1000+maxInbox+10+3-int(s.Refused) {
			t.Errorf("%d bytes wait, %+v", b.inTurn, s)
		}
	})
}
