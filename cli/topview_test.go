package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A fakeTop answers what a test wants, and keeps what it was asked.
type fakeTop struct {
	stats   client.Stats
	wrong   client.Diagnosis
	topics  []client.TopicInfo
	next    string
	matched int   // of all pages; 0: those of this one
	err     error // of all answers
	denied  error // of the totals alone

	queries []client.TopicQuery
	changes []string
	lists   []client.Query
	outlook client.Outlook
}

func (f *fakeTop) Totals(context.Context, ...client.Scope) (*client.Stats, error) {
	s := f.stats
	if f.denied != nil {
		return nil, f.denied
	}
	return &s, f.err
}

func (f *fakeTop) Diagnosis(context.Context) (*client.Diagnosis, error) { return &f.wrong, f.err }

func (f *fakeTop) FindTopics(_ context.Context, q client.TopicQuery) (*client.TopicPage, error) {
	f.queries = append(f.queries, q)
	for i := range f.topics {
		f.topics[i].Troubles = troublesOf(&f.topics[i])
	}
	return &client.TopicPage{Reach: f.stats.Reach, Topics: append([]client.TopicInfo(nil), f.topics...), NextCursor: f.next, Matched: max(f.matched, len(f.topics))}, f.err
}

func (f *fakeTop) PauseTopic(_ context.Context, topic string) error {
	f.changes = append(f.changes, "pause "+topic)
	return f.err
}

func (f *fakeTop) ResumeTopic(_ context.Context, topic string) error {
	f.changes = append(f.changes, "resume "+topic)
	return f.err
}

func (f *fakeTop) Topic(_ context.Context, name string, _ ...client.Scope) (*client.TopicInfo, error) {
	for i := range f.topics {
		if f.topics[i].Name == name {
			t := f.topics[i]
			t.Lease = client.Duration(47 * time.Second)
			return &t, f.err
		}
	}
	return nil, client.ErrNotFound
}

func (f *fakeTop) List(_ context.Context, q client.Query) (*client.Page, error) {
	f.lists = append(f.lists, q)
	t := client.Task{ID: string(q.State) + "-1", Topic: q.Topic, Attempt: 2, NextAt: time.Now().Add(-time.Hour), LastError: "answered 502\x1b[2J"}
	return &client.Page{Tasks: []client.Task{t}}, f.err
}

func (f *fakeTop) Nodes(context.Context) ([]client.Node, error) {
	dead := client.Node{Name: "n2", State: "silent", HeartbeatAge: client.Duration(time.Minute), Address: "http://n2.example:7480"}
	return []client.Node{{Name: "n1", Self: true, State: "live", Status: &client.NodeStatus{Ready: 55}}, dead}, f.err
}

func (f *fakeTop) Forecast(_ context.Context, o client.Outlook) (*client.Forecast, error) {
	f.outlook = o
	return &client.Forecast{From: time.Now(), Step: client.Duration(5 * time.Minute), Counts: []int64{0, 3000, 0}, Complete: true}, f.err
}

// A topRig drives a model as a terminal does.
type topRig struct {
	*testing.T
	server *fakeTop
	model  *topModel
}

func newTopRig(t *testing.T, width, height int) *topRig {
	now := time.Now()
	late := now.Add(-time.Minute)
	failing := client.TopicInfo{Name: "mail", LastError: "answered 502\x1b[2J", LastFailedAt: &late}
	failing.Counts.FailedRecent, failing.Counts.Dead = 12, 3
	waiting := client.TopicInfo{Name: "order.unpaid"}
	waiting.Counts.Ready, waiting.Counts.Overdue.Count, waiting.Counts.Overdue.OldestAt, waiting.Counts.Pending = 55, 55, &late, 1_234_567
	paused := client.TopicInfo{Name: "a-topic-with-a-name-that-is-too-long-for-any-terminal-there-is"}
	paused.Paused = true
	f := &fakeTop{topics: []client.TopicInfo{waiting, failing, paused, {Name: "quiet"}}}
	f.stats = client.Stats{Node: "n1", Version: "dev", State: client.Readiness{Ready: true}, Reach: client.Reach{Covers: []string{"n1", "n2"}}}
	f.stats.State.Ledger.OK = true
	f.stats.Total.Pending, f.stats.Total.Ready = 200, 55
	f.wrong.Headline = "Nothing is late."
	m := &topModel{server: f, details: f, ctx: t.Context(), url: "http://lapse", interval: time.Second, timeout: time.Second,
		query: client.TopicQuery{Sort: client.SortWorst, Limit: topicsOnce}, now: now}
	r := &topRig{t, f, m}
	r.send(tea.WindowSizeMsg{Width: width, Height: height})
	return r
}

