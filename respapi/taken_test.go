package respapi_test

import (
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// wave has n keys expire, and returns them.
func (r *rig) wave(prefix string, n int) map[string]bool {
	r.t.Helper()
	requests, keys := make([]tasks.Request, n), make(map[string]bool)
	for i := range requests {
		requests[i] = tasks.Request{ID: fmt.Sprintf("%s:%05d", prefix, i), Topic: "expired"}
		keys[requests[i].ID] = true
	}
	for len(requests) > 0 {
		some := min(len(requests), 1000)
		if _, err := r.scheduler.ScheduleBatch(r.t.Context(), requests[:some]); err != nil {
			r.t.Fatal(err)
		}
		requests = requests[some:]
	}
	return keys
}

// getAll reads messages until all keys have come, more than once perhaps.
func (w *wire) getAll(keys map[string]bool) {
	w.t.Helper()
	for len(keys) > 0 {
		for word := range strings.FieldsSeq(w.answer()) {
			delete(keys, strings.TrimPrefix(word, "__keyspace@0__:"))
		}
	}
}

// receiver returns a subscriber of a pattern.
func (r *rig) receiver(pattern string) *wire {
	r.t.Helper()
	w := r.dial()
	w.ask("*3 psubscribe "+pattern+" :1", "PSUBSCRIBE", pattern)
	return w
}

// A monitor hears of expiries and takes none from workers: they wait for a subscriber that names
// their channel.
func TestMonitorTakesNoEvents(t *testing.T) {
	for pattern, receives := range map[string]bool{
		"*": false, "__*": false, "__key*__:*": false, "*expired": false, "[_]_keyevent@0__:expired": false,
		"__keyevent@*": true, "__keyevent*__:expired": true, "__keyspace@0__:k*": true,
	} {
		r := newRig(t, Config{Notify: new("KEx")}, tasks.Config{})
		r.await("the topic is set", r.kindIs("expired", KindKeyevent))
		monitor := r.dial()
		monitor.ask("*3 psubscribe "+pattern+" :1", "PSUBSCRIBE", pattern)
		if !receives {
			r.await("the server follows what is due", func() bool { return r.scheduler.Stats().Subscriptions == 1 })
		}
		keys := r.wave("k", 100)
		if receives {
			monitor.getAll(keys)
			continue
		}
		monitor.getAll(maps.Clone(keys)) // it hears of them all the same
		r.await("all of them wait with "+pattern, func() bool { n := r.figures("expired"); return n.Ready == 100 && n.Delivered == 0 })
		r.subscribed().getAll(keys)
	}
}

// Monitors of all nodes hear what is due once, and once what receivers of other nodes get.
func TestMonitorsInAFleet(t *testing.T) {
	t.Parallel()
	nodes, _ := newFleet(t, 2, Config{})
	nodes[0].await("the topic is set", nodes[0].kindIs("expired", KindKeyevent))
	monitor := nodes[1].dial()
	monitor.ask("*3 psubscribe * :1", "PSUBSCRIBE", "*")
	nodes[0].await("the node knows of the monitor", func() bool { return nodes[0].server.WantedAt() == 1 })
	nodes[0].await("it follows what is due", func() bool { return nodes[0].scheduler.Stats().Subscriptions == 1 })
	keys := nodes[0].wave("k", 100)
	monitor.getAll(maps.Clone(keys))
	monitor.ask("*2 pong ", "PING")
	nodes[0].subscribed().getAll(maps.Clone(keys))
	monitor.getAll(keys)
	monitor.ask("*2 pong ", "PING")
}

// A client that ends before it has read everything leaves the rest to the next one.
func TestUnreadEventsComeAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, tasks.Config{})
	first := r.subscribed()
	keys := r.wave("k", 3000)
	for range 100 {
		delete(keys, strings.TrimPrefix(first.answer(), "*3 message "+expiredChannel+" "))
	}
	first.kill()
	r.subscribed().getAll(keys)
	if n := r.figures("expired"); n.Failed != 0 || n.Dead != 0 {
		t.Errorf("%d attempts have failed", n.Failed)
	}
}

// What a client has read before it left does not come again.
func TestReadEventsComeOnce(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	first := r.subscribed()
	first.getAll(r.wave("k", 500))
	first.nc.Close()
	r.await("it has left", func() bool { now, _ := r.server.Subscribers(); return now == 0 })
	if n := r.server.CountDoubted(); n != 0 {
		t.Errorf("%d events come again", n)
	}
}

