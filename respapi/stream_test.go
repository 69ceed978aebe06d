package respapi_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// waitFor waits until something is so.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: it is not so", what)
		}
	}
}

// counts returns the counts of the topic t.
func (r *rig) counts() tasks.Counts {
	topic, err := r.scheduler.Topic("t")
	if err != nil {
		r.t.Fatal(err)
	}
	return topic.Counts
}

// shortLease has the leases of topic t end after a second, and its tasks be ready again then.
func (r *rig) shortLease() {
	_, err := r.scheduler.Admin().ChangeTopic(r.t.Context(), "t", -1, func(s *tasks.TopicSettings) error {
		s.Lease, s.Retry.MinBackoff, s.Retry.MaxBackoff = time.Second, time.Millisecond, time.Millisecond
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func TestStreamFields(t *testing.T) {
	r, w := streamRig(t)
	_, err := r.scheduler.Schedule(t.Context(), tasks.Request{
		ID: "a@20b", Topic: "t", Due: time.UnixMilli(900_000_000_000), Payload: []byte("v"), Group: "g1",
		Headers: map[string]string{"z": "1", "b": "2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := w.got("XREADGROUP", "GROUP", "g", "c", "STREAMS", "expired:t", ">")
	want := "*16 key a b value v topic t due 900000000000 attempt 1 group g1 header.b 2 header.z 1"
	if !strings.Contains(got, want) {
		t.Errorf("the answer is %q, want %q in it", got, want)
	}
}

// TestStreamGroup checks which topics have a group.
func TestStreamGroup(t *testing.T) {
	r := openRig(t, memledger.New(), withWays())
	t.Cleanup(r.close)
	kind := func(topic string, want tasks.Kind) {
		t.Helper()
		got, err := r.scheduler.Topic(topic)
		if err != nil || got.Settings.Kind != want {
			t.Errorf("the topic %s is of the kind %q, %v; want %q", topic, got.Settings.Kind, err, want)
		}
	}
	for _, k := range []string{"keyevent", "elsewhere"} {
		if _, err := r.scheduler.SetTopic(t.Context(), k, tasks.TopicSettings{Kind: tasks.Kind(k)}, -1); err != nil {
			t.Fatal(err)
		}
	}
	w := r.dial()
	const none = "' or consumer group 'g' in XREADGROUP with GROUP option"
	w.ask("-NOGROUP No such key 'expired:t"+none, "XREADGROUP", "GROUP", "g", "c", "STREAMS", "expired:t", ">")
	w.ask("-NOGROUP No such key 'expired:keyevent"+none, "XREADGROUP", "GROUP", "g", "c", "STREAMS", "expired:keyevent", ">")
	w.ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$") // resp_topics has it
	w.ask("+OK", "XGROUP", "CREATE", "expired:keyevent", "g", "0")
	kind("keyevent", tasks.Pull)
	w.ask("-BUSYGROUP Consumer Group name already exists", "XGROUP", "CREATE", "expired:keyevent", "other", "0")
	w.ask("*-1", "XREADGROUP", "GROUP", "another", "c", "STREAMS", "expired:keyevent", ">")
	w.ask("-ERR the topic 'elsewhere' is delivered by elsewhere, and so it has no group", "XGROUP", "CREATE", "expired:elsewhere", "g", "0")
	kind("elsewhere", "elsewhere")
	w.ask(":1", "XGROUP", "DESTROY", "expired:keyevent", "g")
	w.ask(":0", "XGROUP", "DESTROY", "expired:keyevent", "g")
	kind("keyevent", "keyevent")
	w.ask("-NOGROUP No such key 'expired:keyevent"+none, "XREADGROUP", "GROUP", "g", "c", "STREAMS", "expired:keyevent", ">")
	w.ask("-ERR keys of streams are expired: and the name of a topic", "XGROUP", "CREATE", "other", "g", "0", "MKSTREAM")
	w.ask("-ERR the entries of streams expired:<topic> are made by keys that expire", "XADD", "expired:t", "*", "a", "b")
	w.ask("-ERR the entries of streams expired:<topic> can only be read in a group, by XREADGROUP", "XREAD", "STREAMS", "expired:t", "0")
}

// TestStreamDeletedConsumer checks that the entries of a consumer that is deleted are ready again.
func TestStreamDeletedConsumer(t *testing.T) {
	r, w := streamRig(t)
	r.expire("t", "k", 3)
	first := w.read("a", 3)
	w.ask(":3", "XGROUP", "DELCONSUMER", "expired:t", "g", "a")
	w.ask("*0", "XINFO", "CONSUMERS", "expired:t", "g")
	if again := w.read("b", 3); !slices.Equal(again, first) {
		t.Errorf("again come %q, want %q", again, first)
	}
	w.ask(":3", "XLEN", "expired:t")
	w.ask(":3", append([]string{"XACK", "expired:t", "g"}, first...)...)
	w.ask(":0", "XLEN", "expired:t")
}

func TestStreamNoAck(t *testing.T) {
	r, w := streamRig(t)
	r.expire("t", "k", 3)
	if got := w.got("XREADGROUP", "GROUP", "g", "c", "NOACK", "STREAMS", "expired:t", ">"); len(idsOf(got)) != 3 {
		t.Errorf("the answer is %q", got)
	}
	w.ask("*4 :0 $-1 $-1 *-1", "XPENDING", "expired:t", "g")
	if c := r.counts(); c.Ready+c.Delivering != 0 {
		t.Errorf("%d tasks are ready, and %d out", c.Ready, c.Delivering)
	}
}

// TestStreamConsumers has consumers acknowledge many tasks, each of which must come once.
func TestStreamConsumers(t *testing.T) {
	t.Parallel()
	const n = 20_000
	r, _ := streamRig(t)
	var seen sync.Map
	var acknowledged atomic.Int64
	var group sync.WaitGroup
	for i := range 4 {
		w := r.dial()
		group.Go(func() {
			for acknowledged.Load() < n {
				ids := w.read(fmt.Sprint("c", i), 100, "BLOCK", "20")
				for _, id := range ids {
					if _, twice := seen.LoadOrStore(id, i); twice {
						t.Errorf("the entry %s came twice", id)
					}
				}
				if len(ids) > 0 {
					w.ask(fmt.Sprint(":", len(ids)), append([]string{"XACK", "expired:t", "g"}, ids...)...)
					acknowledged.Add(int64(len(ids)))
				}
			}
		})
	}
	r.expire("t", "k", n)
	group.Wait()
	if got := acknowledged.Load(); got != n {
		t.Errorf("%d entries were acknowledged, want %d", got, n)
	}
	if c := r.counts(); c.Ready+c.Delivering+c.Retrying != 0 {
		t.Errorf("there are still %d ready tasks, %d out, %d that are retried", c.Ready, c.Delivering, c.Retrying)
	}
}

// TestStreamLease checks that an entry whose lease has ended comes again, and that a claim extends
// a lease.
func TestStreamLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, w *wire) {
		r.shortLease()
		r.expire("t", "k", 2)
		ids := w.read("a", 2)
		for range 5 { // the consumer works on, for more than two leases
			time.Sleep(500 * time.Millisecond)
			w.ask("*1 "+ids[0], "XCLAIM", "expired:t", "g", "a", "0", ids[0], "JUSTID")
		}
		w.ask("*4 :1 "+ids[0]+" "+ids[0]+" *1 *2 a 1", "XPENDING", "expired:t", "g")
		w.ask(":0", "XACK", "expired:t", "g", ids[1])
		got := w.got("XREADGROUP", "GROUP", "g", "b", "BLOCK", "20000", "STREAMS", "expired:t", ">")
		if !strings.Contains(got, ids[1]) || !strings.Contains(got, "attempt 2") || strings.Contains(got, ids[0]) {
			t.Errorf("after the lease comes %q, want %q in it", got, ids[1])
		}
		w.ask(":2", "XACK", "expired:t", "g", ids[0], ids[1])
	})
}

// TestStreamWaits checks how long a reader waits: also longer than one Reserve does.
func TestStreamWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, w *wire) {
		began := time.Now()
		w.ask("*-1", "XREADGROUP", "GROUP", "g", "a", "BLOCK", "150000", "STREAMS", "expired:t", ">")
		if took := time.Since(began); took != 150*time.Second {
			t.Errorf("the reader has waited for %v, want 150 s", took)
		}
		w.command("XREADGROUP", "GROUP", "g", "a", "BLOCK", "0", "STREAMS", "expired:t", "expired:t", ">", ">")
		time.Sleep(time.Hour)
		r.expire("t", "k", 1)
		if got := w.answer(); len(idsOf(got)) != 1 {
			t.Errorf("after an hour comes %q", got)
		}
	})
}

