//go:build browser

package browser

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// serveAt serves a handler at an address of its own until the test ends.
func serveAt(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	served := make(chan struct{})
	go func() { _ = server.Serve(listener); close(served) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	return "http://" + listener.Addr().String()
}

// ask runs a script in the page, which is the body of an asynchronous function, and returns its
// text.
func (p *tab) ask(script string) string {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("(async () => {"+script+"})()", chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatal(err)
	}
	return text
}

// tokens are those of a server on which each name has one scope; the name is the token, too.
func tokens(scopes ...edge.Scope) (all []edge.Token) {
	for _, scope := range scopes {
		all = append(all, edge.Token{Name: string(scope), Scopes: []edge.Scope{scope}, SHA256: sha256.Sum256([]byte(scope))})
	}
	return all
}

func callersOf(all ...edge.Token) *edge.Callers {
	callers, err := edge.NewCallers(all)
	if err != nil {
		panic(err)
	}
	return callers
}

// A user who may only read sees no buttons, and one whom the server does not know sees no figures.
func TestScopesInThePage(t *testing.T) {
	r := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{Callers: callersOf(tokens(edge.ScopeRead, edge.ScopeAdmin)...)})
	r.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.load(r.url + "/#/topics/order.unpaid")
	login := func(token string) {
		p.shows("h1", "Lapse")
		p.fill(`[name="token"]`, token)
		p.press("Log in")
	}
	login("wrong")
	p.shows("[role=alert]", "the token is unknown")
	login("read")
	p.shows("main", "Falls due")
	p.shows(".user", "read")
	if n := eval[int](p, `document.querySelectorAll("main .head .actions").length`); n != 0 {
		t.Errorf("one who may only read sees %d groups of buttons", n)
	}
	p.press("Log out")
	login("admin")
	p.press("Pause")
	p.shows("h1", "paused")
}

// A token that is limited to topics shows those, and one that may only schedule finds its tasks.
func TestLimitedTokens(t *testing.T) {
	all := tokens(edge.ScopeRead, edge.ScopeSchedule)
	all[0].Topics = []string{"order.*"}
	r := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{Callers: callersOf(all...)})
	r.schedule("order.unpaid", "order-42", time.Hour)
	r.schedule("coupon", "coupon-1", time.Hour)
	p := open(t)
	p.load(r.url)
	p.fill(`[name="token"]`, "read")
	p.press("Log in")
	p.shows("h1", "1 topic")
	p.press("order.unpaid")
	p.shows("main", "Falls due")
	p.press("Tasks")
	p.shows("main", "order-42")
	p.hides("main", "coupon-1")
	p.press("Log out")
	p.shows("h1", "Lapse")
	p.fill(`[name="token"]`, "schedule")
	p.press("Log in")
	p.shows(".bar nav", "Tasks")
	p.hides(".bar nav", "Topics")
	p.press("Tasks")
	p.shows("main", "coupon-1")
	links := func() int { return eval[int](p, `document.querySelectorAll('main a[href*="/topics/"]').length`) }
	if n := links(); n != 0 {
		t.Errorf("one who may see no topic is led to %d", n)
	}
	p.press("coupon-1")
	p.shows("main", "Facts")
	if n := links(); n != 0 {
		t.Errorf("one who may see no topic is led to %d", n)
	}
	p.content()
}

// A user logs in with a token, and the browser keeps the session. Neither a script nor a page at
// another port of the host can use it.
func TestSession(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = scheduler.Close(context.Background()) })
	admin := edge.Token{Name: "admin", Scopes: []edge.Scope{edge.ScopeAdmin}, SHA256: sha256.Sum256([]byte("a token"))}
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Log: quiet, Callers: callersOf(admin)})
	if err != nil {
		t.Fatal(err)
	}
	url := serveAt(t, api)

	p := open(t)
	p.load(url)
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.WaitVisible("form input[name=token]"), chromedp.SendKeys("form input[name=token]", "a token"), chromedp.Click("form button")); err != nil {
		t.Fatal(err)
	}
	const ask = `
		const status = async (method, path, headers) => (await fetch(path, {method, headers})).status;
		let session;
		do session = await (await fetch("v1/session")).json(); while (!session.name && await new Promise(r => setTimeout(r, 50, true)));`
	if got := p.ask(ask + `return [session.name, document.cookie, await status("GET", "v1/stats")].join()`); got != "admin,,200" {
		t.Errorf("after the login: %s", got)
	}
	if got := p.ask(ask + `return [await status("POST", "v1/topics/t/pause", {"X-Lapse-CSRF": session.csrf})].join()`); got != "204" {
		t.Errorf("the page is answered %s", got)
	}

	// Another server on the machine gets the cookie, for a host has the same for all its ports. It
	// can make the browser send nothing that is answered.
	stolen := make(chan string, 10)
	other := serveAt(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stolen <- r.Header.Get("Cookie")
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>other</title>"))
	}))
	p.load(other)
	if cookie := <-stolen; strings.Contains(cookie, "a token") || strings.Contains(cookie, "YSB0b2tlb") {
		t.Errorf("another server learns the token: %s", cookie)
	}
	got := p.ask(`
		const call = (path, init) => fetch("` + url + `/" + path, {credentials: "include", ...init}).then(a => a.type + a.status, () => "failed");
		return [await call("v1/session"), await call("v1/topics/t/resume", {method: "POST", mode: "no-cors"}),
			await call("v1/topics/t/resume", {method: "POST", headers: {"X-Lapse-CSRF": "x"}}), await call("v1/session", {method: "DELETE", mode: "no-cors"})].join()`)
	if got != "failed,opaque0,failed,failed" {
		t.Errorf("the other page is answered %s", got)
	}
	if topic, err := scheduler.Topic("t"); err != nil || !topic.Settings.Paused {
		t.Errorf("the topic is %v, %v", topic.Settings.Paused, err)
	}

	p.load(url)
	if got := p.ask(ask + `return [await status("DELETE", "v1/session", {"X-Lapse-CSRF": session.csrf}), await status("GET", "v1/stats")].join()`); got != "204,401" {
		t.Errorf("after the logout: %s", got)
	}
}
