package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/edge/edgetest"
	"github.com/lapsehq/lapse/metrics"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// probed starts a server with room for n connections, and that of probes, both without a
// scheduler. The second rig is that of probes.
func probed(t *testing.T, n int, hc Config) (all, health *rig) {
	t.Helper()
	if hc.Log == nil {
		hc.Log = slog.New(slog.DiscardHandler)
	}
	hc.Metrics = metrics.Handler
	api, err := New(hc)
	if err != nil {
		t.Fatal(err)
	}
	start := func(limit func(net.Listener) (*http.Server, net.Listener)) *rig {
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{TB: t, api: api, url: "http://" + inner.Addr().String(), client: &http.Client{Transport: &http.Transport{}}}
		var l net.Listener
		r.server, l = limit(inner)
		served := make(chan error, 1)
		go func() { served <- r.server.Serve(l) }()
		t.Cleanup(func() {
			r.client.CloseIdleConnections()
			if err := r.server.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
		return r
	}
	health = start(func(inner net.Listener) (*http.Server, net.Listener) {
		return api.HealthServer(inner)
	})
	all = start(func(inner net.Listener) (*http.Server, net.Listener) {
		server := api.HTTPServer()
		return server, api.LimitConnections(server, inner, n)
	})
	return all, health
}

// attach gives both servers a scheduler.
func (r *rig) attach() {
	r.Helper()
	scheduler, err := tasks.Open(context.Background(), memledger.New(), tasks.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		r.api.Close() // ends what still waits
		if err := scheduler.Close(context.Background()); err != nil {
			r.Error(err)
		}
	})
	r.scheduler = scheduler
	r.api.Attach(scheduler)
}

// everywhere are routes that the server of probes does not have, each with a method that the API
// has.
var everywhere = map[string]string{
	"/": "GET", "/docs": "GET", "/openapi.json": "GET", "/problems/not_found": "GET", "/nowhere": "GET", "/healthz/": "GET", "/metrics/x": "GET",
	"/v1/stats": "GET", "/v1/tasks": "POST", "/v1/tasks/a": "DELETE", "/v1/tasks/batch": "POST", "/v1/events": "GET", "/v1/nodes": "GET",
	"/v1/topics": "GET", "/v1/topics/t/reserve": "POST", "/v1/receipts/ack": "POST", "/v1/forecast": "GET",
}

// The server of probes has three routes, and answers them as the other one does.
func TestRoutesOfProbes(t *testing.T) {
	all, r := probed(t, 100, Config{})
	r.want(r.do("GET", "/healthz", ""), 200)
	if ready := r.want(r.do("GET", "/readyz", ""), 503); ready["starting"] != true {
		t.Errorf("before there is a scheduler: %v", ready)
	}
	r.refused(r.do("GET", "/metrics", ""), 503, "starting", "")
	all.attach()
	r.want(r.do("GET", "/healthz", ""), 200)
	if ready := r.want(r.do("GET", "/readyz", ""), 200); ready["starting"] != false {
		t.Errorf("with a scheduler: %v", ready)
	}
	if a := r.do("GET", "/metrics", ""); a.status != 200 || !strings.Contains(string(a.body), "lapse_ready 1") {
		t.Errorf("/metrics: %d, %s", a.status, a.body)
	}
	if a := r.do("HEAD", "/healthz", ""); a.status != 200 || len(a.body) > 0 {
		t.Errorf("HEAD: %d, %s", a.status, a.body)
	}
	for path, method := range everywhere {
		r.refused(r.do(method, path, ""), 404, "no_such_route", "")
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		a := r.do("POST", path, "{}")
		if r.refused(a, 405, "method_not_allowed", ""); a.header.Get("Allow") != "GET, HEAD, OPTIONS" {
			t.Errorf("POST %s: Allow is %q", path, a.header.Get("Allow"))
		}
	}
	all.empty()
	// The probes report a stop, and are answered on.
	all.api.Close()
	if ready := r.want(r.do("GET", "/readyz", ""), 503); ready["shutting_down"] != true {
		t.Errorf("in a stop: %v", ready)
	}
}

// The server of probes admits the same callers as the other one.
func TestProbesWithTokens(t *testing.T) {
	all, r := probed(t, 100, Config{Callers: callersOf(tokenOf("read", edge.ScopeRead), tokenOf("shop", edge.ScopeSchedule))})
	all.attach()
	r.want(r.do("GET", "/healthz", ""), 200)
	ready := r.want(r.do("GET", "/readyz", ""), 200)
	if ledger := ready["ledger"].(map[string]any); ledger["where"] != nil {
		t.Errorf("%v", ready)
	}
	for token, status := range map[string]int{"read": 200, "shop": 403, "other": 401} {
		if a := r.do("GET", "/metrics", "", bearer(token)); a.status != status {
			t.Errorf("/metrics for the token %s: %d", token, a.status)
		}
	}
	r.refused(r.do("GET", "/metrics", ""), 401, "unauthorized", "")
	for path, method := range everywhere {
		r.refused(r.do(method, path, ""), 404, "no_such_route", "")
	}
}

// The server of probes is called by the names of the other one.
func TestNamesOfProbes(t *testing.T) {
	all, r := probed(t, 100, Config{AllowedHosts: []string{"lapse.example"}})
	all.attach()
	for host, status := range map[string]int{"lapse.example:7481": 200, "10.0.0.7:7481": 200, "localhost": 200, "evil.example": 403} {
		for _, path := range []string{"/healthz", "/metrics"} {
			q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			q.Host = host
			if a := r.send(q); a.status != status {
				t.Errorf("%s of %s is answered %d, want %d", path, host, a.status, status)
			}
		}
	}
	r.refused(r.do("GET", "/healthz", "", "Origin: https://evil.example"), 403, "cross_origin", "")
}

// Probes are answered while all connections of the server are in use.
func TestProbesWhileConnectionsAreInUse(t *testing.T) {
	log := make(lines, 100)
	all, r := probed(t, 1, Config{Log: slog.New(log)})
	all.attach()
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		a, err := all.client.Post(all.url+"/v1/topics/t/reserve", mediaJSON, strings.NewReader(`{"wait":"60s"}`))
		if err == nil {
			a.Body.Close()
		}
	}()
	t.Cleanup(func() { all.api.Close(); <-waits })
	// Until the one connection is that of the reserve: then another one waits, and the log says so.
	for waiting := 0; waiting == 0; {
		waiting, _ = all.api.waits.Count()
	}
	second, err := net.Dial("tcp", strings.TrimPrefix(all.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	for line := range log {
		if strings.HasPrefix(line, "all connections are in use") {
			break
		}
	}
	r.want(r.do("GET", "/healthz", ""), 200)
	r.want(r.do("GET", "/readyz", ""), 200)
	if a := r.do("GET", "/metrics", ""); a.status != 200 {
		t.Errorf("/metrics: %d", a.status)
	}
}

// The server of probes has a few connections of its own. Those whose request stays incomplete give
// way.
func TestConnectionsOfProbes(t *testing.T) {
	all, r := probed(t, 100, Config{})
	all.attach()
	for range probeConnections {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	r.want(r.do("GET", "/healthz", ""), 200)
	if n := r.api.Refusals()["unfinished"]; n == 0 {
		t.Error("no connection has given way")
	}
}

// One address has half of the connections for probes, or fewer if Config says so.
func TestProbesOfOneAddress(t *testing.T) {
	for perAddress, want := range map[int]int{0: probeConnections / 2, 7: 7, 1000: probeConnections / 2} {
		api, err := newServer(Config{Log: slog.New(slog.DiscardHandler), MaxConnectionsPerAddress: perAddress})
		if err != nil {
			t.Fatal(err)
		}
		inner := make(edgetest.Offered, probeConnections)
		_, l := api.HealthServer(inner)
		if n := acceptedFrom(inner, l); n != want {
			t.Errorf("with %d: %d were accepted", perAddress, n)
		}
	}
}

// Metrics for probes are made by a handler of their own, so that the bound on how many are made at
// once is not used up elsewhere.
func TestMetricsOfProbes(t *testing.T) {
	made := 0
	api, err := newServer(Config{Metrics: func(*tasks.Scheduler) http.Handler {
		made++
		text := []byte{'0' + byte(made)}
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) })
	}})
	if err != nil {
		t.Fatal(err)
	}
	api.Attach(nil)
	server, _ := api.HealthServer(edgetest.Offered(nil))
	for want, handler := range map[string]http.Handler{"1": api, "2": server.Handler} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != 200 || w.Body.String() != want {
			t.Errorf("answered %d %q, want %q", w.Code, w.Body, want)
		}
	}
}

