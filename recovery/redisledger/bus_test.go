package redisledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A mailbox holds the messages that a node has received.
type mailbox struct {
	l   *Ledger
	mu  sync.Mutex // guards got
	got []string
}

// listening opens a node whose ledger listens.
func listening(t *testing.T, v *lives, node string) *mailbox {
	t.Helper()
	opts := v.opts
	v.opts.Node, v.opts.Shards = node, 1
	m := &mailbox{l: v.open(t)}
	v.opts = opts
	adopt(t, m.l)
	if err := m.l.Listen(func(message []byte) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.got = append(m.got, string(message))
	}); err != nil {
		t.Fatalf("Listen: %v", err)
	}
	return m
}

func (m *mailbox) has(message string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.got, message)
}

func (m *mailbox) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.got)
}

// exchange sends a message from one node to the other until it has arrived.
func exchange(t *testing.T, from, to *mailbox, message string) {
	t.Helper()
	eventually(t, "the message has come", func() bool {
		_ = from.l.Send(t.Context(), to.l.opts.Node, []byte(message))
		return to.has(message)
	})
}

// kinds are all kinds of Redis, each with the options of a ledger.
var kinds = map[string]func(t *testing.T) *lives{
	"Standalone": func(t *testing.T) *lives { return newLives(redistest.Start(t).URL()) },
	"Sentinel":   func(t *testing.T) *lives { return newLives(redistest.StartSentinel(t).URL()) },
	"Cluster":    func(t *testing.T) *lives { return newLives(redistest.StartCluster(t).URL()) },
	"Cluster before sharded channels": func(t *testing.T) *lives {
		v := newLives(redistest.StartCluster(t).URL())
		v.opts.shardedSince = "99"
		return v
	},
}

func TestBus(t *testing.T) {
	t.Parallel()
	for name, start := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := start(t)
			a, b, c := listening(t, v, "a"), listening(t, v, "b"), listening(t, v, "c")
			large := strings.Repeat("\r\n\x00", 100_000)
			for _, m := range []struct{ node, body string }{{"b", "to b"}, {"", "to all"}, {"b", large}, {"c", ""}} {
				if err := a.l.Send(t.Context(), m.node, []byte(m.body)); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "all has come", func() bool {
				return b.has("to b") && b.has(large) && b.has("to all") && c.has("to all") && c.has("")
			})
			if len(a.got) > 0 || len(b.got) != 3 || len(c.got) != 2 {
				t.Errorf("a has got %d, b %d, c %d", len(a.got), len(b.got), len(c.got))
			}
			err := a.l.Send(t.Context(), "absent", nil)
			if sure := name == "Standalone"; errors.Is(err, recovery.ErrUnheard) != sure {
				t.Errorf("a message to an absent node: %v", err)
			}
			if err := a.l.Listen(func([]byte) {}); err == nil {
				t.Error("a ledger listens twice")
			}
		})
	}
}

// A node that listens at a replica, as after a failover, gets messages that are sent to the master,
// though the master reports no listener. Such a message does not count as unheard.
func TestSendToAListenerAtAReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	a := listening(t, newLives(master.URL()), "a")
	if err := a.l.Send(t.Context(), "b", nil); !errors.Is(err, recovery.ErrUnheard) {
		t.Errorf("without a replica: %v", err)
	}
	replica := redistest.StartReplica(t, master)
	client := redis.NewClient(&redis.Options{Addr: replica.Addr})
	defer client.Close()
	ps := client.Subscribe(t.Context(), a.l.keys.BusOf("b"))
	defer ps.Close()
	if _, err := ps.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.l.Send(t.Context(), "b", []byte("to b")); err != nil {
		t.Errorf("to a listener at a replica: %v", err)
	}
	if got, err := ps.ReceiveMessage(t.Context()); err != nil || got.Payload != "to b" {
		t.Errorf("the replica passes on %v, %v", got, err)
	}
}