// A subscriber that stands still is no receiver. Another one gets what it was sent, and what comes
// then. Once it reads on, it counts again.
func TestStandstill(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, tasks.Config{})
	slow := r.slowlySubscribed()
	keys := r.wave("k", 10_000)
	r.await("it is no receiver", func() bool { return r.server.Receivers() == 0 })
	other := r.subscribed()
	other.getAll(keys)
	r.await("all are settled", func() bool { return r.figures("expired").Delivered == 10_000 })
	slow.getAll(map[string]bool{"k:09999": true})
	more := r.wave("more", 100)
	other.nc.Close()
	slow.getAll(more)
	r.await("it counts again", func() bool { return r.server.Receivers() == 1 })
	if n := r.figures("expired"); n.Failed != 0 || n.Dead != 0 {
		t.Errorf("%d attempts have failed", n.Failed)
	}
}

// What waits to be published again is bounded, and what is given up for that is counted. What was
// taken is forgotten after a minute.
func TestDosesAreBounded(t *testing.T) {
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = strings.Repeat("k", 64<<10)
	}
	if lost, again, taken := Doses(keys, 3, true, 0); lost != 100 || again != 200 || taken != 0 {
		t.Errorf("%d are given up, %d come again, %d were taken", lost, again, taken)
	}
	if lost, again, taken := Doses(keys, 3, false, time.Second); lost != 0 || again != 0 || taken != 200 {
		t.Errorf("%d are given up, %d come again, %d were taken", lost, again, taken)
	}
	if _, _, taken := Doses([]string{"k"}, 1000, false, time.Second); taken != 61 {
		t.Errorf("of one a second, %d are known", taken)
	}
	if _, _, taken := Doses([]string{"k"}, 1000, false, time.Millisecond); taken != 1000 {
		t.Errorf("of one a millisecond, %d of 1000 are known", taken)
	}
}

// A slow receiver gets each event once, and nothing is far ahead of it.
func TestSlowReceiver(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	r.await("the topic is set", r.kindIs("expired", KindKeyevent))
	keys := r.wave("k", 10_000) // which may take longer than a receiver may stand still
	slow := r.slowlySubscribed()
	n, work := 0, time.NewTicker(20*time.Millisecond)
	defer work.Stop()
	for len(keys) > 0 {
		key := strings.TrimPrefix(slow.answer(), "*3 message "+expiredChannel+" ")
		if !keys[key] {
			t.Fatalf("%s came twice", key)
		}
		delete(keys, key)
		if n++; n%200 == 0 {
			<-work.C
		}
	}
	r.await("all are settled", func() bool { return r.figures("expired").Delivered == 10_000 })
}

// Receivers of some keys do not count for others, and each leaves what it has not read.
func TestReceiversOfKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Notify: new("KEx")}, tasks.Config{})
	r.await("the topic is set", r.kindIs("expired", KindKeyevent))
	killed := []*wire{r.receiver("__keyspace@0__:a*"), r.receiver("__keyspace@0__:b*")}
	keys := r.wave("a", 300)
	for key := range r.wave("b", 300) {
		keys[key] = true
	}
	r.await("all are settled", func() bool { return r.figures("expired").Delivered == 600 })
	for _, w := range killed {
		w.kill()
	}
	r.subscribed().getAll(keys)
}

// If all receivers are killed, what none of them has read comes again, also in a fleet where
// another node has receivers of other keys.
func TestAllReceiversAreKilled(t *testing.T) {
	t.Parallel()
	nodes, _ := newFleet(t, 2, Config{Notify: new("KEx")})
	nodes[0].await("the topic is set", nodes[0].kindIs("expired", KindKeyevent))
	other := nodes[1].dial()
	other.ask("*3 psubscribe __keyspace@0__:zzz :1", "PSUBSCRIBE", "__keyspace@0__:zzz")
	nodes[0].await("the node knows of it", func() bool { return nodes[0].server.WantedAt() == 1 })
	killed := []*wire{nodes[0].subscribed(), nodes[0].subscribed()}
	keys := nodes[0].wave("k", 400)
	settled := func() bool { return nodes[0].figures("expired").Delivered+nodes[1].figures("expired").Delivered == 400 }
	nodes[0].await("all are settled", settled)
	for _, w := range killed {
		w.kill()
	}
	nodes[0].subscribed().getAll(keys)
}

// kill ends a connection as the kernel does when its process was killed, and not all was read.
func (w *wire) kill() {
	w.t.Helper()
	if err := w.nc.(*net.TCPConn).SetLinger(0); err != nil {
		w.t.Fatal(err)
	}
	w.nc.Close()
}
