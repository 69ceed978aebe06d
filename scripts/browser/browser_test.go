//go:build browser

package browser

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// patience bounds what a page may take to show something.
const patience = 30 * time.Second

// serve runs a server on a port of its own. It ends with the test, or with stop.
func serve(t *testing.T) (scheduler *tasks.Scheduler, url string, stop func()) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := api.HTTPServer()
	served := make(chan struct{})
	go func() { _ = server.Serve(listener); close(served) }()
	stop = sync.OnceFunc(func() {
		_ = server.Close()
		<-served
		if err := scheduler.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return scheduler, "http://" + listener.Addr().String(), stop
}

// A tab is a page of a browser that collects the page's complaints.
type tab struct {
	*testing.T
	ctx context.Context

	mu         sync.Mutex // guards complaints
	complaints []string
}

func open(t *testing.T, more ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	binary := ""
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			binary = path
			break
		}
	}
	if binary == "" {
		t.Skip("no Chromium is installed (on Debian: apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(binary), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-dev-shm-usage", true))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(options, more...)...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(allocator)
	p := &tab{T: t, ctx: ctx}
	console := chromedp.Console(ctx)
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for m, err := range console {
			if err != nil {
				return
			}
			p.mu.Lock()
			p.complaints = append(p.complaints, m.String())
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() { closeTab(); <-heard })
	return p
}

// load goes to a page and waits until it is there.
func (p *tab) load(url string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Navigate(url)); err != nil {
		p.Fatal(err)
	}
}

func (p *tab) text(element string) string {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.TextContent(element))
	if err != nil {
		p.Fatal(err)
	}
	return text
}

// shows waits until an element has this text.
func (p *tab) shows(element, text string) {
	p.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for {
		now := p.text(element)
		if strings.Contains(now, text) {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			p.Fatalf("%s shows %q, want %q", element, now, text)
		}
	}
}

// content checks that the pages had no complaints.
func (p *tab) content() {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.complaints {
		p.Errorf("the page complains: %s", c)
	}
}

func schedule(t *testing.T, s *tasks.Scheduler, topic string) {
	t.Helper()
	if _, err := s.Schedule(t.Context(), tasks.Request{Topic: topic, Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
}

// The dashboard shows new events without a reload.
func TestDashboard(t *testing.T) {
	scheduler, url, _ := serve(t)
	schedule(t, scheduler, "order.unpaid")
	p := open(t)
	p.load(url)
	p.shows(`[data-total="pending"]`, "1")
	p.shows("#topics", "order.unpaid")
	schedule(t, scheduler, "coupon")
	if err := scheduler.PauseTopic(t.Context(), "order.unpaid", true); err != nil {
		t.Fatal(err)
	}
	p.shows(`[data-total="pending"]`, "2")
	p.shows("#topics", "coupon")
	p.shows("#topics", "paused")
	p.content()
}

// The dashboard shows that a server has gone.
func TestDashboardOfADeadServer(t *testing.T) {
	_, url, stop := serve(t)
	p := open(t)
	p.load(url)
	p.shows(`[data-total="pending"]`, "0")
	stop()
	p.shows("#state", "does not answer")
}

// The page of routes names them all, and each problem has a page.
func TestPages(t *testing.T) {
	_, url, _ := serve(t)
	p := open(t)
	p.load(url + "/docs")
	for _, route := range []string{"/v1/tasks/batch", "/v1/topics/{topic}/reserve", "/v1/receipts/ack", "/readyz"} {
		p.shows("main", route)
	}
	p.load(url + "/problems/outcome_unknown")
	p.shows("main", "unknown")
	p.content()
}

// A page of another site can neither schedule nor read.
func TestForeignPage(t *testing.T) {
	scheduler, url, _ := serve(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	foreign := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<!doctype html><title>foreign</title><p id="outcome"></p><script>
			const body = '{"topic":"stolen","delay":"1h"}', url = "` + url + `/v1/tasks";
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
	if n := scheduler.Stats().Total.Scheduled; n != 0 {
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
	schedule(t, scheduler, "secret")
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
