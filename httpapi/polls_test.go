package httpapi

import (
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// waiting waits until so many reserves do.
func (r *rig) waiting(want int) {
	r.Helper()
	r.until("reserves wait", want, func() int {
		n, _ := r.api.waits.Count()
		return n
	})
}

// until waits until a count is as wanted.
func (r *rig) until(what string, want int, count func() int) {
	r.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(time.Minute); count() != want; {
		select {
		case <-tick.C:
		case <-limit:
			r.Fatalf("%s: %d, want %d", what, count(), want)
		}
	}
}

// Reserves that wait have a bound, over HTTP/2 as well, where one connection carries many; past
// it a reserve still gets what is ready.
func TestTooManyWaitingReserves(t *testing.T) {
	for _, proto := range []int{1, 2} {
		hc := Config{Waits: edge.NewWaits(4, 3), Callers: callersOf(
			tokenOf("greedy", edge.ScopeReceive), tokenOf("modest", edge.ScopeReceive), tokenOf("admin", edge.ScopeAdmin),
		)}
		r := newRigWith(t, tasks.Config{}, hc)
		if proto == 2 {
			server := httptest.NewUnstartedServer(nil)
			server.Config = r.api.HTTPServer()
			server.EnableHTTP2 = true
			server.StartTLS()
			t.Cleanup(server.Close)
			r.url, r.client = server.URL, server.Client()
		}
		ask := func(token, topic string) answer {
			return r.do("POST", "/v1/topics/"+topic+"/reserve", `{"wait":"60s"}`, bearer(token))
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { r.want(ask("greedy", "t"), 200) })
		}
		r.waiting(3)
		a := ask("greedy", "t")
		r.refused(a, 429, "overloaded", "")
		if a.header.Get("Retry-After") == "" {
			t.Error("there is no Retry-After")
		}
		all.Go(func() { r.want(ask("modest", "t"), 200) })
		r.waiting(4)
		r.refused(ask("admin", "t"), 429, "overloaded", "")
		r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"u"}`, bearer("admin")), 201)
		r.until("ready", 1, func() int { return int(r.scheduler.Stats().Total.Ready) })
		if got := r.want(ask("greedy", "u"), 200)["tasks"].([]any); len(got) != 1 {
			t.Errorf("got %v of what was ready", got)
		}
		r.want(r.do("POST", "/v1/topics/t/reserve", "", bearer("greedy")), 200)
		if n := r.api.Refusals()["poll"]; n != 2 {
			t.Errorf("HTTP/%d: %d refusals were counted", proto, n)
		}
		r.api.Close()
		all.Wait()
		r.waiting(0)
		if _, n := r.api.waits.Count(); n != 0 {
			t.Errorf("%d tokens are left", n)
		}
	}
}

// A reserve that waits gets nothing once its token is removed, or limited to other topics. One
// whose token has other rights, and may still ask, is answered and asks again.
func TestReserveOfAWithdrawnToken(t *testing.T) {
	narrow := tokenOf("worker", edge.ScopeReceive)
	narrow.Topics = []string{"other"}
	for name, c := range map[string]struct {
		now    []edge.Token
		status int
	}{
		"removed":  {nil, 401},
		"narrowed": {[]edge.Token{narrow}, 403},
		"demoted":  {[]edge.Token{tokenOf("worker", edge.ScopeRead)}, 403},
		"widened":  {[]edge.Token{tokenOf("worker", edge.ScopeReceive, edge.ScopeRead)}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			admin := tokenOf("admin", edge.ScopeAdmin)
			r := newRigWith(t, tasks.Config{}, Config{Callers: callersOf(admin, tokenOf("worker", edge.ScopeReceive))})
			answered := make(chan answer, 1)
			go func() { answered <- r.do("POST", "/v1/topics/t/reserve", `{"wait":"60s"}`, bearer("worker")) }()
			r.waiting(1)
			if err := r.api.callers.Set(append(c.now, admin)); err != nil {
				t.Fatal(err)
			}
			a := <-answered
			if a.status != c.status {
				t.Errorf("it is answered %d %s", a.status, a.body)
			}
			r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t"}`, bearer("admin")), 201)
			v := r.want(r.do("POST", "/v1/topics/t/reserve", `{"wait":"60s"}`, bearer("admin")), 200)
			if n := len(v["tasks"].([]any)); n != 1 {
				t.Errorf("another receiver gets %d tasks", n)
			}
		})
	}
}