// The port for clients of Redis is told of before there is a scheduler and after, and whether it
// serves does not decide whether the node is ready. Callers who may not read learn no more than
// that.
func TestReadinessTellsOfTheRedisPort(t *testing.T) {
	state := RedisPort{Fault: "too many open files", Address: "redis://127.0.0.1:7481", Connections: 3, Subscribers: 2, SubscribersCut: 1, EventsUnsent: 4, EventsLost: 5}
	r := guarded(t, Config{Redis: func() *RedisPort { return &state }})
	r.until("the status of /readyz", http.StatusOK, func() int { return r.do("GET", "/readyz", "").status })
	if v := r.want(r.do("GET", "/readyz", ""), 200)["redis"].(map[string]any); v["serving"] != false || v["address"] != nil || v["fault"] != nil || v["connections"] != 0.0 {
		t.Errorf("without a token it is %v", v)
	}
	state.Serving = true
	if v := r.want(r.do("GET", "/readyz", ""), 200)["redis"].(map[string]any); v["serving"] != true {
		t.Errorf("a port that serves is %v", v)
	}
	if state.Address == "" {
		t.Error("the state of the port was changed")
	}
	if v := r.want(r.do("GET", "/v1/stats", "", bearer("read")), 200)["state"].(map[string]any)["redis"].(map[string]any); v["address"] != state.Address ||
		v["fault"] != state.Fault || v["connections"] != 3.0 || v["subscribers"] != 2.0 || v["subscribers_cut"] != 1.0 || v["events_unsent"] != 4.0 || v["events_lost"] != 5.0 {
		t.Errorf("with a token it is %v", v)
	}
}
