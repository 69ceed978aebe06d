//go:build browser

package browser

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A question of the night is answered by the page after two clicks from the overview at most.
type question struct {
	asks string
	// clicks lead from the overview to the answer: scripts, each of which does one click and
	// returns whether it could.
	clicks []string
	// answers are what the page shows of it: of an element, given by an expression, the text.
	answers []answer
	since   bool // they may be marked as of a time, since not all nodes have run for longer
	counts  bool // some are of what the nodes have counted since they run
}

type answer struct{ element, right string }

// Clicks.
const (
	clickOn  = `press("%s")`
	theBar   = `bar()`
	theNodes = `press("Nodes")`
	theDead  = `click(row("Topics with something wrong, the worst first", "invoice.send")?.querySelector('a[href*="/dead"]'))`
	theMenu  = `choose("%s", "%s")`
	findTask = `search("%s")`
	filterBy = `filter("%s", "%s")`
)

// The books of the test: what it has scheduled, and what became of it. None of it changes while the
// fleet does.
const (
	late, lateOfToday, retrying, buried, soon, through, heldBack, campaign, others = 9, 3, 9, 15, 30, 24, 6, 21, 4

	overdue = late + lateOfToday + retrying + heldBack
	pending = retrying + soon + campaign + others + 1
	wave    = late + retrying + buried + through + heldBack
)

// night are the twelve questions of one who is woken, and six more.
var night = []question{
	{"what is late now, and since when", nil, []answer{
		{`figure("overdue")`, fmt.Sprintf(`^Overdue%doldest .*, %d retrying, %d paused$`, overdue, retrying, heldBack)},
		{`row("Topics with something wrong, the worst first", "order.unpaid")`, fmt.Sprintf(`%d tasks overdue; no receiver pulls, the oldest due since .*00:00`, late+lateOfToday)},
	}, false, false},
	{"which topic fails, and with which error", nil, []answer{
		{`row("Topics with something wrong, the worst first", "invoice.send")`, fmt.Sprintf(`%d failed.*no such template.*%d dead`, buried, buried)},
		{`row("Topics with something wrong, the worst first", "mail.reminder")`, fmt.Sprintf(`%d tasks overdue, %d of them after a failed attempt.*%d failed.*no such template`, retrying, retrying, retrying)},
	}, false, true},
	{"what is dead, and why", []string{fmt.Sprintf(clickOn, "Dead")}, []answer{
		{`find("h1")`, fmt.Sprintf("^%d dead tasks$", buried)},
		{`row("Reasons", "no such template")`, fmt.Sprintf("no such template: invoice_#%dinvoice.sendattempts used up", buried)},
		{`row("Topics with dead tasks", "invoice.send")`, fmt.Sprintf("invoice.send%d", buried)},
	}, false, false},
	{"where is order 42", []string{fmt.Sprintf(findTask, "order-42")}, []answer{
		{`row("Tasks", "order-42")`, "order-42order.unpaidpending"},
	}, false, false},
	{"what falls due in the next ten minutes", nil, []answer{
		{`figure("soon")`, fmt.Sprintf("^Due in 10 min%d$", soon)},
	}, false, false},
	{"is the wave of midnight through", []string{fmt.Sprintf(clickOn, "Tasks"), fmt.Sprintf(theMenu, "due", "midnight")}, []answer{
		{`find("#count")`, fmt.Sprintf(`^%d ready left of what was due by midnight.$`, lateOfToday)},
	}, false, false},
	{"which node is down, and which has its tasks", []string{theNodes}, []answer{
		{`find("h1")`, `^All 3 nodes are there.$`},
		{`row("Nodes", "n3")`, `^n3.*live`},
	}, false, false},
	{"is anybody pulling this topic", []string{fmt.Sprintf(clickOn, "order.unpaid")}, []answer{
		{`figure("receivers")`, `^Receivers waiting0none pulls now$`},
		{`figure("ready")`, fmt.Sprintf("^Ready%dthe oldest", late+lateOfToday)},
		{`figure("pending")`, "^Pending1none is retrying$"},
	}, false, false},
	{"pause it", []string{fmt.Sprintf(clickOn, "mail.reminder")}, []answer{ // with the second click
		{`button("Pause")`, "^Pause$"},
	}, false, false},
	{"requeue yesterday's dead", []string{theDead, fmt.Sprintf(theMenu, "died", "yesterday")}, []answer{
		{`find("#count")`, `^No task of invoice.send.*yesterday.$`},
	}, false, false},
	{"move a campaign by a day", []string{fmt.Sprintf(clickOn, "Tasks"), fmt.Sprintf(filterBy, "group", "autumn")}, []answer{
		{`find("#count")`, fmt.Sprintf("^%d pending in group autumn.$", campaign)},
	}, false, false},
	{"is this the whole fleet", nil, []answer{
		{`find("#reach")`, "^All 3 nodes$"},
	}, false, false},
	{"since when does it fail", []string{fmt.Sprintf(clickOn, "mail.reminder")}, []answer{
		{`find("#trouble")`, fmt.Sprintf(`mail.reminder is failing, since .*: 0 of %d attempts of the last 5 minutes succeeded: .*no such template`, retrying)},
		{`figure("pending")`, fmt.Sprintf("^Pending%d%d retrying$", retrying, retrying)},
		{`figure("failed")`, fmt.Sprintf("^Failed attempts%d", retrying)},
	}, false, true},
	{"what changed at 02:10", nil, []answer{
		{`find(".marks")`, `order.unpaid got other settings \(lease\)`},
		{`chart("Attempts, last hour")`, fmt.Sprintf("^%d delivered, %d attempts failed since", through, buried+retrying)},
	}, true, false},
	{"how far is the wave", []string{theBar}, []answer{
		{`find("#wave")`, fmt.Sprintf("^%d of %d tasks are through(, as far as it is known)?. $", through+buried, wave)},
		{`row("Topics of the wave", "cart.reminder")`, fmt.Sprintf("^cart.reminder%d%d.*100 %%", through, through)},
	}, true, false},
	{"who paused it", []string{fmt.Sprintf(clickOn, "groupbuy.close"), fmt.Sprintf(clickOn, "Who changed them")}, []answer{
		{`row("Actions", "pause")`, "without a token.*pausegroupbuy.close"},
	}, false, false},
	{"what would this filter hit", []string{fmt.Sprintf(clickOn, "Tasks"), fmt.Sprintf(filterBy, "topic", "newsletter")}, []answer{
		{`find("#count")`, fmt.Sprintf("^%d pending of newsletter.$", campaign+others)},
	}, false, false},
	{"what is not known now", nil, []answer{
		{`find(".head .fresh")`, "^Live$"},
		{`find("h1")`, "^2 topics are late; 2 topics are failing.$"},
		{`figure("pending")`, fmt.Sprintf("^Pending%d%d retrying$", pending, retrying)},
		{`figure("ready")`, fmt.Sprintf("^Ready%dthe oldest", late+lateOfToday+heldBack)},
		{`figure("dead")`, fmt.Sprintf("^Dead%dthe oldest", buried)},
	}, false, false},
}

