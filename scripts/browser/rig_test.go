//go:build browser

package browser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// patience bounds what a page may take to show something.
const patience = 30 * time.Second

// A rig is a server on a port of its own.
type rig struct {
	*testing.T
	*tasks.Scheduler
	api     *httpapi.Server
	callers *edge.Callers // nil: no tokens
	url     string
	stop    func() // ends it before the test does
}

// serve runs a server whose ledger is on the disk, as that of make run is. LAPSE_LEDGER can name
// another one: redis, or fleet, which is three servers that share a Redis. Then the test schedules
// at the first and looks at the page of the second.
func serve(t *testing.T) *rig {
	t.Helper()
	switch where := os.Getenv("LAPSE_LEDGER"); where {
	case "", "disk":
		ledger, err := diskledger.Open(t.TempDir(), diskledger.Options{MinFree: -1, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return serveOn(t, ledger, tasks.Config{}, httpapi.Config{})
	case "redis":
		return serveRedis(t, redistest.Start(t).Addr, "n1")
	case "fleet":
		nodes := serveFleet(t)
		nodes[0].url, nodes[0].stop = nodes[1].url, nodes[1].stop
		return nodes[0]
	default:
		t.Fatalf("LAPSE_LEDGER is %s, not disk, redis or fleet", where)
		return nil
	}
}

// serveOn runs a server on a ledger.
func serveOn(t *testing.T, ledger recovery.Ledger, of tasks.Config, with httpapi.Config) *rig {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	of.Log, with.Log = quiet, quiet
	scheduler, err := tasks.Open(t.Context(), ledger, of)
	if err != nil {
		t.Fatal(err)
	}
	with.Scheduler = scheduler
	api, err := httpapi.New(with)
	if err != nil {
		t.Fatal(err)
	}
	url, stop := listen(t, api)
	return &rig{t, scheduler, api, with.Callers, url, closing(t, func() {
		stop()
		if err := scheduler.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})}
}

// listen serves an API on a free port.
func listen(t *testing.T, api *httpapi.Server) (url string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := api.HTTPServer()
	served := make(chan struct{})
	go func() { _ = server.Serve(listener); close(served) }()
	return "http://" + listener.Addr().String(), closing(t, func() { _ = server.Close(); <-served })
}

// closing returns a function that runs stop once, and runs it when the test ends.
func closing(t *testing.T, stop func()) func() {
	stop = sync.OnceFunc(stop)
	t.Cleanup(stop)
	return stop
}

// schedule schedules a task by its id.
func (r *rig) schedule(topic, id string, delay time.Duration) {
	r.Helper()
	if _, err := r.Schedule(r.Context(), tasks.Request{ID: id, Topic: topic, Delay: delay, Payload: []byte(`{"of":"` + id + `"}`)}); err != nil {
		r.Fatal(err)
	}
}

// breaks has the tasks of a topic die with their first attempt, for a reason.
func (r *rig) breaks(topic, reason string) {
	r.Helper()
	_, err := r.Admin().ChangeTopic(r.Context(), topic, -1, func(set *tasks.TopicSettings) error {
		set.Retry.MaxAttempts = 1
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	if err := r.Handle(topic, func(context.Context, *tasks.Delivery) error { return errors.New(reason) }); err != nil {
		r.Fatal(err)
	}
}

// A tab is a page of a browser that collects the page's complaints.
type tab struct {
	*testing.T
	ctx   context.Context
	close context.CancelFunc

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
		chromedp.ExecPath(binary), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1280, 800), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-dev-shm-usage", true))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(options, more...)...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(allocator)
	p := &tab{T: t, ctx: ctx, close: closeTab}
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

// openAtNoon opens a page by whose clock it is past noon, whatever the time is: no day begins while
// a test runs. It returns when that day has begun.
func openAtNoon(t *testing.T) (p *tab, midnight time.Time) {
	t.Helper()
	hour := time.Now().UTC().Truncate(time.Hour)
	return open(t, chromedp.Env(fmt.Sprintf("TZ=Etc/GMT%+d", hour.Hour()-12))), hour.Add(-12 * time.Hour)
}

// hurries makes the pages that are loaded from now on look ten times as often at the server, and
// give it a tenth of the time for an answer. The session is asked for after 200 ms, not a minute.
func (p *tab) hurries() {
	p.Helper()
	p.paced("[[2000, 200], [3000, 300], [5000, 500], [10000, 1000], [15000, 1500], [60000, 200]]", 10)
}

// paced makes the pages that are loaded from now on wait otherwise where they wait for so long, in
// ms, and give the server a part of the time for an answer.
func (p *tab) paced(waits string, part int) {
	p.Helper()
	script := fmt.Sprintf(`{
		const timeout = setTimeout, bound = AbortSignal.timeout.bind(AbortSignal), waits = new Map(%s);
		window.setTimeout = (f, ms, ...rest) => timeout(f, waits.get(ms) ?? ms, ...rest);
		AbortSignal.timeout = ms => bound(ms / %d);
	}`, waits, part)
	p.begins(script)
}

// begins makes the pages that are loaded from now on begin with a script.
func (p *tab) begins(script string) {
	p.Helper()
	p.do("begin", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return err
	}))
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

// text returns the text of an element, "" if there is none.
func (p *tab) text(element string) string {
	p.Helper()
	return eval[string](p, "document.querySelector('"+element+"')?.textContent ?? ''")
}

// shows waits until an element has this text.
func (p *tab) shows(element, text string) {
	p.Helper()
	p.waits(func() (bool, string) {
		now := p.text(element)
		return strings.Contains(now, text), element + " shows " + now + ", want " + text
	})
}

// do does something in the page.
func (p *tab) do(what string, action chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, action); err != nil {
		p.Fatalf("%s: %v; the page shows %s", what, err, p.text("body"))
	}
}

// press presses the button, or follows the link, with this text or label.
func (p *tab) press(text string) {
	p.Helper()
	path := `//*[self::button or self::a or self::input][not(@disabled)][normalize-space(.)="` + text + `" or @aria-label="` + text + `"]`
	p.do("press "+text, chromedp.Click(path, chromedp.NodeVisible))
}

// pressIn presses a button within an element.
func (p *tab) pressIn(element, text string) {
	p.Helper()
	p.do("press "+text, chromedp.Click(`//`+element+`//button[not(@disabled)][normalize-space(.)="`+text+`"]`, chromedp.NodeVisible))
}

// confirms presses the button of a question about n tasks, below 1,000, that does what verb says.
func (p *tab) confirms(verb string, n int) {
	p.Helper()
	p.shows("dialog h2", verb+" "+strconv.Itoa(n)+" ")
	p.pressIn("dialog", verb)
}

// submits presses the button of a question that does what is asked about.
func (p *tab) submits() {
	p.Helper()
	p.do("submit", chromedp.Click(`//dialog//button[@type="submit"][not(@disabled)]`, chromedp.NodeVisible))
}

// fill replaces what an input has.
func (p *tab) fill(element, text string) {
	p.Helper()
	p.waits(func() (bool, string) {
		return eval[bool](p, "(e => { e?.focus(); e?.select(); return !!e; })(document.querySelector('"+element+"'))"), "there is no " + element
	})
	p.do("fill "+element, chromedp.KeyEvent(text))
}

// key presses a key.
func (p *tab) key(key string) {
	p.Helper()
	p.do("press a key", chromedp.KeyEvent(key))
}

// pick chooses an option, by its value.
func (p *tab) pick(element, value string) {
	p.Helper()
	p.waits(func() (bool, string) {
		return eval[bool](p, `(e => { if (!e) return false; e.value = "`+value+`"; e.dispatchEvent(new Event("input", {bubbles: true})); return true; })(document.querySelector('`+element+`'))`), "there is no " + element
	})
}

// eval returns the value of an expression in the page.
func eval[T any](p *tab, expression string) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.Fatalf("%s: %v", expression, err)
	}
	return value
}

// hides waits until an element has a text no more.
func (p *tab) hides(element, text string) {
	p.Helper()
	p.waits(func() (bool, string) {
		now := p.text(element)
		return !strings.Contains(now, text), element + " still shows " + now
	})
}

// waits waits until something holds.
func (p *tab) waits(holds func() (bool, string)) {
	p.Helper()
	p.waitsFor(patience, holds)
}

// waitsFor waits so long until something holds.
func (p *tab) waitsFor(patience time.Duration, holds func() (bool, string)) {
	p.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for {
		ok, but := holds()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			p.Fatal(but)
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