// TestStreamRestart ends the scheduler and the server while entries are out.
func TestStreamRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *rig {
		l, err := diskledger.Open(dir, diskledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return openRig(t, l, withWays())
	}
	r := open()
	w := r.dial()
	w.ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$", "MKSTREAM")
	r.shortLease()
	r.expire("t", "k", 100)
	ids := w.read("a", 60)
	w.ask(":20", append([]string{"XACK", "expired:t", "g"}, ids[:20]...)...)
	r.close()

	r = open()
	defer r.close()
	w = r.dial()
	w.ask("-BUSYGROUP Consumer Group name already exists", "XGROUP", "CREATE", "expired:t", "g", "$")
	again := map[string]bool{}
	for len(again) < 80 {
		for _, id := range w.read("b", 100, "BLOCK", "20000") {
			again[id] = true
		}
	}
	for i, id := range ids {
		if again[id] != (i >= 20) {
			t.Errorf("entry %d of those before the restart comes again: %t", i, again[id])
		}
	}
}

// TestStreamAtAnotherNode acknowledges entries at a node that has not handed them out.
func TestStreamAtAnotherNode(t *testing.T) {
	fleet := memfleet.New()
	nodes := make([]*rig, 3)
	for i := range nodes {
		member := fleet.Join(fmt.Sprint("n", i), 4)
		nodes[i] = openRig(t, member, withWays())
		t.Cleanup(nodes[i].close)
	}
	a, b, c := nodes[0].dial(), nodes[1].dial(), nodes[2].dial()
	waitFor(t, "the nodes know one another", func() bool { return len(nodes[1].scheduler.Admin().Peers()) == 2 })
	a.ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$", "MKSTREAM")
	for _, w := range []*wire{b, c} { // BUSYGROUP, if it has read the settings before
		w.got("XGROUP", "CREATE", "expired:t", "g", "$")
	}
	nodes[0].expire("t", "k", 10)
	ids := a.read("a", 5)
	for len(ids) < 10 {
		ids = append(ids, c.read("c", 10-len(ids), "BLOCK", "20000")...)
	}
	b.ask(":10", append([]string{"XACK", "expired:t", "g", "5-5"}, ids...)...)
	b.ask(":0", append([]string{"XACK", "expired:t", "g"}, ids...)...)
	a.ask("*4 :0 $-1 $-1 *-1", "XPENDING", "expired:t", "g")
	b.ask(":0", "XLEN", "expired:t")
}

