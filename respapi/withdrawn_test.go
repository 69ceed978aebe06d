package respapi_test

import (
	"io"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/edge"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

func scopes(all ...edge.Scope) edge.Token { return edge.Token{Scopes: all} }

// A read that waits gets nothing once its token is removed, or limited to other topics. One whose
// token gets more rights goes on waiting with them.
func TestWithdrawnWhileItWaits(t *testing.T) {
	worker, narrow := scopes(edge.ScopeReceive), scopes(edge.ScopeReceive)
	narrow.Topics = []string{"other"}
	for name, c := range map[string]struct {
		now  map[string]edge.Token
		want string
	}{
		"removed":  {map[string]edge.Token{}, "-NOAUTH Authentication required."},
		"narrowed": {map[string]edge.Token{"worker": narrow}, "-NOPERM topic not granted"},
		"demoted":  {map[string]edge.Token{"worker": scopes(edge.ScopeRead)}, "-NOPERM this token has no permissions to run the 'xreadgroup' command"},
		"widened":  {map[string]edge.Token{"worker": scopes(edge.ScopeReceive, edge.ScopeSchedule)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			admin := scopes(edge.ScopeAdmin)
			callers := tokens(map[string]edge.Token{"admin": admin, "worker": worker})
			waits := edge.NewWaits(0, 0)
			r := newRig(t, Config{Callers: callers, Waits: waits}, withWays())
			boss, w := r.as("admin"), r.as("worker")
			boss.ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$", "MKSTREAM")
			w.command("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "expired:t", ">")
			waiting := func(want int) func() bool {
				return func() bool { n, _ := waits.Count(); return n == want }
			}
			r.await("the read waits", waiting(1))
			c.now["admin"] = admin
			setTokens(t, callers, c.now)
			if c.want != "" {
				w.want(c.want)
				r.await("the read has ended", waiting(0))
			}
			r.expire("t", "k", 1)
			if c.want == "" {
				if ids := idsOf(w.answer()); len(ids) != 1 {
					t.Errorf("it has got %v", ids)
				}
				return
			}
			if ids := boss.read("b", 10); len(ids) != 1 {
				t.Errorf("another reader gets %v", ids)
			}
		})
	}
}

// What a transaction has queued runs with the rights that the client has at EXEC.
func TestWithdrawnInATransaction(t *testing.T) {
	wide, narrow := scopes(edge.ScopeSchedule), scopes(edge.ScopeSchedule)
	narrow.Topics = []string{"own"}
	callers := tokens(map[string]edge.Token{"shop": wide})
	r := newRig(t, Config{Callers: callers, Topics: map[string]string{"": "other", "own:": "own"}}, tasks.Config{})
	w := r.as("shop")
	w.ask("+OK", "SET", "foreign", "v")
	w.ask("+OK", "MULTI")
	for _, c := range []string{"SET own:1 v", "GET foreign", "SET foreign w", "DEL foreign"} {
		w.ask("+QUEUED", strings.Fields(c)...)
	}
	setTokens(t, callers, map[string]edge.Token{"shop": narrow})
	w.ask("*4 +OK -NOPERM topic not granted -NOPERM topic not granted -NOPERM topic not granted", "EXEC")
	w.ask("+OK", "MULTI")
	w.ask("+QUEUED", "SET", "own:2", "v")
	setTokens(t, callers, map[string]edge.Token{"another": wide})
	w.ask("-NOAUTH Authentication required.", "EXEC")
	again := r.as("another")
	again.ask("v", "GET", "foreign")
	again.ask("$-1", "GET", "own:2")
}

// A subscriber hears of the topics that its token has now.
func TestWithdrawnFromASubscriber(t *testing.T) {
	wide, narrow := scopes(edge.ScopeReceive), scopes(edge.ScopeReceive)
	narrow.Topics = []string{"own"}
	callers := tokens(map[string]edge.Token{"shop": wide})
	r := newRig(t, Config{Callers: callers, Topics: map[string]string{"": "other", "own:": "own"}}, tasks.Config{})
	w := r.as("shop")
	w.ask("*3 subscribe "+expiredChannel+" :1", "SUBSCRIBE", expiredChannel)
	r.fire("other", "a")
	w.want("*3 message " + expiredChannel + " a")
	setTokens(t, callers, map[string]edge.Token{"shop": narrow})
	r.fire("other", "b")
	r.fire("own", "own:1")
	w.want("*3 message " + expiredChannel + " own:1")
	setTokens(t, callers, map[string]edge.Token{"another": wide})
	if _, err := w.in.ReadByte(); err != io.EOF {
		t.Errorf("after its token was removed it reads %v", err)
	}
}

// A subscriber hears nothing once its token has no right to subscribe.
func TestSubscriberWithoutRights(t *testing.T) {
	callers := tokens(map[string]edge.Token{"shop": scopes(edge.ScopeReceive), "other": scopes(edge.ScopeSchedule)})
	r := newRig(t, Config{Callers: callers}, tasks.Config{})
	w, other := r.as("shop"), r.as("other")
	w.ask("*3 subscribe news :1", "SUBSCRIBE", "news")
	w.ask("*3 psubscribe * :2", "PSUBSCRIBE", "*")
	other.ask(":2", "PUBLISH", "news", "a")
	w.want("*3 message news a")
	w.want("*4 pmessage * news a")
	setTokens(t, callers, map[string]edge.Token{"shop": scopes(edge.ScopeRead), "other": scopes(edge.ScopeSchedule)})
	other.ask(":0", "PUBLISH", "news", "b")
	setTokens(t, callers, map[string]edge.Token{"shop": scopes(edge.ScopeReceive), "other": scopes(edge.ScopeSchedule)})
	other.ask(":2", "PUBLISH", "news", "c")
	w.want("*3 message news c")
}

// One token has a bounded number of reads that wait, at all connections together.
func TestWaitsOfTokens(t *testing.T) {
	waits := edge.NewWaits(3, 2)
	r := newRig(t, Config{Waits: waits, Callers: tokens(map[string]edge.Token{"greedy": scopes(edge.ScopeReceive), "modest": scopes(edge.ScopeReceive), "admin": scopes(edge.ScopeAdmin)})}, withWays())
	r.as("admin").ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$", "MKSTREAM")
	begin := func(name string) *wire {
		w := r.as(name)
		w.command("XREADGROUP", "GROUP", "g", name, "BLOCK", "0", "COUNT", "1", "STREAMS", "expired:t", ">")
		return w
	}
	held := []*wire{begin("greedy"), begin("greedy")}
	r.await("two wait", func() bool { n, _ := waits.Count(); return n == 2 })
	begin("greedy").want("-TRYAGAIN too many calls of this token wait for tasks (max_waiting_per_token, or half of max_connections)")
	held = append(held, begin("modest"))
	r.await("three wait", func() bool { n, _ := waits.Count(); return n == 3 })
	begin("modest").want("-TRYAGAIN too many calls wait for tasks (max_waiting)")
	r.expire("t", "k", 4)
	if ids := r.as("greedy").read("greedy", 1); len(ids) != 1 {
		t.Errorf("a read that need not wait gets %v", ids)
	}
	for _, w := range held {
		if ids := idsOf(w.answer()); len(ids) != 1 {
			t.Errorf("one that waited gets %v", ids)
		}
	}
	r.await("none waits", func() bool { n, _ := waits.Count(); return n == 0 })
}
