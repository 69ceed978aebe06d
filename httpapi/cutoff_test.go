package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// A proxied rig is a server that reaches its Redis, and with it the other nodes, through a proxy.
type proxiedRig struct {
	*rig
	name  string
	proxy *redistest.Proxy
}

// newProxiedRig serves a node with a spool.
func newProxiedRig(t *testing.T, redis *redistest.Server, name string) *proxiedRig {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	proxy := redistest.NewProxy(t, redis.Addr)
	ledger, err := redisledger.Open(redisledger.Options{
		URL: proxy.URL(), Node: name, Shards: 4, FailoverAfter: time.Second, Log: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	spool, err := diskledger.Open(t.TempDir(), diskledger.Options{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return &proxiedRig{newRigOn(t, ledger, tasks.Config{Node: name, Spool: spool, AnswerWithin: time.Second}, Config{}), name, proxy}
}

// until repeats a function until it reports true.
func (r *proxiedRig) until(what string, done func() bool) {
	r.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	over := time.After(time.Minute)
	for !done() {
		select {
		case <-tick.C:
		case <-over:
			r.Fatalf("waiting in vain until %s: node %s has %+v", what, r.name, r.scheduler.Stats())
		}
	}
}

// untilAnswered repeats a request about one task until its answer is not node_unavailable.
func (r *proxiedRig) untilAnswered(status int, method, id, body string) (a answer) {
	r.Helper()
	r.until(method+" is answered", func() bool {
		a = r.do(method, "/v1/tasks/"+id, body)
		return a.status != http.StatusServiceUnavailable
	})
	if a.status != status {
		r.Errorf("%s is answered %d, want %d: %s", method, a.status, status, a.body)
	}
	return a
}

// spoolOne schedules a task that only the disk of the node takes.
func (r *proxiedRig) spoolOne(topic, delay string) (id string) {
	r.Helper()
	task := r.want(r.do("POST", "/v1/tasks", `{"topic":"`+topic+`","delay":"`+delay+`"}`), 202)
	if task["durability"] != spooled {
		r.Errorf("it is not spooled: %v", task)
	}
	return task["id"].(string)
}

// A receiver pulls a topic at several servers, and counts how often it gets each task.
type receiver struct {
	mu  sync.Mutex // guards got
	got map[string]int
}

func (c *receiver) pull(ctx context.Context, r *proxiedRig, topic string) {
	for ctx.Err() == nil {
		a := r.do("POST", "/v1/topics/"+topic+"/reserve", `{"max":10,"wait":"100ms","lease":"1h"}`)
		var v struct{ Tasks []ReservedTask }
		if err := json.Unmarshal(a.body, &v); err != nil || a.status != 200 {
			continue
		}
		for i := range v.Tasks {
			t := &v.Tasks[i]
			c.mu.Lock()
			c.got[t.ID]++
			c.mu.Unlock()
			if a := r.do("POST", "/v1/receipts/ack", `{"receipts":["`+t.Receipt+`"]}`); a.status != 200 {
				r.Errorf("ack is answered %d: %s", a.status, a.body)
			}
		}
	}
}

// all returns how many tasks came.
func (c *receiver) all() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got)
}

// A node that is cut off from Redis for so long that another one adopts its shards goes on to
// accept tasks, on its disk. Until it is back, the other node does not answer that these tasks do
// not exist. Afterwards both nodes know them, and each is delivered once.
func TestSpooledWhileCutOff(t *testing.T) {
	for name, how := range map[string]redistest.Severance{"packets vanish": redistest.Stall, "connections break": redistest.Reset} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			a, b := newProxiedRig(t, redis, "a"), newProxiedRig(t, redis, "b")
			held := func(r *proxiedRig, n int) func() bool {
				return func() bool { return r.scheduler.Stats().ShardsHeld == n }
			}
			for _, r := range []*proxiedRig{a, b} {
				r.until("it has its shards, and knows both nodes", func() bool { return held(r, 4)() && len(r.nodesOf()) == 2 })
			}
			a.proxy.Sever(how)
			b.until("it has adopted all shards, and read them", func() bool {
				return held(b, 8)() && b.do("GET", "/readyz", "").status == 200
			})
			cancelled, moved := a.spoolOne("x", "1h"), a.spoolOne("x", "1h")
			const due = 40 // while the node is cut off, when it comes back, and after that
			for i := range due {
				a.spoolOne("due", fmt.Sprintf("%dms", 100*i))
			}
			for _, id := range []string{cancelled, moved} {
				for method, body := range map[string]string{"GET": "", "PATCH": `{"delay":"2h"}`, "DELETE": ""} {
					var a answer
					b.until("it does not doubt its own shards, as it may on a busy machine", func() bool {
						a = b.do(method, "/v1/tasks/"+id, body)
						return !bytes.Contains(a.body, []byte("ledger_unavailable"))
					})
					b.refused(a, 503, "node_unavailable", "")
				}
				a.want(a.do("GET", "/v1/tasks/"+id, ""), 200)
			}
			pulled := &receiver{got: map[string]int{}}
			ctx, cancel := context.WithCancel(context.Background())
			var pulls sync.WaitGroup
			defer pulls.Wait()
			defer cancel()
			for _, r := range []*proxiedRig{a, b} {
				pulls.Go(func() { pulled.pull(ctx, r, "due") })
			}
			a.until("some tasks are delivered", func() bool { return pulled.all() > 0 })

			a.proxy.Heal()
			b.untilAnswered(200, "GET", moved, "")
			b.untilAnswered(204, "DELETE", cancelled, "")
			b.untilAnswered(404, "GET", cancelled, "")
			b.untilAnswered(200, "PATCH", moved, `{"delay":"2h"}`)
			a.until("nothing is left in its spool", func() bool { return a.scheduler.Stats().Spool.Tasks == 0 })
			for _, r := range []*proxiedRig{a, b} {
				r.until("it has its shards", held(r, 4))
				task := r.want(r.untilAnswered(200, "GET", moved, ""), 200)
				if next, err := time.Parse(time.RFC3339, task["next_at"].(string)); err != nil || time.Until(next) < 90*time.Minute {
					t.Errorf("node %s: due at %v, %v", r.name, task["next_at"], err)
				}
				if task["durability"] != nil {
					t.Errorf("node %s: it is still spooled: %v", r.name, task)
				}
			}
			b.until("all tasks are delivered", func() bool { return pulled.all() == due })
			b.untilAnswered(202, "POST", moved+"/fire", "")
			pulls.Go(func() { pulled.pull(ctx, a, "x") })
			pulls.Go(func() { pulled.pull(ctx, b, "x") })
			b.until("the last one is delivered", func() bool { return pulled.all() == due+1 })
			for _, r := range []*proxiedRig{a, b} {
				r.until("nothing is pending", func() bool { return r.scheduler.Stats().Total.Pending == 0 })
			}
			cancel()
			pulls.Wait()
			for id, times := range pulled.got {
				if times != 1 {
					t.Errorf("task %s was delivered %d times", id, times)
				}
			}
			for _, topic := range []string{"x", "due"} {
				for _, r := range []*proxiedRig{a, b} {
					r.reserve(topic, "", 0)
				}
			}
			if pulled.got[moved] == 0 {
				t.Error("the task that was fired is not among them")
			}
		})
	}
}
