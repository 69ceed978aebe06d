//go:build browser

package browser

import (
	"net/http"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// The page of routes names them all, and each problem has a page.
func TestPages(t *testing.T) {
	url := serve(t).url
	p := open(t)
	p.load(url + "/docs")
	for _, route := range []string{"/v1/tasks/batch", "/v1/topics/{topic}/reserve", "/v1/receipts/ack", "/readyz"} {
		p.shows("main", route)
	}
	p.load(url + "/problems/outcome_unknown")
	p.shows("main", "unknown")
	p.content()
}

// Below a path of another server all works that works at the root: the session, whose cookie is of
// that path, what changes something, and the other pages. It does so too where a proxy takes the
// path away.
func TestBelowAPrefix(t *testing.T) {
	for name, around := range map[string]func(http.Handler) http.Handler{
		"kept":       func(api http.Handler) http.Handler { return api },
		"taken away": func(api http.Handler) http.Handler { return http.StripPrefix("/shop/lapse", api) },
	} {
		t.Run(name, func(t *testing.T) {
			r := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{Prefix: "/shop/lapse", Callers: callersOf(tokens(edge.ScopeAdmin)...)})
			mux := http.NewServeMux()
			mux.Handle("/shop/lapse/", around(r.api))
			r.schedule("order.unpaid", "order-42", time.Hour)
			p := open(t)
			url := serveAt(t, mux) + "/shop/lapse"
			p.load(url)
			p.shows("h1", "Lapse")
			p.fill(`[name="token"]`, "admin")
			p.press("Log in")
			p.shows(`[data-figure="pending"] dd`, "1")
			p.load(url + "/#/topics/order.unpaid")
			p.press("Pause")
			p.shows("h1", "paused")
			p.load(url + "/docs")
			p.shows("main", "/v1/tasks/batch")
			p.content()
		})
	}
}