// send gives the model an event, and those that follow from it. The clock is turned by the test.
func (r *topRig) send(event tea.Msg) {
	r.Helper()
	if _, isClock := event.(topClock); isClock {
		r.model.now = event.(topClock).now
		r.run(r.model.ask())
		return
	}
	_, follow := r.model.Update(event)
	r.run(follow)
}

func (r *topRig) run(follow tea.Cmd) {
	r.Helper()
	if follow == nil {
		return
	}
	switch event := follow().(type) {
	case tea.QuitMsg:
		r.model.notice = "quit"
	default:
		r.send(event)
	}
}

// look looks once more, so much later.
func (r *topRig) look(later time.Duration) { r.send(topClock{r.model.now.Add(later)}) }

func (r *topRig) keys(keys ...string) {
	r.Helper()
	for _, k := range keys {
		code, text := []rune(k)[0], k
		switch k {
		case "enter":
			code, text = tea.KeyEnter, ""
		case "esc":
			code, text = tea.KeyEscape, ""
		case "backspace":
			code, text = tea.KeyBackspace, ""
		case "down":
			code, text = tea.KeyDown, ""
		case "end":
			code, text = tea.KeyEnd, ""
		case "pgdown":
			code, text = tea.KeyPgDown, ""
		case "pgup":
			code, text = tea.KeyPgUp, ""
		case "up":
			code, text = tea.KeyUp, ""
		}
		r.send(tea.KeyPressMsg{Code: code, Text: text})
	}
}

// screen is what the terminal shows. It checks that all of it fits.
func (r *topRig) screen() string {
	r.Helper()
	text := r.model.View().Content
	lines := strings.Split(text, "\n")
	if len(lines) > r.model.height {
		r.Errorf("%d lines on a terminal of %d:\n%s", len(lines), r.model.height, text)
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > r.model.width {
			r.Errorf("%d columns on a terminal of %d: %q", n, r.model.width, line)
		}
		if strings.Contains(line, "\x1b[2J") {
			r.Errorf("the server writes to the terminal: %q", line)
		}
	}
	return text
}

func (r *topRig) shows(parts ...string) {
	r.Helper()
	screen := r.screen()
	for _, part := range parts {
		if !strings.Contains(screen, part) {
			r.Errorf("it does not show %q:\n%s", part, screen)
		}
	}
}

func TestTop(t *testing.T) {
	r := newTopRig(t, 80, 24)
	r.shows("asking the server")
	r.look(0)
	r.shows("lapse top http://lapse  n1 dev", "Nothing is late.", "0 dead, 55 ready, 0 delivering, 200 pending", "order.unpaid", "late", "1234k", "mail", "failing dead", "paused", "sort: worst", "not known before the next look")
	rows := strings.Split(r.screen(), "\n")
	if i := strings.Index(r.screen(), "order.unpaid"); i < 0 || i > strings.Index(r.screen(), "mail") || len(rows) != 24 {
		t.Errorf("the order is not that of the server:\n%s", r.screen())
	}
	r.server.stats.Total.Delivered = 30
	r.server.stats.Total.Failed = 1
	r.model.seen.at = r.model.seen.at.Add(-10 * time.Second)
	r.look(time.Second)
	took := r.model.seen.at.Sub(r.model.earlier.at)
	r.shows("a second  0 scheduled, "+rate(30, took)+" delivered, "+rate(1, took)+" failed", "0 died")

	// What is chosen is told more of, and stays chosen when it moves.
	r.keys("down")
	r.shows("mail failed 1m ago: answered 502 ")
	r.server.topics[0], r.server.topics[1] = r.server.topics[1], r.server.topics[0]
	r.look(time.Second)
	r.shows("mail failed")
	if r.model.chosen != 0 {
		t.Errorf("row %d is chosen", r.model.chosen)
	}
	// A count that goes back is that of a node that started again.
	r.server.stats.Total.Delivered = 0
	r.look(time.Second)
	r.shows("- delivered")
	r.server.stats.Covers = []string{"n1"}
	r.look(time.Second)
	r.shows("not known before the next look")
	r.keys("q")
	r.shows("quit")
}

