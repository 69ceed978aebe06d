package respapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

const expiredChannel = "__keyevent@0__:expired"

// subscribed returns a connection that has subscribed to expired events.
func (r *rig) subscribed() *wire {
	r.t.Helper()
	return r.dial().subscribe()
}

// slowlySubscribed returns a subscriber for which the kernel keeps little.
func (r *rig) slowlySubscribed() *wire {
	r.t.Helper()
	w := r.dial()
	w.receiveFew()
	return w.subscribe()
}

// subscribe subscribes to expired events.
func (w *wire) subscribe() *wire {
	w.t.Helper()
	w.ask("*3 subscribe "+expiredChannel+" :1", "SUBSCRIBE", expiredChannel)
	return w
}

// await waits until ok is true.
func (r *rig) await(what string, ok func() bool) {
	r.t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.t.Fatalf("not within 10 s: %s", what)
}

// kindIs reports whether a topic has a way of delivery.
func (r *rig) kindIs(topic string, kind task.Kind) func() bool {
	return func() bool {
		t, err := r.scheduler.Topic(topic)
		return err == nil && t.Settings.Kind == kind
	}
}

// figures returns the counts of a topic.
func (r *rig) figures(topic string) task.Counts {
	r.t.Helper()
	t, err := r.scheduler.Topic(topic)
	if err != nil {
		r.t.Fatal(err)
	}
	return t.Counts
}

