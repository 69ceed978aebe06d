//go:build browser

package browser

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// A page of another site can neither schedule nor read.
func TestForeignPage(t *testing.T) {
	r := serve(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	foreign := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<!doctype html><title>foreign</title><p id="outcome"></p><script>
			const body = '{"topic":"stolen","delay":"1h"}', url = "` + r.url + `/v1/tasks";
			const tries = [
				fetch(url, {method: "POST", mode: "no-cors", body}),
				fetch(url, {method: "POST", headers: {"Content-Type": "application/json"}, body}),
				fetch(url).then(a => a.text()).then(() => { throw "read"; }, () => {}),
			];
			Promise.allSettled(tries).then(r => document.getElementById("outcome").textContent =
				"done: " + r.map(x => x.status + (x.reason === "read" ? " read" : "")).join(", "));
		</script>`))
	})}
	served := make(chan struct{})
	go func() { _ = foreign.Serve(listener); close(served) }()
	defer func() { _ = foreign.Close(); <-served }()

	p := open(t)
	p.load("http://" + listener.Addr().String())
	p.shows("#outcome", "done")
	outcome := p.text("#outcome")
	if strings.Contains(outcome, "read") {
		t.Errorf("a foreign page read the tasks: %s", outcome)
	}
	if n := r.Stats().Total.Scheduled; n != 0 {
		t.Errorf("a foreign page scheduled %d tasks", n)
	}
}

// A page whose host's name was made to lead to this machine after it had been loaded is of the same
// origin to the browser, and still reads nothing.
func TestReboundName(t *testing.T) {
	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer scheduler.Close(context.Background())
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, AllowedHosts: []string{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, Scheduler: scheduler}
	r.schedule("secret", "secret", time.Hour)
	both := http.NewServeMux()
	both.Handle("/", api)
	both.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<!doctype html><title>rebound</title><p id="outcome"></p><script>
			const how = [{}, {headers: {"Accept-Language": ""}}, {headers: {"Accept-Language": "x", "User-Agent": "curl"}, referrerPolicy: "no-referrer", credentials: "omit"}];
			Promise.all(how.map(h => fetch("/v1/tasks", h).then(a => a.status))).then(r =>
				document.getElementById("outcome").textContent = "done: " + r.join(", "));
		</script>`))
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: both}
	served := make(chan struct{})
	go func() { _ = server.Serve(listener); close(served) }()
	defer func() { _ = server.Close(); <-served }()

	p := open(t, chromedp.Flag("host-resolver-rules", "MAP rebound.example 127.0.0.1"))
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	p.load("http://rebound.example:" + port + "/page")
	p.shows("#outcome", "done")
	if outcome := p.text("#outcome"); outcome != "done: 403, 403, 403" {
		t.Errorf("the tasks were answered to a rebound page: %s", outcome)
	}
}