// A message for which Redis was down was received by no node. The client of a cluster has tried
// several times, and does not report whether it sent the first one.
func TestSendWithoutRedis(t *testing.T) {
	t.Parallel()
	server, cluster := redistest.Start(t), redistest.StartCluster(t)
	for url, sure := range map[string]bool{server.URL(): true, cluster.URL(): false} {
		l := listening(t, newLives(url), "a").l
		for _, s := range append(cluster.Masters, server) {
			if s == server == sure {
				s.Kill()
			}
		}
		if err := l.Send(t.Context(), "b", nil); err == nil || errors.Is(err, recovery.ErrUnheard) != sure {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Two fleets in databases of one server get no messages of each other, though their nodes have
// the same names and all databases share Redis' channels.
func TestBusOfADatabase(t *testing.T) {
	server := redistest.Start(t)
	fleet := func(path string) (a, b *mailbox) {
		v := newLives(server.URL() + path)
		return listening(t, v, "a"), listening(t, v, "b")
	}
	a, b := fleet("")
	a1, b1 := fleet("/1")
	a2, b2 := fleet("/2")
	for _, m := range []*mailbox{a, a1, a2} {
		for _, node := range []string{"b", ""} {
			if err := m.l.Send(t.Context(), node, []byte(m.l.member.Self.Incarnation)); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "all has come", func() bool { return len(b.all()) >= 2 && len(b1.all()) >= 2 && len(b2.all()) >= 2 })
	for from, to := range map[*mailbox]*mailbox{a: b, a1: b1, a2: b2} {
		exchange(t, from, to, "the last") // after any other that may have come
		for _, message := range to.all() {
			if message != from.l.member.Self.Incarnation && message != "the last" {
				t.Errorf("a message of database %d has come from another", to.l.keys.DB)
			}
		}
		if got := from.all(); len(got) > 0 {
			t.Errorf("the sender has got %d", len(got))
		}
	}
}

// The channels that nodes in a cluster use are sharded, where the version has sharded channels.
func TestShardedChannels(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	m := listening(t, newLives(cluster.URL()), "a")
	if n := cluster.Master(m.l.keys.BusOf("a")).Do("pubsub", "shardchannels"); !slices.Contains(n.([]any), any("lapse:bus:a")) {
		t.Errorf("sharded are %v", n)
	}
	// The servers were replaced by older ones, or the other way round.
	m.l.bus.UseSharded(false)
	eventually(t, "it listens the other way", func() bool {
		for _, master := range cluster.Masters {
			if slices.Contains(master.Do("pubsub", "channels").([]any), any("lapse:bus:a")) {
				return true
			}
		}
		return false
	})
}

func TestBusAfterRestart(t *testing.T) {
	server := redistest.Start(t)
	v := newLives(server.URL())
	a, b := listening(t, v, "a"), listening(t, v, "b")
	exchange(t, a, b, "before")
	server.Kill()
	if err := a.l.Send(t.Context(), "b", []byte("lost")); err == nil {
		t.Error("Send to a Redis that is gone succeeded")
	}
	server.Start()
	exchange(t, a, b, "after")
	exchange(t, b, a, "answer")
}

func TestBusAfterFailover(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinel(t)
	v := newLives(servers.URL())
	a, b := listening(t, v, "a"), listening(t, v, "b")
	exchange(t, a, b, "before")
	servers.FailOver()
	exchange(t, a, b, "after")
	exchange(t, b, a, "answer")
}

// The slot of a channel moves to another server, which does not break the connection.
func TestBusFollowsItsSlot(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	v := newLives(cluster.URL())
	a, b := listening(t, v, "a"), listening(t, v, "b")
	exchange(t, a, b, "before")
	cluster.BeginMove(b.l.keys.BusOf("b")).End()
	exchange(t, a, b, "after")
}

// A connection whose server is silent is closed, though it is not broken.
func TestBusWithDeadConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	v := newLives(server.URL())
	a := listening(t, v, "a")
	v.opts.URL = proxy.URL()
	b := listening(t, v, "b")
	exchange(t, a, b, "before")
	release := proxy.Hold() // connections made later work
	eventually(t, "there is another connection", func() bool {
		return len(server.Do("client", "list", "type", "pubsub").(string)) > 0 &&
			strings.Count(server.Do("client", "list", "type", "pubsub").(string), "\n") > 2
	})
	exchange(t, a, b, "after")
	release()
}

// A user that may not subscribe gets the error at once; doc.go lists what a user needs.
func TestBusUser(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "user lapse on >secret "+strings.ReplaceAll(minimalRules, "&lapse:bus*", "resetchannels"))
	l := oneShard("redis://lapse:secret@" + server.Addr).open(t)
	adopt(t, l)
	if err := l.Listen(func([]byte) {}); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("Listen: %v", err)
	}
	if err := l.Send(t.Context(), "b", nil); !errors.Is(err, recovery.ErrUnheard) || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("Send: %v", err)
	}

	rules := strings.NewReplacer("+publish", "+spublish", "+subscribe", "+ssubscribe", "+unsubscribe", "+sunsubscribe").Replace(minimalRules) + " +cluster"
	cluster := redistest.StartCluster(t, "user lapse on >secret "+rules)
	v := newLives(strings.Replace(cluster.URL(), "://", "://lapse:secret@", 1))
	exchange(t, listening(t, v, "a"), listening(t, v, "b"), "in a cluster")
}