// TestStreamClientLeaves has clients leave while they wait.
func TestStreamClientLeaves(t *testing.T) {
	r, w := streamRig(t)
	r.shortLease()
	const clients, each = 20, 50
	all := make([]*wire, clients)
	wait := func() {
		for i := range all {
			all[i] = r.dial()
			all[i].command("XREADGROUP", "GROUP", "g", "gone", "BLOCK", "0", "STREAMS", "expired:t", "expired:t", ">", ">")
		}
		waitFor(t, "the readers wait", func() bool { return r.counts().Receivers == 2*clients })
	}
	leave := func() {
		for _, gone := range all {
			gone.nc.Close()
		}
	}
	none := func() bool { return r.counts().Receivers == 0 }

	wait()
	leave()
	waitFor(t, "no reader waits", none)
	r.expire("t", "k", each)
	if out := r.counts().Delivering; out != 0 {
		t.Errorf("%d tasks were handed out to clients that have left", out)
	}
	ids := w.read("a", each)
	w.ask(fmt.Sprint(":", each), append([]string{"XACK", "expired:t", "g"}, ids...)...)

	// At the moment when they leave, tasks become ready. Those that are handed out to them all the
	// same are ready again when their lease ends.
	wait()
	go leave()
	r.expire("t", "l", clients*each)
	waitFor(t, "no reader waits", none)
	for got := 0; got < clients*each; {
		ids := w.read("a", 1000, "BLOCK", "20000")
		if len(ids) == 0 {
			t.Fatalf("only %d of %d tasks have come", got, clients*each)
		}
		n := 0 // on a busy machine, leases end meanwhile
		_, _ = fmt.Sscan(w.got(append([]string{"XACK", "expired:t", "g"}, ids...)...)[1:], &n)
		got += n
	}
}