// finders are what the expressions of elements and clicks call.
const finders = `
	const find = css => document.querySelector(css);
	const row = (table, text) => [...document.querySelectorAll('table[aria-label="' + table + '"] tbody tr')].find(r => r.textContent.includes(text));
	const button = text => [...document.querySelectorAll("button:enabled")].find(b => b.textContent === text);
	const figure = name => find('[data-figure="' + name + '"]');
	const chart = title => find('[aria-label="' + title + '"] figcaption');
	const done = act => { act(); return true; };
	const click = e => !!e && done(() => e.click());
	const press = text => { const e = [...document.querySelectorAll("a, button")].find(e => !e.disabled && e.textContent.replace(/(Dead)\d+$/, "$1").trim() === text); return click(e); };
	const type = (input, text) => { input.value = text; input.dispatchEvent(new Event("input", {bubbles: true})); };
	// What is typed or chosen counts once the address has it.
	const choose = (name, value) => { const e = find('main [name="' + name + '"]'); return !!e && (location.hash.includes("=" + value) || (type(e, value), false)); };
	const send = (input, text) => !!input && (location.hash.includes("=" + text) || (type(input, text), setTimeout(() => input.form?.requestSubmit(), 50), false));
	const search = text => send(find('[role="search"] input'), text);
	const filter = (name, text) => send(find('main form [name="' + name + '"]'), text);
	// bar clicks at the minute whose tasks are a wave. The chart ends with the minute of its last answer.
	const bar = () => {
		const over = find('[aria-label="Attempts, last hour"] .u-over'), end = Math.floor(Date.now() / 60_000 + 1) * 60_000;
		if (!over) return false;
		const box = over.getBoundingClientRect(), left = box.left + box.width * (1 - (end - minute - 30_000) / 3_660_000);
		over.dispatchEvent(new MouseEvent("click", {bubbles: true, clientX: left, clientY: box.top + 20}));
		if (location.hash.includes(encodeURIComponent(new Date(minute).toISOString()))) return true;
		if (location.hash.length > 2) location.hash = "#/";
		return false;
	};
	const marks = /at least|not known|nothing is known|as far as it is known|without those of|not all |were looked at|\d of \d nodes|do(es)? not answer|so far|is not counted|fewer than|cut off|silent|reads|down|^Counting…$/i;
	// marked is how the page says that what an element shows is of a part, or old. "" if it does not.
	const marked = (e, counts) => {
		if (find("#gone")?.textContent) return "gone";
		if (counts && /is down|without what it has counted/.test(find("#banners").textContent)) return "in a banner";
		if (marks.test(e.textContent)) return "in words";
		for (let at = e; at; at = at.parentElement) {
			if (at.classList.contains("stale")) return "stale";
			for (const child of at.children) {
				const fresh = child.matches(".head, .section") && child.querySelector(".fresh.bad");
				if (fresh) return fresh.textContent || "loading";
				if (child.matches(".hint, .marks, .fault") && marks.test(child.textContent)) return child.textContent;
			}
		}
		return "";
	};`