// A node that stops listening gets what was sent before. What is sent later is unheard, where Redis
// can tell.
func TestStopListening(t *testing.T) {
	t.Parallel()
	for name, start := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := start(t)
			a, b := listening(t, v, "a"), listening(t, v, "b")
			exchange(t, a, b, "at first")
			messages := func() (n int) {
				for _, m := range b.all() {
					if m == "message" {
						n++
					}
				}
				return n
			}
			const senders = 8
			var sent atomic.Int64 // as far as the senders know, b gets them
			var all sync.WaitGroup
			over := make(chan struct{})
			for range senders {
				all.Go(func() {
					for {
						switch err := a.l.Send(t.Context(), "b", []byte("message")); {
						case err == nil:
							sent.Add(1)
						case !errors.Is(err, recovery.ErrUnheard):
							t.Error(err)
						}
						select {
						case <-over:
							return
						default:
						}
					}
				})
			}
			eventually(t, "messages come", func() bool { return messages() > 1000 })
			b.l.StopListening(t.Context())
			got := messages()
			close(over)
			all.Wait()
			b.l.StopListening(t.Context())
			if name == "Standalone" && int64(got) != sent.Load() {
				t.Errorf("%d of %d messages have come", got, sent.Load())
			}
			if late := messages() - got; late != 0 {
				t.Errorf("%d messages came after the end", late)
			}
			if err := a.l.Send(t.Context(), "b", nil); errors.Is(err, recovery.ErrUnheard) != (name == "Standalone") {
				t.Errorf("Send after the end: %v", err)
			}
		})
	}
}

// Listening ends also where Redis does not confirm it: in an outage, and if its user may not
// unsubscribe.
func TestStopListeningWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "user lapse on >secret "+strings.ReplaceAll(minimalRules, " +unsubscribe", ""))
	a := listening(t, newLives("redis://lapse:secret@"+server.Addr), "a")
	a.l.StopListening(t.Context())
	exchange(t, a, listening(t, newLives(server.URL()), "b"), "sending goes on")

	down := redistest.Start(t)
	c := listening(t, newLives(down.URL()), "c")
	down.Kill()
	c.l.StopListening(t.Context())
	proxy := redistest.NewProxy(t, server.Addr)
	d := listening(t, newLives(proxy.URL()), "d")
	defer proxy.Hold()()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	d.l.StopListening(ctx)
	if ctx.Err() == nil {
		t.Error("StopListening did not wait for Redis")
	}
}

// Close ends listening, also in an outage.
func TestBusEnds(t *testing.T) {
	for _, outage := range []bool{false, true} {
		t.Run(fmt.Sprint("outage ", outage), func(t *testing.T) {
			server := redistest.Start(t)
			before := goleak.IgnoreCurrent()
			m := listening(t, newLives(server.URL()), "a")
			if outage {
				server.Kill()
			}
			_ = m.l.Close()
			goleak.VerifyNone(t, before)
			if err := m.l.Listen(func([]byte) {}); !errors.Is(err, recovery.ErrClosed) {
				t.Errorf("Listen: %v", err)
			}
			if err := m.l.Send(t.Context(), "b", nil); !errors.Is(err, recovery.ErrClosed) {
				t.Errorf("Send: %v", err)
			}
		})
	}
}