// What is wrong with the fleet stands above all else.
func TestTopOfAFleetInTrouble(t *testing.T) {
	r := newTopRig(t, 80, 24)
	s := &r.server.stats
	s.Covers, s.Missing = []string{"n1"}, []client.MissingNode{{Node: "n2", Error: "it has not answered"}}
	since := r.model.now.Add(-7 * time.Second)
	r.server.wrong = client.Diagnosis{At: r.model.now, Headline: "The ledger does not answer; nothing is known of n2; order.unpaid is late.", Troubles: []client.Trouble{
		{Kind: "ledger", Grave: true, Since: &since, Text: "the ledger does not answer", Detail: "connection refused"},
		{Kind: "unknown", Grave: true, Node: "n2", Text: "nothing is known of n2"}, {Kind: "late", Grave: true, Topic: "order.unpaid", Text: "order.unpaid is late"},
	}}
	s.State = client.Readiness{Replay: client.Replay{Records: 1200}}
	r.look(0)
	r.shows("The ledger does not answer; nothing is known of n2; order.unpaid is late.", "the ledger does not answer for 7", ": connection refused", "  nothing is known of n2", "without the figures of n2 (it has not answered)", "n1: replaying for", "1200 records")
	if strings.Count(r.screen(), "order.unpaid is late") != 1 {
		t.Errorf("a topic stands among the nodes:\n%s", r.screen())
	}
	r.server.denied = client.ErrUnauthorized
	r.look(time.Second)
	r.shows("the token may not read the totals", "order.unpaid")
}

// Figures that are old look old, whether the server refuses, is gone or hangs.
func TestTopLooksStale(t *testing.T) {
	r := newTopRig(t, 80, 24)
	r.server.err = errors.New("connection refused")
	r.look(0)
	r.shows("no figures: connection refused")
	r.server.err = nil
	r.look(time.Second)
	if strings.Contains(r.screen(), "OLD:") {
		t.Errorf("it looks old:\n%s", r.screen())
	}
	r.server.err = errors.New("connection refused")
	r.look(7 * time.Second)
	r.shows("OLD: the figures are of ", " ago. connection refused", "order.unpaid")
	r.server.err = nil
	r.look(time.Second)

	// One look is under way, and does not come back. No second one begins.
	hangs := r.model.ask()
	asked := r.model.asked
	for range 60 {
		_, _ = r.model.Update(topClock{r.model.now.Add(time.Second)})
	}
	r.shows("OLD: the figures are of 1m", "The server does not answer")
	if hangs == nil || r.model.asked != asked {
		t.Error("another look began meanwhile")
	}
}

func TestTopSortsSearchesAndTurnsPages(t *testing.T) {
	r := newTopRig(t, 80, 24)
	r.server.next, r.server.matched = "2", 9
	r.look(0)
	r.shows("pgdn 1-4 of 9")
	last := func(want client.TopicQuery) {
		t.Helper()
		want.Limit = topicsOnce
		if got := r.server.queries[len(r.server.queries)-1]; got != want {
			t.Errorf("the server was asked for %+v, want %+v", got, want)
		}
	}
	last(client.TopicQuery{Sort: client.SortWorst})
	r.keys("s")
	last(client.TopicQuery{Sort: client.SortLate})
	r.keys("S", "S")
	last(client.TopicQuery{Sort: client.SortName})
	r.keys("pgdown")
	last(client.TopicQuery{Sort: client.SortName, Cursor: "2"})
	r.shows("pgdn 5-8 of 9")
	r.server.next = ""
	r.look(time.Second)
	asked := len(r.server.queries)
	r.keys("pgdown")
	if len(r.server.queries) != asked {
		t.Error("it turns the last page")
	}
	r.keys("pgup")
	last(client.TopicQuery{Sort: client.SortName})
	r.keys("/", "o", "q", "backspace", "r", "ä", "backspace")
	r.shows("search: or_")
	r.keys("enter")
	last(client.TopicQuery{Sort: client.SortName, Search: "or"})
	r.shows("/ search: or")
	r.keys("/", "x", "esc")
	last(client.TopicQuery{Sort: client.SortName, Search: "or"})
	r.server.topics = nil
	r.look(time.Second)
	r.shows(`no topic has "or" in its name`)
	r.keys("down", "p", "esc")
	last(client.TopicQuery{Sort: client.SortName})
	// An answer to an earlier question is not shown.
	r.server.topics = []client.TopicInfo{{Name: "earlier"}}
	r.model.asking = true
	r.keys("s")
	r.server.topics = []client.TopicInfo{{Name: "later"}}
	r.send(topLook{query: client.TopicQuery{Sort: client.SortName, Limit: topicsOnce}, page: &client.TopicPage{Topics: []client.TopicInfo{{Name: "earlier"}}}, at: r.model.now})
	last(client.TopicQuery{Sort: client.SortWorst})
	r.shows("later")
}