// A shown is what the page shows of an answer.
type shown struct{ Text, Marked string }

// sample returns what a tab shows of all answers to some questions.
func (s *seen) sample(questions []*question) (all []shown) {
	s.Helper()
	var elements []string
	for _, q := range questions {
		for _, a := range q.answers {
			elements = append(elements, fmt.Sprintf("[%s, %t]", a.element, q.counts))
		}
	}
	text := s.ask(s.finders() + `return JSON.stringify([` + strings.Join(elements, ",") + `].map(([e, counts]) => (e ? {text: e.textContent.replace(/\s+/g, " "), marked: marked(e, counts)} : {text: "", marked: ""})));`)
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		s.Fatalf("%s: %v", text, err)
	}
	return all
}

// books schedules what the test knows of, and waits until it has become of it what the books say.
// It returns the minute of the wave.
func books(t *testing.T, nodes []*process, midnight time.Time) (minute time.Time) {
	t.Helper()
	fails := serveAt(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		if strings.HasPrefix(q.URL.Path, "/fails") {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, "no such template: invoice_v2")
		}
	}))
	n1 := nodes[0]
	hook := func(topic, path, retry string) {
		n1.does("PUT", "/v1/topics/"+topic, `{"delivery":{"kind":"webhook","url":"`+fails+path+`"},"retry":`+retry+`}`)
	}
	hook("invoice.send", "/fails", `{"max_attempts":1}`)
	hook("mail.reminder", "/fails", `{"max_attempts":100,"min_backoff":"1h","max_backoff":"1h"}`)
	hook("cart.reminder", "/takes", `{"max_attempts":1}`)
	n1.does("POST", "/v1/topics/groupbuy.close/pause", "")
	now := time.Now()
	made := 0
	schedule := func(number int, r client.Request) {
		for range number {
			of := r
			if of.ID == "" {
				of.ID = fmt.Sprint(r.Topic, ".", made)
			}
			if _, err := nodes[made%len(nodes)].client.Schedule(t.Context(), of); err != nil {
				t.Fatal(err)
			}
			made++
		}
	}
	schedule(1, client.Request{ID: "order-42", Topic: "order.unpaid", Due: now.Add(time.Hour)})
	schedule(lateOfToday, client.Request{Topic: "order.unpaid", Due: midnight})
	n1.does("PATCH", "/v1/topics/order.unpaid", `{"lease":"1m"}`)
	schedule(soon, client.Request{Topic: "coupon", Due: now.Add(8 * time.Minute)})
	schedule(campaign, client.Request{Topic: "newsletter", Group: "autumn", Due: now.Add(30 * time.Hour)})
	schedule(others, client.Request{Topic: "newsletter", Due: now.Add(30 * time.Hour)})
	minute = now.Truncate(time.Minute)
	for topic, number := range map[string]int{"order.unpaid": late, "mail.reminder": retrying, "invoice.send": buried, "cart.reminder": through, "groupbuy.close": heldBack} {
		schedule(number, client.Request{Topic: topic, Due: minute})
	}
	(&tab{T: t}).waits(func() (bool, string) {
		st, err := n1.client.Totals(t.Context())
		return err == nil && len(st.Missing) == 0 && st.Total.Dead == buried && st.Total.Retrying == retrying && st.Total.Delivered == through, fmt.Sprintf("the books are not so: %+v, %v", st, err)
	})
	return minute
}

