package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// An inbox keeps the messages that a node has got, as "from: body".
type inbox struct {
	mu  sync.Mutex
	got []string
}

func (b *inbox) add(from string, body []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, from+": "+string(body))
}

func (b *inbox) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

// take returns a handler that keeps messages and answers them with their length.
func (b *inbox) take(_ context.Context, from string, body []byte) ([]byte, error) {
	b.add(from, body)
	return fmt.Append(nil, len(body)), nil
}

// numbered returns the messages "from: 0" to "from: n-1".
func numbered(from string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(from, ": ", i))
	}
	return all
}

func TestBroadcast(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, c := f.Nodes[0], f.Nodes[2]
		boxes := make([]inbox, len(f.Nodes))
		for i, n := range f.Nodes {
			rig.Want(t, "OnMessage", n.Admin().OnMessage("x", boxes[i].take), nil)
			if got := n.Admin().OnMessage("x", boxes[i].take); !errors.Is(got, ErrInvalid) {
				t.Errorf("a second handler: %v", got)
			}
			peers := slices.DeleteFunc([]string{"a", "b", "c"}, func(name string) bool { return name == n.Name })
			if got := n.Admin().Peers(); !slices.Equal(got, peers) {
				t.Errorf("node %s has the peers %q", n.Name, got)
			}
		}
		for i := range 5000 {
			a.Admin().Broadcast("x", fmt.Append(nil, i))
		}
		a.Admin().Broadcast("y", []byte("without a handler"))
		rig.Pass(time.Second)
		for i, wanted := range [][]string{nil, numbered("a", 5000), numbered("a", 5000)} {
			if got := boxes[i].all(); !slices.Equal(got, wanted) {
				t.Errorf("node %s got %d messages, %.3q...; want %d", f.Nodes[i].Name, len(got), got, len(wanted))
			}
		}

		long := bytes.Repeat([]byte("l"), MaxMessage)
		c.Admin().Broadcast("x", long)
		c.Admin().Broadcast("x", append(long, 'l'))
		c.Admin().Broadcast("no name", nil)
		rig.Pass(time.Second)
		for i := range 2 {
			if got := boxes[i].all(); len(got) != 5000*i+1 || got[5000*i] != "c: "+string(long) {
				t.Errorf("node %s: %d messages, a long one is missing, or more came", f.Nodes[i].Name, len(got))
			}
		}
		if got := boxes[2].all(); len(got) != 5000 || c.Log.Count("broadcast not sent") != 2 {
			t.Errorf("%d messages, log:\n%s", len(got), c.Log.All())
		}

		c.Stop()
		rig.Pass(10 * time.Second)
		if got := a.Admin().Peers(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("one node has ended, the peers are %q", got)
		}
	})
}

func TestAsk(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		rig.Want(t, "OnMessage", b.Admin().OnMessage("x", func(_ context.Context, from string, body []byte) ([]byte, error) {
			switch string(body) {
			case "absent":
				return nil, fmt.Errorf("%w: no such thing", ErrNotFound)
			case "broken":
				return nil, errors.New("it is broken")
			case "panic":
				panic("at the handler")
			case "long":
				return make([]byte, MaxMessage+1), nil
			}
			return append([]byte(from+" said "), body...), nil
		}), nil)
		ask := func(from *rig.Node, to, subject, body string) string {
			t.Helper()
			began := time.Now()
			answer, err := from.Admin().Ask(t.Context(), to, subject, []byte(body))
			if took := time.Since(began); took > 100*time.Millisecond && !errors.Is(err, ErrNodeAway) {
				t.Errorf("it took %v", took)
			}
			if err == nil {
				return string(answer)
			}
			for _, known := range []error{ErrNotFound, ErrInvalid, ErrTooLarge, ErrNodeAway, ErrUnknown, ErrUnavailable, ErrOverloaded} {
				if errors.Is(err, known) {
					return known.Error()
				}
			}
			return err.Error()
		}
		for _, n := range []*rig.Node{a, b} { // of another node, and of its own
			for body, wanted := range map[string]string{
				"hello": n.Name + " said hello", "": n.Name + " said ", "absent": ErrNotFound.Error(), "long": ErrTooLarge.Error(),
			} {
				if got := ask(n, "b", "x", body); got != wanted {
					t.Errorf("%q at b: %q", body, got)
				}
			}
			for _, body := range []string{"it is broken", "panic: at the handler"} {
				if got := ask(n, "b", "x", strings.TrimPrefix(strings.SplitN(body, ":", 2)[0], "it is ")); !strings.HasSuffix(got, body) {
					t.Errorf("%q at b: %q", body, got)
				}
			}
			for what, wanted := range map[string]error{"y": ErrUnavailable, "no name": ErrInvalid} {
				if got := ask(n, "b", what, "hello"); got != wanted.Error() {
					t.Errorf("subject %s: %q", what, got)
				}
			}
			if got := ask(n, "b", "x", string(make([]byte, MaxMessage+1))); got != ErrInvalid.Error() {
				t.Errorf("a body that is too long: %q", got)
			}
		}
		long := strings.Repeat("l", MaxMessage-20)
		if got := ask(a, "b", "x", long); got != "a said "+long {
			t.Errorf("a long body: %d bytes", len(got))
		}
		delete(c.Cluster().Fleet.Methods, cluster.MessageMethod.Name) // as an older version
		if got := ask(a, "c", "x", "hello"); got != ErrUnavailable.Error() {
			t.Errorf("an older version: %q", got)
		}
		if got := ask(a, "d", "x", "hello"); got != ErrNodeAway.Error() {
			t.Errorf("no such node: %q", got)
		}
		b.Crash()
		if got := ask(a, "b", "x", "hello"); got != ErrNodeAway.Error() && got != ErrUnknown.Error() {
			t.Errorf("a node that is dead: %q", got)
		}
	})
}