func TestKeyevent(t *testing.T) {
	r := newRig(t, Config{Notify: new("KEx")}, tasks.Config{})
	w, both := r.subscribed(), r.dial()
	both.command("HELLO", "3")
	both.answer()
	both.ask(">3 psubscribe __key*__:* :1", "PSUBSCRIBE", "__key*__:*")
	both.ask(">3 subscribe __keyspace@0__:a :2", "SUBSCRIBE", "__keyspace@0__:a")
	r.fire("expired", "a")
	w.want("*3 message " + expiredChannel + " a")
	both.want(">3 message __keyspace@0__:a expired")
	both.want(">4 pmessage __key*__:* __keyspace@0__:a expired")
	both.want(">4 pmessage __key*__:* " + expiredChannel + " a")
	r.fire("expired", "b@20c")
	w.want("*3 message " + expiredChannel + " b c")
	r.fire("expired", "d@zz")
	w.want("*3 message " + expiredChannel + " d@zz") // no key: its id
	long := strings.Repeat("x ", 200)
	request := tasks.Request{ID: KeyID(long), Topic: "expired", Headers: map[string]string{"lapse-key": strings.Repeat("x@20", 200)}}
	if _, err := r.scheduler.Schedule(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	w.want("*3 message " + expiredChannel + " " + long)
	r.await("the tasks are acknowledged", func() bool { return r.figures("expired").Delivered == 4 })
}

func TestKeyeventSettings(t *testing.T) {
	var way Keyevent
	if _, err := way.Deliverer("t", json.RawMessage(`{"channel":"x"}`)); !errors.Is(err, task.ErrInvalid) {
		t.Errorf("an unknown field: %v", err)
	}
	if _, err := way.Deliverer("t", json.RawMessage(`{}`)); err != nil {
		t.Error(err)
	}
}

// Subscribers of any node hear of the keys of any node, and so do those of PUBLISH.
func TestFleetEvents(t *testing.T) {
	nodes, _ := newFleet(t, 3, Config{})
	first, second := nodes[1].subscribed(), nodes[2].subscribed()
	second.ask("*3 subscribe news :2", "SUBSCRIBE", "news")
	p := nodes[0].dial()
	p.ask(":0", "PUBLISH", "news", "nothing") // may reach it or not
	var want []string
	for i := range 200 {
		want = append(want, fmt.Sprintf("key:%03d", i))
	}
	for i, others := range []int{2, 1, 1} {
		nodes[i].await("the nodes know one another's subscribers", func() bool { return nodes[i].server.WantedAt() == others })
	}
	nodes[0].fire("expired", want...)
	for _, w := range []*wire{first, second} {
		var got []string
		for len(got) < len(want) {
			if key, ok := strings.CutPrefix(w.answer(), "*3 message "+expiredChannel+" "); ok {
				got = append(got, key)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("a subscriber got %d keys", len(got))
		}
	}
	p.ask(":0", "PUBLISH", "news", "hello")
	second.want("*3 message news hello")
	first.nc.Close()
	second.nc.Close()
	nodes[0].await("the subscribers are forgotten", func() bool { return !nodes[0].server.Wanted() })
}

// A topic that was set up otherwise stays so. Its expired events come all the same, once.
func TestEventsOfOtherWays(t *testing.T) {
	r := newRig(t, Config{Topics: map[string]string{"": "expired", "job:": "jobs"}}, tasks.Config{})
	r.await("the topics are set", func() bool { return r.kindIs("expired", KindKeyevent)() && r.kindIs("jobs", KindKeyevent)() })
	if _, err := r.scheduler.SetTopic(t.Context(), "jobs", tasks.TopicSettings{Kind: tasks.Pull}, -1); err != nil {
		t.Fatal(err)
	}
	w := r.subscribed()
	r.await("events of jobs come", func() bool {
		r.fire("jobs", fmt.Sprintf("job:%d", time.Now().UnixNano()))
		r.fire("expired", "after")
		return strings.HasPrefix(w.answer(), "*3 message "+expiredChannel+" job:")
	})
	got, err := r.scheduler.Reserve(t.Context(), "jobs", 1, 0, 0)
	if err != nil || len(got) != 1 {
		t.Errorf("the task is to be reserved: %d, %v", len(got), err)
	}
}

// Tasks wait for a subscriber. It gets all of them, once.
func TestNoSubscriber(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	r.await("the topic is set", r.kindIs("expired", KindKeyevent))
	var want []string
	for i := range 1000 {
		want = append(want, fmt.Sprintf("key:%04d", i))
	}
	r.fire("expired", want...)
	other := r.dial()
	other.ask("*3 subscribe news :1", "SUBSCRIBE", "news")
	w := r.subscribed()
	var got []string
	for range want {
		got = append(got, strings.TrimPrefix(w.answer(), "*3 message "+expiredChannel+" "))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the subscriber got %d keys, the first is %s", len(got), got[0])
	}
	r.await("all are acknowledged", func() bool { return r.figures("expired").Delivered == 1000 })
	if n := r.figures("expired"); n.Failed != 0 || n.Dead != 0 {
		t.Errorf("%d attempts have failed", n.Failed)
	}
	w.ask("*2 pong ", "PING") // and nothing came twice
}

// The events of each command are those of Redis, in its order, on channels and patterns.
func TestEventsAsRedis(t *testing.T) {
	real := redistest.Start(t)
	ours := newRig(t, Config{}, tasks.Config{})
	events := func(addr string, script []string) (got []string) {
		dial := func() *wire { return (&rig{t: t, addr: addr}).dial() }
		w, all, copies := dial(), dial(), dial()
		w.ask("+OK", "CONFIG", "SET", "notify-keyspace-events", "KEAn")
		all.ask("*3 psubscribe __key*__:* :1", "PSUBSCRIBE", "__key*__:*")
		copies.ask("*3 subscribe __keyevent@0__:copy_to :1", "SUBSCRIBE", "__keyevent@0__:copy_to")
		for _, command := range script {
			w.command(strings.Fields(command)...)
			w.answer()
			w.command("PUBLISH", "__key__:", command)
			w.answer()
			for {
				event := all.answer()
				got = append(got, event)
				if strings.HasSuffix(event, " "+command) {
					break
				}
			}
		}
		copies.want("*3 message __keyevent@0__:copy_to k2")
		return got
	}
	script := []string{
		"SET k 1", "SET k 2", "SET k 3 EX 100", "SET k 4 KEEPTTL", "GETSET k 5", "SET none 1 XX", "SET x 1 NX", "SET x 1 NX", "SETNX x2 1",
		"SETEX e 100 v", "PSETEX e 10000 v", "INCR n", "DECR n", "INCRBYFLOAT f 1.5", "APPEND a x", "APPEND a x", "SETRANGE r 2 x",
		"EXPIRE k 100", "PERSIST k", "GETEX k EX 10", "GETEX k PERSIST", "EXPIRE k -1", "SET k 1", "COPY k k2", "COPY k k2 REPLACE",
		"RENAME k k3", "RENAME k3 k2", "RENAMENX k2 k4", "MSET m 1", "MSET m 2", "MSETNX m2 1", "GETDEL m2", "DEL m k4 none", "UNLINK x", "TOUCH a",
	}
	want, got := events(real.Addr, script), events(ours.addr, script)
	if !slices.Equal(got, want) {
		t.Errorf("the events are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The keys of a topic that is set up meanwhile are published once.
func TestKeyeventWhileTopicsAreSetUp(t *testing.T) {
	const n = 500
	// The settings of a topic take as long as a write to the disk.
	ledger, err := diskledger.Open(t.TempDir()+"/data", diskledger.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOn(t, ledger, Config{}, tasks.Config{})
	w := r.subscribed()
	seen := make(map[string]bool)
	for from := range 5 {
		var requests []tasks.Request
		for i := range n / 5 {
			requests = append(requests, tasks.Request{ID: fmt.Sprintf("k%d-%d", from, i), Topic: "expired"})
		}
		if _, err := r.scheduler.ScheduleBatch(t.Context(), requests); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		key := w.answer()
		if seen[key] {
			t.Fatalf("%s came twice", key)
		}
		seen[key] = true
	}
	r.await("all are acknowledged", func() bool { return r.figures("expired").Delivered == n })
	r.fire("expired", "last")
	w.want("*3 message " + expiredChannel + " last")
}

// A key whose new deadline has come already is deleted, as in Redis, or expires with its event.
func TestPastExpiry(t *testing.T) {
	for _, expires := range []bool{false, true} {
		r := newRig(t, Config{PastExpires: expires}, withWays())
		sub, w := r.dial(), r.dial()
		sub.ask("*3 subscribe __keyevent@0__:expired :1", "SUBSCRIBE", "__keyevent@0__:expired")
		for i, command := range []string{"EXPIRE k -1", "PEXPIRE k 0", "EXPIREAT k 1", "PEXPIREAT k 1000", "EXPIREAT k 1 XX"} {
			alone, queued := fmt.Sprint("alone", i), fmt.Sprint("queued", i)
			for _, key := range []string{alone, queued} {
				w.ask("+OK", "SET", key, "v", "EX", "1000")
			}
			w.ask(":1", strings.Fields(strings.Replace(command, "k", alone, 1))...)
			w.ask(":0", "EXISTS", alone)
			if got := w.exec(strings.Replace(command, "k", queued, 1), "GET "+queued); got != "*2 :1 $-1" {
				t.Errorf("%s: EXEC is answered %q", command, got)
			}
			if !expires {
				continue
			}
			for _, key := range []string{alone, queued} {
				if got := sub.answer(); got != "*3 message __keyevent@0__:expired "+key {
					t.Errorf("%s: the event is %q", command, got)
				}
			}
		}
		w.ask("+OK", "SET", "last", "v", "PX", "1")
		if got := sub.answer(); got != "*3 message __keyevent@0__:expired last" {
			t.Errorf("with %v the event is %q", expires, got)
		}
	}
}

// Keys that no one hears of hold up no others: a subscriber of some keys gets them, and a further
// one gets its own as soon as it has come, at whichever node.
func TestKeysThatNoOneHears(t *testing.T) {
	t.Parallel()
	nodes, _ := newFleet(t, 2, Config{Notify: new("KEx")})
	for _, n := range nodes {
		n.await("the topic is set", n.kindIs("expired", KindKeyevent))
	}
	a := nodes[0].receiver("__keyspace@0__:a*")
	unheard := nodes[0].wave("u", 600)
	nodes[0].await("they wait aside", func() bool { return nodes[0].figures("expired").Strays == 600 })
	a.getAll(nodes[0].wave("a", 10))
	nodes[1].receiver("__keyspace@0__:u*").getAll(unheard)
	nodes[0].await("all are settled", func() bool { n := nodes[0].figures("expired"); return n.Delivered == 610 && n.Ready == 0 })
}