// relayed serves at another address what a server does.
func relayed(t *testing.T, at string) string {
	target, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	return serveAt(t, proxy)
}

// A seen is a tab that has come to the answers of some questions by the same clicks.
type seen struct {
	*tab
	clicks    []string
	questions []*question
	visits    int
	url       string    // that has connections of its own: a browser makes six at most to one
	minute    time.Time // whose tasks are the wave
}

func (s *seen) finders() string {
	return fmt.Sprintf("const minute = %d;", s.minute.UnixMilli()) + finders
}

// arrive comes to the answers anew, from the overview.
func arrive(tabs []*seen) {
	for _, s := range tabs {
		s.visits++
		s.load(fmt.Sprint(s.url, "/?visit=", s.visits)) // another address: the page is loaded
	}
	for i := range 2 {
		for _, s := range tabs {
			if i < len(s.clicks) {
				s.waits(func() (bool, string) {
					return eval[bool](s.tab, "(() => {"+s.finders()+"return "+s.clicks[i]+";})()"), "no " + s.clicks[i]
				})
			}
		}
	}
}

// TestQuestions asks the questions of the night at a fleet of which a part is away. Whether the
// page was open before or is opened then, each answer is right, or marked as old or as of a part.
func TestQuestions(t *testing.T) {
	if os.Getenv("LAPSE_LEDGER") != "fleet" {
		t.Skip("LAPSE_LEDGER is not fleet")
	}
	p, midnight := openAtNoon(t)
	p.load("about:blank")
	withProcesses(t, 6*time.Second, func(redis *redistest.Server, nodes []*process) {
		minute := books(t, nodes, midnight)
		var tabs []*seen
		by := map[string]*seen{}
		for i := range night {
			q := &night[i]
			if len(q.clicks) > 2 {
				t.Errorf("%q takes %d clicks", q.asks, len(q.clicks))
			}
			key := strings.Join(q.clicks, "\n")
			if by[key] == nil {
				by[key] = &seen{tab: p.another(), clicks: q.clicks, minute: minute, url: relayed(t, nodes[0].url)}
				by[key].paced("[[10000, 5000], [15000, 5000]]", 1)
				tabs = append(tabs, by[key])
			}
			by[key].questions = append(by[key].questions, q)
		}
		for _, st := range states {
			st.change(redis, nodes[2])
			began := time.Now()
			if st.anew {
				arrive(tabs)
			}
			watch(t, tabs, &st)
			t.Logf("%-30s %v", st.name, time.Since(began).Round(100*time.Millisecond))
		}
	})
}

// A state of the fleet. Each answer of the page is right in it, or marked as of a part or as old.
type state struct {
	name   string
	change func(*redistest.Server, *process) // brings it about
	// overview and nodes are how the page says so itself, in these views, before the state is over.
	overview, nodes []answer
	whole           bool // all answers become right, and none is marked
	anew            bool // the page is opened in this state, and not before
	gone            bool // what one node had counted since its start is lost
}

var unchanged = func(*redistest.Server, *process) {}

// What the page says of a state.
var (
	allThere    = []answer{{`find("h1")`, "^2 topics are late"}, {`find("#banners")`, "^$"}}
	nodeDown    = []answer{{`find("h1")`, "^n3 is down, and "}, {`find("#banners")`, "^n3 is down, and .*, since "}, {`find("#reach")`, "^2 (of 3 nodes|nodes, n3 down)$"}}
	nodeDead    = []answer{{`find("h1")`, "^n3 is down, and others have its tasks"}, {`find("#reach")`, "^2 nodes, n3 down$"}}
	redisAway   = []answer{{`find("h1")`, "^The ledger does not answer; "}, {`find("#banners")`, "^The ledger does not answer, since .*Nothing is known of n2, since "}, {`find(".head .fresh.bad")`, "^Of 1 of 3 nodes$"}}
	nodesUnseen = []answer{{`find("h1")`, "^The ledger does not answer; .*nothing is known of n2"}, {`row("Nodes", "n2")`, "not known"}}
	n3Down      = []answer{{`find("h1")`, "^n3 is down, and "}}
	n3Dead      = []answer{{`find("main")`, "Others hold its tasks"}}
)