// Handlers that hang keep nothing but other messages waiting, and of those only so many.
func TestHandlersOfMessagesHang(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		free := make(chan struct{})
		var box inbox
		rig.Want(t, "OnMessage", b.Admin().OnMessage("hangs", func(ctx context.Context, from string, body []byte) ([]byte, error) {
			<-free
			return box.take(ctx, from, body)
		}), nil)
		rig.Want(t, "OnMessage", b.Admin().OnMessage("quick", box.take), nil)
		for i := range 20_000 {
			a.Admin().Broadcast("hangs", fmt.Append(nil, i))
		}
		const most = 512
		answers := make(chan error, most)
		for range most - 1 { // and one broadcast
			go func() {
				_, err := a.Admin().Ask(t.Context(), "b", "hangs", nil)
				answers <- err
			}()
		}
		rig.Pass(time.Second)
		_, err := a.Admin().Ask(t.Context(), "b", "quick", nil)
		rig.Want(t, "Ask while too many are under way", err, ErrOverloaded)
		later(b, "x", "b1")
		_, err = a.Get(t.Context(), "b1")
		rig.Want(t, "Get while handlers hang", err, nil)

		close(free)
		for range most - 1 {
			rig.Want(t, "Ask", <-answers, nil)
		}
		_, err = a.Admin().Ask(t.Context(), "b", "quick", []byte("now"))
		rig.Want(t, "Ask", err, nil)
		rig.Pass(time.Second)
		got := slices.DeleteFunc(box.all(), func(m string) bool { return m == "a: " || m == "a: now" })
		if len(got) < 10_000 || len(got) > 17_000 || !slices.Equal(got, numbered("a", len(got))) {
			t.Errorf("%d of 20,000 broadcasts came, or out of order", len(got))
		}
	})
}

// A node whose ledger is its own has no peers, and may send messages like any other.
func TestMessagesOfOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{})
		var box inbox
		rig.Want(t, "OnMessage", r.Admin().OnMessage("x", box.take), nil)
		r.Admin().Broadcast("x", []byte("hello"))
		answer, err := r.Admin().Ask(t.Context(), r.Admin().NodeName(), "x", []byte("me"))
		if rig.Want(t, "Ask", err, nil); string(answer) != "2" {
			t.Errorf("answer %q", answer)
		}
		_, err = r.Admin().Ask(t.Context(), "other", "x", nil)
		rig.Want(t, "Ask of another node", err, ErrNodeAway)
		rig.Pass(time.Second)
		if got := box.all(); !slices.Equal(got, []string{r.Admin().NodeName() + ": me"}) || len(r.Admin().Peers()) != 0 {
			t.Errorf("got %q; peers %q", got, r.Admin().Peers())
		}
	})
}

func TestMessagesOverRedis(t *testing.T) {
	server := redistest.Start(t)
	a, b := newNamedRedisNode(t, server.URL(), "a"), newNamedRedisNode(t, server.URL(), "b")
	var box inbox
	rig.Want(t, "OnMessage", b.Admin().OnMessage("x", box.take), nil)
	a.waitFor("the nodes know one another", func() bool {
		return slices.Equal(a.Admin().Peers(), []string{"b"}) && slices.Equal(b.Admin().Peers(), []string{"a"})
	})
	for i := range 5000 {
		a.Admin().Broadcast("x", fmt.Append(nil, i))
	}
	a.waitFor("all have come", func() bool { return len(box.all()) == 5000 })
	if !slices.Equal(box.all(), numbered("a", 5000)) {
		t.Error("they came out of order")
	}
	long := make([]byte, MaxMessage)
	answer, err := a.Admin().Ask(t.Context(), "b", "x", long)
	if rig.Want(t, "Ask", err, nil); string(answer) != fmt.Sprint(len(long)) {
		t.Errorf("answer %q", answer)
	}
	a.Admin().Broadcast("x", long)
	a.waitFor("the long one has come", func() bool { return len(box.all()) == 5002 })
	_, err = a.Admin().Ask(t.Context(), "b", "y", nil)
	rig.Want(t, "Ask without a handler", err, ErrUnavailable)
}

// BenchmarkAskOverRedis is a message with its answer, between two nodes of one Redis.
func BenchmarkAskOverRedis(b *testing.B) {
	server := redistest.Start(b)
	from, to := newNamedRedisNode(b, server.URL(), "a"), newNamedRedisNode(b, server.URL(), "b")
	rig.Want(b, "OnMessage", to.Admin().OnMessage("x", func(_ context.Context, _ string, body []byte) ([]byte, error) { return body, nil }), nil)
	from.waitFor("the nodes know one another", func() bool { return len(from.Admin().Peers()) == 1 })
	body := make([]byte, 200)
	for b.Loop() {
		if _, err := from.Admin().Ask(b.Context(), "b", "x", body); err != nil {
			b.Fatal(err)
		}
	}
}
