//go:build browser

package browser

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// loadDocs goes to the page of the API, and waits until its forms are there.
func (p *tab) loadDocs(url string) {
	p.Helper()
	p.load("about:blank")
	p.load(url + "/docs")
	p.waits(func() (bool, string) {
		return eval[bool](p, `document.documentElement.dataset.ready === "true"`), "the forms are not there"
	})
}

// try opens an operation, and presses a button of it.
func (p *tab) try(operation, button string) {
	p.Helper()
	eval[int](p, `(document.getElementById("`+operation+`").open = true, 0)`)
	p.do("press "+button, chromedp.Click(`//details[@id="`+operation+`"]//button[normalize-space(.)="`+button+`"]`, chromedp.NodeVisible))
}

// A user schedules a task with the form that comes first, looks at it, and cancels it.
func TestDocsForms(t *testing.T) {
	r := serve(t)
	p := open(t)
	p.loadDocs(r.url)
	if first := eval[string](p, `document.querySelector("details").id`); first != "schedule-task" {
		t.Errorf("the page begins with %s", first)
	}
	p.shows("#schedule-task pre.copy", "curl "+r.url+"/v1/tasks --json '{")
	p.try("schedule-task", "Send")
	p.shows("#schedule-task .answer", "201 Created")
	id := eval[string](p, `document.querySelector('#get-task [name="id"]').value`)
	if !strings.HasPrefix(id, "order-") || id == "order-42" {
		t.Errorf("the example has the id %s, as it had for others", id)
	}
	p.shows("#schedule-task .answer pre", `"id": "`+id+`"`)
	p.try("get-task", "Send")
	p.shows("#get-task .answer", "200 OK")
	p.shows("#cancel-task form .warning", "it is not delivered, and cannot be brought back")
	p.try("cancel-task", "Send")
	p.shows("#cancel-task [type=submit]", "Really send it")
	if _, err := r.Get(t.Context(), id); err != nil {
		t.Errorf("one press has cancelled it: %v", err)
	}
	p.try("cancel-task", "Really send it")
	p.shows("#cancel-task .answer", "204")

	// A stream goes on until the user stops it.
	p.try("events", "Send")
	p.shows("#events .answer pre", ": events")
	p.try("events", "Stop")
	p.shows("#events .answer", "stopped")

	// A link to an operation opens it.
	p.load("about:blank")
	p.load(r.url + "/docs#reserve-tasks")
	p.waits(func() (bool, string) {
		return eval[bool](p, `document.getElementById("reserve-tasks").open`), "it is not open"
	})
	p.content()

	// The console of the browser complains of the failure, and the page shows it.
	p.try("get-task", "Send")
	p.shows("#get-task .answer", "404")
	p.shows("#get-task .answer pre", "/problems/not_found")
}

// On a server with tokens the forms send with the session that the page has begun. The page itself
// wants a token, too, which a browser sends as a password.
func TestDocsWithTokens(t *testing.T) {
	r := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{Callers: callersOf(tokens(edge.ScopeRead, edge.ScopeSchedule)...)})
	p := open(t)
	p.load(r.url + "/")
	p.fill(`[name="token"]`, "read")
	p.press("Log in")
	p.shows(".user", "read")
	p.loadDocs(r.url)
	p.shows("#session", "read")
	p.shows("#schedule-task pre.copy", `curl -H "Authorization: Bearer $TOKEN" `)
	p.try("list-tasks", "Send")
	p.shows("#list-tasks .answer", "200 OK")
	p.try("schedule-task", "Send")
	p.shows("#schedule-task .answer", "403")
	if out := p.ask(`return (await fetch("v1/session", {method: "DELETE", headers: {"X-Lapse-CSRF": (await (await fetch("v1/session")).json()).csrf}})).status + ""`); out != "204" {
		t.Fatalf("to log out is answered %s", out)
	}
	p.load("about:blank")
	p.load(r.url + "/")
	p.fill(`[name="token"]`, "schedule")
	p.press("Log in")
	p.shows(".user", "schedule")
	p.loadDocs(r.url)
	p.try("schedule-task", "Send")
	p.shows("#schedule-task .answer", "201 Created")
}

