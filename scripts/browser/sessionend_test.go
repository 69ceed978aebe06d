//go:build browser

package browser

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// logIn begins a session in the page.
func (p *tab) logIn(token string) {
	p.Helper()
	p.fill(`[name="token"]`, token)
	p.press("Log in")
	p.shows(".user", token)
}

// A token that is taken away leads to the form, whatever view is open: also one whose token opens
// no figures.
func TestTokenTakenAway(t *testing.T) {
	r := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{Callers: callersOf(tokens(edge.ScopeSchedule)...)})
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/tasks")
	p.logIn("schedule")
	p.shows("main", "No task is as the filter says.")
	if err := r.callers.Set(tokens(edge.ScopeRead)); err != nil {
		t.Fatal(err)
	}
	p.shows("h1", "Lapse")
	p.shows("form", "Log in")
}

// The page asks each minute what its token opens: buttons vanish when that is less than before.
// While nothing changes, no view begins anew.
func TestSessionIsAskedAgain(t *testing.T) {
	all := tokens(edge.ScopeAdmin)
	r := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{Callers: callersOf(all...)})
	r.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/topics/order.unpaid")
	p.logIn("admin")
	p.shows("main", "Pause")
	asked := func(path string) int {
		return eval[int](p, `performance.getEntriesByType("resource").filter(e => e.name.endsWith("`+path+`")).length`)
	}
	from := asked("v1/session")
	nodes := asked("v1/nodes") // every ten seconds, and when the session is another one
	p.waits(func() (bool, string) { return asked("v1/session") >= from+5, "the page does not ask again" })
	if n := asked("v1/nodes"); n > nodes+1 {
		t.Errorf("the frame has begun %d times", n)
	}
	all[0].Scopes = []edge.Scope{edge.ScopeRead}
	if err := r.callers.Set(all); err != nil {
		t.Fatal(err)
	}
	p.hides("main", "Pause")
	p.shows("main", "Falls due")
	p.content()
}

// A page whose session is not known asks until it has an answer. One that is refused leads to the
// form.
func TestSessionIsRefused(t *testing.T) {
	r := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{Callers: callersOf(tokens(edge.ScopeAdmin)...)})
	var status atomic.Int32
	status.Store(http.StatusServiceUnavailable)
	url := r.behind(func(w http.ResponseWriter, q *http.Request) bool {
		if status.Load() == 0 || !strings.HasSuffix(q.URL.Path, "/v1/session") {
			return false
		}
		w.WriteHeader(int(status.Load()))
		return true
	})
	p := open(t)
	p.load(url)
	p.shows(".asking", "Asking the server")
	status.Store(http.StatusUnauthorized)
	p.shows("form", "Log in")
	status.Store(0)
	p.logIn("admin")
	p.shows("h1", "Nothing is late.")
}

// The user has logged in anew in another tab: what this one sends belongs to the session before. It
// asks for the present one, and does what it was told.
func TestSessionOfAnotherTab(t *testing.T) {
	r := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{Callers: callersOf(tokens(edge.ScopeAdmin)...)})
	r.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.load(r.url + "/#/topics/order.unpaid")
	p.logIn("admin")
	p.shows("main", "Pause")
	if got := p.ask(`return String((await fetch("v1/session", {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"token":"admin"}'})).status)`); got != "200" {
		t.Fatalf("the other login is answered %s", got)
	}
	p.press("Pause")
	p.shows(".notices", "order.unpaid is paused.")
	p.shows("h1", "paused")
}