// A time that runs out is told in words, and the kind of error gives the exit code.
func TestTopWithoutAnAnswer(t *testing.T) {
	r := newTopRig(t, 80, 24)
	r.look(0)
	r.server.err = context.DeadlineExceeded
	r.look(time.Second)
	r.shows(": no answer in 1s")
	r.keys("p", "y")
	r.shows("the outcome is unknown: no answer in 1s")
	if code := exitOf(r.model.fault); code != exitUnavailable {
		t.Errorf("the exit code is %d", code)
	}
}

// A topic is paused after a question.
func TestTopPauses(t *testing.T) {
	r := newTopRig(t, 80, 24)
	r.look(0)
	r.keys("p")
	r.shows("Pause order.unpaid?", "y yes  any other key no")
	r.keys("q")
	r.shows("nothing was changed")
	r.keys("p", "enter", "p", "n", "y")
	if len(r.server.changes) != 0 {
		t.Errorf("it did %q", r.server.changes)
	}
	// The question is about the topic for which it was asked, wherever that is now.
	r.keys("p")
	r.server.topics[0], r.server.topics[1] = r.server.topics[1], r.server.topics[0]
	r.model.chosen = 2
	r.look(time.Second)
	r.keys("y")
	r.shows("order.unpaid is paused")
	for i := range r.server.topics {
		r.server.topics[i].Paused = true
	}
	r.look(time.Second)
	r.model.chosen = 1
	r.keys("p")
	r.shows("Deliver the tasks of order.unpaid again")
	r.server.err = client.ErrUnauthorized
	r.keys("Y")
	r.shows("a token is given in LAPSE_TOKEN")
	if fmt.Sprint(r.server.changes) != "[pause order.unpaid resume order.unpaid]" {
		t.Errorf("it did %q", r.server.changes)
	}
}

// It fits terminals of every size, with and without colors.
func TestTopFits(t *testing.T) {
	r := newTopRig(t, 80, 24)
	many := r.server.topics
	for i := range 100 {
		many = append(many, client.TopicInfo{Name: fmt.Sprint("topic-", i)})
	}
	r.server.topics = many
	r.look(0)
	for _, size := range [][2]int{{80, 24}, {200, 60}, {120, 10}, {40, 12}, {20, 6}, {10, 3}, {1, 1}, {300, 400}} {
		r.send(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for range 103 {
			r.screen()
			r.keys("down")
		}
		if size[1] >= 10 {
			r.shows(fmt.Sprint("topic-", 99)[:min(8, size[0])])
		}
		r.model.chosen = 0
	}
	r.send(tea.WindowSizeMsg{Width: 120, Height: 24})
	r.shows("BUSY", "OUT/S", "P99 NOW")
	r.model.color = true
	if text := r.model.View().Content; !strings.Contains(text, badText) || !strings.Contains(text, pickText) {
		t.Errorf("there are no colors in %q", text)
	}
}

// A terminal of 80 columns says why nothing goes out, and for how long.
func TestTopIn80Columns(t *testing.T) {
	r := newTopRig(t, 80, 24)
	late := time.Now().Add(-100 * time.Hour)
	n := &r.server.topics[0].Counts
	r.server.topics[0].Delivery.Kind, n.Overdue.OldestAt = "pull", &late
	n.Recent = client.RecentLateness{Count: 9, P50: client.Duration(90 * time.Minute), P99: client.Duration(100 * time.Hour), Max: client.Duration(99*time.Hour + 59*time.Minute + 59*time.Second)}
	r.server.stats.Total = *n
	r.look(0)
	r.shows("late no receiver ", "no receiver pulls order.unpaid: 55 tasks are ready", "late now  55 overdue, the oldest for 4d4h", "FAILED 5M")
	n.Receivers = 1
	r.look(time.Second)
	if strings.Contains(r.screen(), "no receiver") {
		t.Errorf("with a receiver it shows\n%s", r.screen())
	}
}

// troublesOf says what is wrong with a topic, as a server does.
func troublesOf(t *client.TopicInfo) (list []client.Trouble) {
	like := task.Topic{Name: t.Name, Undeliverable: t.Undeliverable, LastError: t.LastError}
	like.Settings.Kind, like.Settings.Paused = tasks.Kind(t.Delivery.Kind), t.Paused
	like.Counts.Ready, like.Counts.FailedRecent, like.Counts.Dead, like.Counts.Receivers = t.Counts.Ready, t.Counts.FailedRecent, t.Counts.Dead, t.Counts.Receivers
	if t.Counts.Overdue.OldestAt != nil {
		like.Counts.OverdueOldest = *t.Counts.Overdue.OldestAt
	}
	for _, x := range like.Troubles(time.Now()) {
		list = append(list, client.Trouble{Kind: string(x.Kind), Grave: x.Grave, Topic: x.Topic, Since: &x.Since, Text: x.Text, Detail: x.Detail})
	}
	return list
}
