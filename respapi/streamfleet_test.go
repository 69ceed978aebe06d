package respapi_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// onRedis starts a node on the Redis with this URL.
func onRedis(t *testing.T, url, name string) *rig {
	t.Helper()
	return onRedisWith(t, url, name, time.Second)
}

// onRedisWith is onRedis with another failover time.
func onRedisWith(t *testing.T, url, name string, failoverAfter time.Duration) *rig {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	ledger, err := redisledger.Open(redisledger.Options{URL: url, Node: name, Shards: 4, FailoverAfter: failoverAfter, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	cfg := withWays()
	cfg.Log = quiet
	return openRig(t, ledger, cfg)
}

// TestStreamFleet has a consumer recover entries at nodes that have not handed them out, also after
// a node was lost.
func TestStreamFleet(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	nodes := []*rig{onRedis(t, server.URL(), "a"), onRedis(t, server.URL(), "b"), onRedis(t, proxy.URL(), "c")}
	t.Cleanup(func() { // the lost node does not end in order
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = nodes[2].server.Close(ctx)
		_ = nodes[2].scheduler.Close(ctx)
	})
	t.Cleanup(nodes[1].close)
	t.Cleanup(nodes[0].close)
	a, b, c := nodes[0].dial(), nodes[1].dial(), nodes[2].dial()
	waitFor(t, "the nodes know one another", func() bool {
		return !slices.ContainsFunc(nodes, func(r *rig) bool { return len(r.scheduler.Admin().Peers()) != 2 })
	})
	a.ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$", "MKSTREAM")
	lease := func(lease time.Duration) {
		t.Helper()
		_, err := nodes[0].scheduler.Admin().ChangeTopic(t.Context(), "t", -1, func(s *tasks.TopicSettings) error {
			s.Lease, s.Retry.MinBackoff, s.Retry.MaxBackoff = lease, time.Millisecond, time.Millisecond
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range []*wire{b, c} { // BUSYGROUP: it reads the settings
			w.got("XGROUP", "CREATE", "expired:t", "g", "$")
		}
	}
	lease(time.Minute)
	nodes[0].expire("t", "k", 12)
	take := func(w *wire, consumer string) (ids []string) {
		for len(ids) < 4 {
			ids = append(ids, w.read(consumer, 4-len(ids), "BLOCK", "20000")...)
		}
		return ids
	}
	atA, atB, atC := take(a, "ca"), take(b, "cb"), take(c, "cc")
	all := slices.Sorted(slices.Values(slices.Concat(atA, atB, atC)))

	for i, w := range []*wire{a, b, c} {
		w.ask("*4 :12 "+all[0]+" "+all[11]+" *3 *2 ca 4 *2 cb 4 *2 cc 4", "XPENDING", "expired:t", "g")
		if got := pendingIDs(w.got("XPENDING", "expired:t", "g", "-", "+", "100")); !slices.Equal(got, all) {
			t.Errorf("node %d lists %q, want %q", i, got, all)
		}
		if got := pendingIDs(w.got("XPENDING", "expired:t", "g", "("+all[1], "+", "3")); !slices.Equal(got, all[2:5]) {
			t.Errorf("node %d lists %q, want %q", i, got, all[2:5])
		}
		if got := w.got("XINFO", "CONSUMERS", "expired:t", "g"); !strings.HasPrefix(got, "*3 ") {
			t.Errorf("node %d has the consumers %q", i, got)
		}
		if got := w.got("XINFO", "GROUPS", "expired:t"); !strings.Contains(got, "consumers :3 pending :12 ") || !strings.Contains(got, "name g ") {
			t.Errorf("node %d has the group %q", i, got)
		}
	}

	// Claimed at a, in the hands of b: for long enough, and then not.
	a.ask("*0", "XCLAIM", "expired:t", "g", "other", "3600000", atB[0], "JUSTID")
	if got := idsOf(a.got("XCLAIM", "expired:t", "g", "other", "0", atB[0], atC[0], "5-5")); !slices.Equal(got, []string{atB[0], atC[0]}) {
		t.Errorf("XCLAIM takes %q", got)
	}
	if got := pendingIDs(b.got("XPENDING", "expired:t", "g", "-", "+", "9", "other")); len(got) != 2 {
		t.Errorf("after XCLAIM the consumer has %q", got)
	}
	if got := idsOf(c.got("XREADGROUP", "GROUP", "g", "other", "STREAMS", "expired:t", "0")); len(got) != 2 {
		t.Errorf("the consumer reads %q of its own", got)
	}

	// The cursor of one node is good at the next.
	var claimed []string
	for i, from := 0, "0-0"; i == 0 || from != "0-0"; i++ {
		got := strings.Split([]*wire{a, b, c}[i%3].got("XAUTOCLAIM", "expired:t", "g", "auto", "0", from, "COUNT", "5", "JUSTID"), " ")
		from = got[1]
		claimed = append(claimed, got[3:len(got)-1]...)
	}
	if !slices.Equal(claimed, all) {
		t.Errorf("XAUTOCLAIM takes %q, want %q", claimed, all)
	}

	// Given back at a, though b has handed it out.
	a.ask(":1", "XNACK", "expired:t", "g", "SILENT", "IDS", "1", atB[0])
	if got := b.got("XREADGROUP", "GROUP", "g", "cb", "BLOCK", "20000", "STREAMS", "expired:t", ">"); !slices.Equal(idsOf(got), atB[:1]) || !strings.HasSuffix(got, " attempt 1") {
		t.Errorf("after XNACK b reads %q, want %q", got, atB[:1])
	}

	// c is lost: the others answer without it, and its entries come again when their leases end.
	// They run for longer than it takes the others to adopt its shards.
	lease(5 * time.Second)
	if got := idsOf(c.got(append([]string{"XCLAIM", "expired:t", "g", "cc", "0"}, atC...)...)); len(got) != 4 {
		t.Errorf("XCLAIM takes %q", got)
	}
	proxy.Sever(redistest.Reset)
	if got := pendingIDs(a.got("XPENDING", "expired:t", "g", "-", "+", "100")); len(got) != 8 {
		t.Errorf("without a node %q are listed", got)
	}
	a.ask("*0", "XCLAIM", "expired:t", "g", "other", "0", atC[0], "JUSTID")
	waitFor(t, "the node is away", func() bool {
		return len(nodes[0].scheduler.Admin().Peers()) == 1 && len(nodes[1].scheduler.Admin().Peers()) == 1
	})
	// Some at the node that has them, some at the other.
	for i, id := range slices.Concat(atA, atB) {
		got := ""
		waitFor(t, "the task's shard has an owner", func() bool {
			got = []*wire{a, b}[i%2].got("XACK", "expired:t", "g", id)
			return got[0] == ':'
		})
		if got != ":1" {
			t.Errorf("XACK: the answer is %q", got)
		}
	}
	var again []string
	for len(again) < 4 {
		again = append(again, b.read("cb", 10, "BLOCK", "25000")...)
	}
	slices.Sort(again)
	if slices.Sort(atC); !slices.Equal(again, atC) {
		t.Errorf("%q come again, want %q", again, atC)
	}
	a.ask(":4", append([]string{"XACK", "expired:t", "g"}, again...)...)
	b.ask(":0", append([]string{"XACK", "expired:t", "g"}, all...)...)
}

// pendingIDs returns the ids in an answer of XPENDING with a range.
func pendingIDs(answer string) (ids []string) {
	for _, e := range strings.Split(answer, " *4 ")[1:] {
		ids = append(ids, strings.Fields(e)[0])
	}
	return ids
}

// TestStreamAckTogether acknowledges entries in one pipeline.
func TestStreamAckTogether(t *testing.T) {
	r, w := streamRig(t)
	r.expire("t", "k", 100)
	ids := w.read("a", 100)
	for _, id := range ids {
		w.command("XACK", "expired:t", "g", id, id)
	}
	w.command("XACK", "expired:t", "g", "x")
	w.command("XACK", "expired:t", "g", ids[0], "5-5")
	w.command("XPENDING", "expired:t", "g")
	for _, id := range ids {
		if got := w.answer(); got != ":1" {
			t.Errorf("XACK %s: %q", id, got)
		}
	}
	for _, want := range []string{"-ERR Invalid stream ID specified as stream command argument", ":0", "*4 :0 $-1 $-1 *-1"} {
		if got := w.answer(); got != want {
			t.Errorf("the answer is %q, want %q", got, want)
		}
	}
}