// TestStreamManyStreams waits for several streams at the same time.
func TestStreamManyStreams(t *testing.T) {
	t.Parallel()
	r, w := streamRig(t)
	args := []string{"XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS"}
	const n = 30
	for i := range n {
		w.ask("+OK", "XGROUP", "CREATE", fmt.Sprint("expired:t", i), "g", "$", "MKSTREAM")
		args = append(args, fmt.Sprint("expired:t", i))
	}
	for range n {
		args = append(args, ">")
	}
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { r.expire(fmt.Sprint("t", i), fmt.Sprint("k", i, "x"), 100) })
	}
	got := 0
	for got < n*100 {
		for i, part := range strings.Split(w.got(args...), "expired:") {
			if i == 0 {
				continue
			}
			name, _, _ := strings.Cut(part, " ")
			ids := idsOf(part)
			w.ask(fmt.Sprint(":", len(ids)), append([]string{"XACK", "expired:" + name, "g"}, ids...)...)
			got += len(ids)
		}
	}
	group.Wait()
	if s := r.scheduler.Stats().Total; s.Ready+s.Delivering != 0 {
		t.Errorf("there are still %d ready tasks and %d out", s.Ready, s.Delivering)
	}
}

// TestStreamAfterAnswers checks that answers that were sent before a command waits stay apart from
// its own.
func TestStreamAfterAnswers(t *testing.T) {
	_, w := streamRig(t)
	w.send("PING\r\nXREADGROUP GROUP g c BLOCK 1 STREAMS expired:t >\r\nECHO a\r\n")
	if got := []string{w.answer(), w.answer(), w.answer()}; !slices.Equal(got, []string{"+PONG", "*-1", "a"}) {
		t.Errorf("the answers are %q", got)
	}
}

// TestStreamGrant checks that a token of other topics cannot use a stream.
func TestStreamGrant(t *testing.T) {
	r := newRig(t, Config{Callers: tokens(map[string]edge.Token{"x": {Scopes: []edge.Scope{edge.ScopeReceive}, Topics: []string{"mine*"}}})}, withWays())
	w := r.dial()
	w.ask("+OK", "AUTH", "x")
	w.ask("+OK", "XGROUP", "CREATE", "expired:mine", "g", "$", "MKSTREAM")
	for _, c := range []string{
		"XGROUP CREATE expired:t g $ MKSTREAM", "XREADGROUP GROUP g c STREAMS expired:t >", "XACK expired:t g 1-1", "XDEL expired:t 1-1", "XLEN expired:t",
		"XPENDING expired:t g", "XCLAIM expired:t g c 0 1-1", "XAUTOCLAIM expired:t g c 0 0", "XINFO STREAM expired:t",
	} {
		w.ask("-NOPERM topic not granted", strings.Fields(c)...)
	}
	w.ask("-NOPERM this token has no permissions to run the 'xgroup|destroy' command", "XGROUP", "DESTROY", "expired:mine", "g")
	w.ask("-NOPERM this token has no permissions to run the 'xadd' command", "XADD", "expired:mine", "*", "a", "b")
}

// Entries that a subscriber has read are not given back with what it has not.
func TestStreamEntriesOfASubscriber(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, w *wire) {
		r.expire("t", "k", 2)
		w.send("XREADGROUP GROUP g c COUNT 2 STREAMS expired:t >\r\nSUBSCRIBE news\r\n")
		if got := w.answer(); len(idsOf(got)) != 2 {
			t.Fatalf("read %q", got)
		}
		w.want("*3 subscribe news :1")
		w.send("PING\r\n") // and its answer is not read
		w.nc.Close()
		synctest.Wait()
		if again, err := r.scheduler.Reserve(t.Context(), "t", 10, 0, 0); err != nil || len(again) != 0 {
			t.Errorf("%d are ready again, %v", len(again), err)
		}
	})
}

// TestStreamClientLeavesUnread has a client leave before the entries are written to it: they are
// ready again, and the attempt does not count. What was written before stays out.
func TestStreamClientLeavesUnread(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, w *wire) {
		r.expire("t", "k", 100)
		w.send("XREADGROUP GROUP g c COUNT 1 STREAMS expired:t >\r\nXREADGROUP GROUP g c STREAMS expired:t >\r\n")
		if got := w.answer(); len(idsOf(got)) != 1 {
			t.Fatalf("read %q", got)
		}
		w.nc.Close()
		synctest.Wait()
		again, err := r.scheduler.Reserve(t.Context(), "t", 1000, 0, 0)
		if err != nil || len(again) != 99 || again[0].ID != "k1" || again[0].Attempt != 1 {
			t.Errorf("%d are ready again, %v", len(again), err)
		}
	})
}