var states = []state{
	{"all nodes are there", unchanged, allThere, nil, true, true, false},
	{"a node stands still", func(_ *redistest.Server, n3 *process) { n3.stop() }, nodeDown, n3Down, false, false, false},
	{"it stands still, opened anew", unchanged, nodeDown, n3Down, false, true, false},
	{"it goes on", func(_ *redistest.Server, n3 *process) { n3.goOn() }, allThere, nil, true, false, false},
	{"Redis stands still", func(r *redistest.Server, _ *process) { r.Pause() }, redisAway, nodesUnseen, false, false, false},
	{"it stands still, opened anew", unchanged, redisAway, nodesUnseen, false, true, false},
	{"it goes on", func(r *redistest.Server, _ *process) { r.Resume() }, allThere, nil, true, false, false},
	{"Redis is gone", func(r *redistest.Server, _ *process) { r.Kill() }, redisAway, nodesUnseen, false, false, false},
	{"it is back", func(r *redistest.Server, _ *process) { r.Start() }, allThere, nil, true, false, false},
	{"a node is killed", func(_ *redistest.Server, n3 *process) { n3.kill() }, nodeDead, n3Dead, false, false, true},
	{"it starts again, opened anew", func(_ *redistest.Server, n3 *process) { n3.start() }, allThere, nil, true, true, true},
}

// stateFor bounds how long a state lasts, and partFor is for how long the answers of a part are
// right or marked, one look after the other, before it is over.
const stateFor, partFor = time.Minute, 2 * time.Second

// moment is for how long an answer may be wrong while a part goes, comes back or changes hands:
// nodes answer one after the other, and a view asks each 5 s.
const moment = 10 * time.Second

// watch looks at all answers, again and again until the state is over: the page says which it is,
// and has settled on answers that are right, or marked.
func watch(t *testing.T, tabs []*seen, st *state) {
	t.Helper()
	since := map[string]time.Time{} // when an answer has become wrong and not marked
	var settled time.Time           // since when all is as it should be
	tabs[0].waitsFor(stateFor, func() (bool, string) {
		var wrong []string
		for _, s := range tabs {
			questions := append(slices.Clip(s.questions), st.itself(s))
			all, before := s.sample(questions), len(wrong)
			for _, q := range questions {
				for _, a := range q.answers {
					is := all[0]
					if all = all[1:]; st.gone && q.counts {
						continue
					}
					right, key := regexp.MustCompile(a.right).MatchString(is.Text), q.asks+a.element
					about := fmt.Sprintf("%s: %s says %q (%s), want %s", q.asks, a.element, is.Text, is.Marked, a.right)
					if right || is.Marked != "" || is.Text == "" {
						delete(since, key)
					} else if from := since[key]; from.IsZero() {
						since[key] = time.Now()
					} else if q.asks != st.name && time.Since(from) > moment {
						t.Fatalf("%s: wrong for %v, and not marked: %s", st.name, moment, about)
					}
					must := st.whole && !(q.since && st.gone) || q.asks == st.name
					if !since[key].IsZero() || must && !right || st.whole && !q.since && is.Marked != "" {
						wrong = append(wrong, about)
					}
				}
			}
			if len(wrong) > before {
				wrong = append(wrong, "the page says "+s.text("main"))
			}
		}
		if len(wrong) > 0 {
			settled = time.Time{}
		} else if settled.IsZero() {
			settled = time.Now()
		}
		return !settled.IsZero() && (st.whole || time.Since(settled) > partFor), st.name + ": wrong or marked:\n" + strings.Join(wrong, "\n")
	})
}

// itself is what a tab has to say of the state.
func (st *state) itself(s *seen) *question {
	q := &question{asks: st.name}
	switch strings.Join(s.clicks, "\n") {
	case "":
		q.answers = st.overview
	case theNodes:
		q.answers = st.nodes
	}
	return q
}
