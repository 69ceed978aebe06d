package respapi_test

import (
	"bytes"
	"io"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// A subscriber of the channel of one key is a receiver of that key alone.
func TestReceiverOfOneKey(t *testing.T) {
	r := newRig(t, Config{Notify: new("KEx")}, tasks.Config{})
	r.await("the topic is set", r.kindIs("expired", KindKeyevent))
	w := r.dial()
	w.ask("*3 subscribe __keyspace@0__:k:00003 :1", "SUBSCRIBE", "__keyspace@0__:k:00003")
	keys := r.wave("k", 10)
	w.want("*3 message __keyspace@0__:k:00003 expired")
	r.await("one is settled", func() bool { n := r.figures("expired"); return n.Delivered == 1 && n.Ready == 9 })
	delete(keys, "k:00003")
	r.subscribed().getAll(keys)
}

// What a receiver that stands still was sent is settled only as far as its machine has it. When it
// is killed, all that it has not read comes again.
func TestStuckReceiverIsKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, tasks.Config{})
	slow := r.slowlySubscribed()
	keys := r.wave("k", 10_000)
	r.await("it is no receiver", func() bool { return r.server.Receivers() == 0 })
	message := len("*3\r\n$7\r\nmessage\r\n$22\r\n" + expiredChannel + "\r\n$7\r\nk:00000\r\n")
	settled, confirmed := r.figures("expired").Delivered, r.server.Confirmed()
	if settled*int64(message) > confirmed {
		t.Errorf("%d events of %d bytes are settled, and %d bytes confirmed", settled, message, confirmed)
	}
	slow.kill()
	r.subscribed().getAll(keys)
}

// A receiver that reads little at a time does not hold up another one.
func TestFastestReceiverPaces(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, tasks.Config{})
	slow, fast := r.slowlySubscribed(), r.subscribed()
	read := make(chan struct{})
	go func() {
		defer close(read)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for err := error(nil); err == nil; _, err = io.CopyN(io.Discard, slow.in, 100) {
			<-tick.C
		}
	}()
	fast.getAll(r.wave("k", 10_000))
	slow.nc.Close()
	<-read
}

// Events that no one has read, and no receiver is there for, do not keep others waiting.
func TestUnreadEventsOfAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Notify: new("KEx")}, tasks.Config{})
	r.await("the topic is set", r.kindIs("expired", KindKeyevent))
	a, b, settled := r.receiver("__keyspace@0__:a*"), r.receiver("__keyspace@0__:b*"), int64(0)
	wave := func(prefix string, n int) map[string]bool {
		keys := r.wave(prefix, n)
		settled += int64(n)
		r.await("they are settled", func() bool { return r.figures("expired").Delivered == settled })
		return keys
	}
	for _, prefix := range []string{"aa", "ab", "ac", "ad"} {
		wave(prefix, 300)
	}
	a.kill()
	r.await("those of the one are doubted", func() bool { return r.server.CountDoubted() > 1000 })
	keys := wave("b", 100)
	b.kill()
	r.await("those of the other are, too", func() bool { return r.server.Receivers() == 0 })
	r.receiver("__keyspace@0__:b*").getAll(maps.Clone(keys))
}

// The end of the server says how many events it does not publish again.
func TestEndTellsUnreadEvents(t *testing.T) {
	var log lockedBuffer
	r := newRig(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, tasks.Config{})
	r.slowlySubscribed()
	r.wave("k", 10_000)
	r.await("some are settled", func() bool { return r.figures("expired").Delivered > 0 })
	if err := r.server.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "not published again: the server ends\" events=") || strings.Contains(text, "they are published again") {
		t.Errorf("it logs %s", text)
	}
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// What receivers of two nodes have not read that die one after the other comes again: each node
// relies upon the receivers of the other one only as long as these are there.
func TestReceiversOfTwoNodesDie(t *testing.T) {
	t.Parallel()
	nodes, _ := newFleet(t, 2, Config{})
	nodes[0].await("the topic is set", nodes[0].kindIs("expired", KindKeyevent))
	first, second := nodes[0].subscribed(), nodes[1].subscribed()
	for _, n := range nodes {
		n.await("each node knows of the receiver of the other", func() bool { return n.server.WantedAt() == 1 })
	}
	keys := nodes[0].wave("k", 2000)
	nodes[0].await("all are settled", func() bool { return nodes[0].figures("expired").Delivered == 2000 })
	first.kill()
	nodes[1].await("the other node knows", func() bool { return nodes[1].server.WantedAt() == 0 })
	second.kill()
	nodes[1].subscribed().getAll(keys)
}