// The page passes the tests of axe-core with all operations open, in both themes and on a phone,
// where nothing of it is wider than the screen.
func TestDocsAccessible(t *testing.T) {
	r := serve(t)
	p := open(t)
	script, folder := axe(t), os.Getenv("LAPSE_SCREENSHOTS")
	for _, look := range []struct {
		name, theme   string
		width, height int64
	}{{"desktop", "light", 1280, 800}, {"dark", "dark", 1280, 800}, {"phone", "light", 360, 740}} {
		p.do("resize", chromedp.EmulateViewport(look.width, look.height))
		p.theme(look.theme)
		p.loadDocs(r.url)
		p.try("ready", "Send")
		p.shows("#ready .answer", "200 OK")
		eval[int](p, `document.querySelectorAll("details").forEach(d => { d.open = true; }), 0`)
		if wide := eval[int](p, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
			t.Errorf("%s: the page is %d px too wide", look.name, wide)
		}
		eval[int](p, script+"; 0")
		if wrong := p.ask(`
			const r = await axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]});
			return r.violations.map(v => v.id + ": " + v.help + "\n" + v.nodes.slice(0, 3).map(n => "  " + n.html.slice(0, 200) + "\n  " + n.failureSummary).join("\n")).join("\n");`); wrong != "" {
			t.Errorf("%s:\n%s", look.name, wrong)
		}
		if folder != "" {
			eval[int](p, `document.querySelectorAll("details:not(#schedule-task)").forEach(d => { d.open = false; }), 0`)
			p.picture(filepath.Join(folder, "docs-"+look.name+".png"), chromedp.FullScreenshot(100))
		}
	}
	p.content()
}

// Each operation has its example in four languages, and the one that is chosen is so for all. The
// search finds operations by what stands in them.
func TestDocsLanguagesAndSearch(t *testing.T) {
	r := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{Callers: callersOf(tokens(edge.ScopeAdmin)...)})
	p := open(t)
	p.load(r.url + "/")
	p.logIn("admin")
	p.loadDocs(r.url)
	operations := eval[int](p, `document.querySelectorAll("details").length`)
	for language, want := range map[string]string{
		"Go": "Schedule.\nreq, err := http.NewRequestWithContext(ctx, \"POST\", \"" + r.url + "/v1/tasks\"", "TypeScript": "body: JSON.stringify({", "Python": "schedule.\nimport os, urllib.request", "curl": "curl -H",
	} {
		p.try("schedule-task", language)
		p.shows("#schedule-task pre.copy", want)
		if others := eval[int](p, `[...document.querySelectorAll("details .choice")].filter(c => c.querySelectorAll('[aria-pressed="true"]').length === 1 && c.querySelector('[aria-pressed="true"]').textContent === "`+language+`").length`); others != operations {
			t.Errorf("%s is chosen for %d of %d operations", language, others, operations)
		}
	}
	shown := func() string {
		return eval[string](p, `[...document.querySelectorAll("details")].filter(d => d.offsetParent).map(d => d.id).join(" ")`)
	}
	p.key("/")
	p.fill(`[name="search"]`, "PURGE topic")
	p.waits(func() (bool, string) { return strings.Contains(shown(), "purge-topic"), "it is not found" })
	p.shows(".contents [role=status]", "of ")
	if got := shown(); strings.Contains(got, "schedule-task") || strings.Contains(got, "healthz") {
		t.Errorf("found are %s", got)
	}
	p.fill(`[name="search"]`, "no such operation")
	p.shows(".contents [role=status]", "0 of ")
	p.fill(`[name="search"]`, "missing-spools")
	p.key("\r")
	p.waits(func() (bool, string) {
		return eval[bool](p, `document.getElementById("give-up-spools").open`), "Enter leads nowhere"
	})
	p.shows("#give-up-spools .warning", "cannot be brought back")
	p.content()
}
