package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/client"
)

// top is the command that shows a fleet while it works.
type top struct {
	remote
	figures
	Interval time.Duration `env:"-" default:"2s" help:"Time between two looks at the server, 500ms to 1h."`
	Sort     string        `env:"-" default:"worst" enum:"worst,late,failed,dead,ready,pending,paused,name" help:"Which topics come first: worst, late, failed, dead, ready, pending, paused or name. Worst are those that are late, then those that fail, have dead tasks, are paused."`
	Search   string        `env:"-" placeholder:"TEXT" help:"Only topics that have this in their names."`
	Once     bool          `env:"-" help:"Look once, print and end. That is also what it does with --json, and where its output or input is no terminal, or TERM is dumb."`
}

const topDetail = "Keys: up and down choose a topic, enter opens it, n the nodes, f the forecast, esc leads back, s and S choose what comes first, " +
	"/ searches, p pauses or resumes the topic, ? shows all keys, q ends. NO_COLOR is honoured."

// Bounds of --interval, and the topics that are printed once.
const (
	leastInterval = 500 * time.Millisecond
	mostInterval  = time.Hour
	topicsOnce    = 100
)

func (c *top) check(bad *faults) {
	if c.Interval < leastInterval || c.Interval > mostInterval {
		bad.add("interval: must be from 500ms to 1h")
	}
}

// call watches, or looks once.
func (c *top) call(ctx context.Context, s *session) error {
	m := &topModel{server: s.Client, details: s.Client, query: client.TopicQuery{Search: c.Search, Sort: client.TopicSort(c.Sort), Limit: topicsOnce, Scope: client.Scope(c.Scope)},
		ctx: ctx, url: c.Server, interval: c.Interval, timeout: c.Timeout}
	if c.Once || c.JSON || os.Getenv("TERM") == "dumb" || !isTerminal(os.Stdin) || !isTerminal(s.std.out) {
		return c.once(s, m)
	}
	m.color = true
	program := tea.NewProgram(m, tea.WithoutSignalHandler(), tea.WithOutput(s.std.out))
	// A signal ends it as q does. tea.WithContext would close the input beside the goroutine that
	// reads it: charmbracelet/bubbletea#1599.
	defer context.AfterFunc(ctx, program.Quit)()
	_, err := program.Run()
	return err
}

// once prints what the model shows, without the keys. With --json it prints the answers of the API.
func (c *top) once(s *session, m *topModel) error {
	answers := map[string]json.RawMessage{}
	seen := m.look(func(name string) {
		if s.json {
			answers[name] = append([]byte(nil), s.recorder.last.Bytes()...)
		}
	})
	switch {
	case seen.err != nil:
		return seen.err
	case s.json:
		text, err := json.Marshal(answers)
		if err != nil {
			return err
		}
		_, err = s.std.out.Write(append(plainJSON(text), '\n'))
		return err
	}
	m.now, m.seen = seen.at, seen
	_, err := io.WriteString(s.std.out, strings.Join(append(m.head(), m.table(len(seen.page.Topics))...), "\n")+"\n")
	return err
}

// A topServer is what top needs of a client.
type topServer interface {
	Totals(ctx context.Context, scope ...client.Scope) (*client.Stats, error)
	Diagnosis(ctx context.Context) (*client.Diagnosis, error)
	FindTopics(ctx context.Context, q client.TopicQuery) (*client.TopicPage, error)
	PauseTopic(ctx context.Context, topic string) error
	ResumeTopic(ctx context.Context, topic string) error
}

// A topLook is what the server has answered at one time.
type topLook struct {
	query client.TopicQuery
	at    time.Time
	stats *client.Stats // nil: the token may not read the totals
	wrong *client.Diagnosis
	// unjudged is why the server does not say what is wrong.
	unjudged error
	page     *client.TopicPage
	place    topPlace // what else was asked for
	text     string   // of that place
	err      error
}

// topMode says what the keys mean.
type topMode uint8

const (
	browsing   topMode = iota
	searching          // they are typed into the search
	confirming         // y pauses or resumes the chosen topic
)

// topModel is the state of top. One look or change is under way at a time, each of which ends after
// the timeout. While none comes back, the clock goes on, so that the age of what is shown grows.
type topModel struct {
	server   topServer
	details  topDetails
	ctx      context.Context
	url      string
	interval time.Duration
	timeout  time.Duration

	at      topPlace
	text    string // what stands on a page that is no list of topics
	above   int    // lines of it that are above the screen
	query   client.TopicQuery
	before  []topPage // the pages before this one
	width   int       // of the terminal; 0: not known, nothing is cut
	height  int
	color   bool
	now     time.Time
	asked   time.Time // when the last look began
	asking  bool
	seen    topLook // the last one that succeeded
	earlier topLook // the one before, for rates
	fault   error   // why the last look failed; nil if it did not
	chosen  int     // row of the page; beyond its end: the last one of the page that is asked for
	first   int     // row that is shown first
	mode    topMode
	typed   string            // the search that is being typed
	target  *client.TopicInfo // the topic that is to be paused or resumed
	notice  string            // what has come of it
}

// A topPage is a page of topics that the server has answered.
type topPage struct {
	cursor string // where it begins
	topics int
}

type (
	topClock struct{ now time.Time }
	topDone  struct {
		text string
		err  error
	}
)

// topSorts are the orders of topics, as s goes through them.
var topSorts = []client.TopicSort{client.SortWorst, client.SortLate, client.SortFailed, client.SortDead, client.SortReady, client.SortPending, client.SortPaused, client.SortName}

// look asks the server. answered is called after each answer.
func (m *topModel) look(answered func(name string)) topLook {
	ctx, cancel := context.WithTimeout(m.ctx, m.timeout)
	defer cancel()
	seen := topLook{query: m.query, place: m.at}
	if seen.page, seen.err = m.server.FindTopics(ctx, m.query); seen.err == nil {
		answered("topics")
		var err error
		if seen.stats, err = m.server.Totals(ctx, m.query.Scope); err == nil {
			answered("stats")
		} else if ctx.Err() != nil {
			seen.err = err
		}
		if seen.wrong, seen.unjudged = m.server.Diagnosis(ctx); seen.unjudged == nil {
			answered("diagnosis")
		}
	}
	if seen.err == nil && m.at.screen != topicsPage {
		seen.text, seen.err = m.looked(ctx)
	}
	seen.at, seen.err = time.Now(), m.noAnswer(seen.err, client.ErrUnreachable)
	return seen
}

// noAnswer is an error of this kind if err is that the time has run out, else err.
func (m *topModel) noAnswer(err, kind error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: no answer in %s", kind, roundedText(m.timeout))
}

// Init begins the first look, and the clock.
func (m *topModel) Init() tea.Cmd {
	m.now = time.Now()
	return tea.Batch(m.ask(), m.clock())
}

func (m *topModel) clock() tea.Cmd {
	return tea.Tick(min(m.interval, time.Second), func(now time.Time) tea.Msg { return topClock{now} })
}

// ask begins a look, unless one is under way: then its end begins another one if it must.
func (m *topModel) ask() tea.Cmd {
	if m.asking {
		return nil
	}
	m.asking, m.asked = true, m.now
	one := *m // the look must not read what Update changes
	return func() tea.Msg { return one.look(func(string) {}) }
}

// Update changes the state by an event.
func (m *topModel) Update(event tea.Msg) (tea.Model, tea.Cmd) {
	switch v := event.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = v.Width, v.Height
	case topClock:
		m.now = v.now
		if m.now.Sub(m.asked) >= m.interval {
			return m, tea.Batch(m.ask(), m.clock())
		}
		return m, m.clock()
	case topLook:
		return m, m.saw(v)
	case topDone:
		m.notice = v.text
		if v.err != nil {
			m.notice = plain(explain(v.err))
		}
		return m, m.ask()
	case tea.PasteMsg:
		if m.mode == searching {
			m.typed += plain(v.Content)
		}
	case tea.KeyPressMsg:
		return m, m.key(v)
	}
	return m, nil
}

// saw takes over what a look has found.
func (m *topModel) saw(v topLook) tea.Cmd {
	m.asking, m.fault = false, v.err
	if v.at.After(m.now) {
		m.now = v.at
	}
	if v.query != m.query || v.place != m.at {
		return m.ask() // the user has asked for something else meanwhile
	}
	if v.err == nil {
		name := ""
		if t := m.topic(); t != nil && v.query == m.seen.query {
			name = t.Name
		}
		m.earlier, m.seen, m.text = m.seen, v, v.text
		// The same topic stays chosen, wherever it is now, but in another order the first one is.
		if i := slices.IndexFunc(v.page.Topics, func(t client.TopicInfo) bool { return t.Name == name }); i >= 0 {
			m.chosen = i
		}
		m.chosen = max(0, min(m.chosen, len(v.page.Topics)-1))
	}
	return nil
}

// topic returns the chosen topic, on its own page that one; nil if there is none.
func (m *topModel) topic() *client.TopicInfo {
	if m.seen.page == nil || m.chosen >= len(m.seen.page.Topics) {
		return nil
	}
	if m.at.screen == topicPage { // it may have left the page of the list meanwhile
		if i := slices.IndexFunc(m.seen.page.Topics, func(t client.TopicInfo) bool { return t.Name == m.at.topic }); i >= 0 {
			return &m.seen.page.Topics[i]
		}
		return nil
	}
	return &m.seen.page.Topics[m.chosen]
}

func (m *topModel) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	switch {
	case name == "ctrl+c":
		return tea.Quit
	case name == "ctrl+z":
		return tea.Suspend
	case m.mode == searching:
		return m.search(name, k.Text)
	case m.mode == confirming:
		return m.confirm(name)
	}
	m.notice = ""
	switch name {
	case "q":
		return tea.Quit
	case "n":
		return m.open(topPlace{screen: nodesPage})
	case "f":
		return m.open(topPlace{forecastPage, m.at.topic})
	case "?":
		return m.open(topPlace{screen: helpPage})
	case "space":
		return m.ask()
	}
	if m.at.screen != topicsPage && m.pageKey(name) {
		return nil
	}
	switch name {
	case "enter":
		if t := m.topic(); t != nil {
			return m.open(topPlace{topicPage, t.Name})
		}
	case "up", "k":
		m.chosen = max(0, m.chosen-1)
	case "down", "j":
		if m.seen.page != nil {
			m.chosen = max(0, min(m.chosen+1, len(m.seen.page.Topics)-1))
		}
	case "home":
		m.chosen = 0
	case "end":
		if m.seen.page != nil {
			m.chosen = max(0, len(m.seen.page.Topics)-1)
		}
	case "pgdown":
		return m.down()
	case "pgup":
		return m.up()
	case "s", "S":
		step := 1
		if name == "S" {
			step = len(topSorts) - 1
		}
		m.query.Sort = topSorts[(slices.Index(topSorts, m.query.Sort)+step)%len(topSorts)]
		return m.anew()
	case "/":
		m.mode, m.typed = searching, m.query.Search
	case "esc":
		if m.query.Search != "" {
			m.query.Search = ""
			return m.anew()
		}
	case "p":
		if t := m.topic(); t != nil {
			one := *t
			m.mode, m.target = confirming, &one
		}
	}
	return nil
}

// down shows the topics below those that are shown. Below the last one of a page of the server
// begins the next page.
func (m *topModel) down() tea.Cmd {
	p, rows := m.seen.page, m.rows()
	switch {
	case p == nil || m.query != m.seen.query: // another page is on its way
	case m.first+rows < len(p.Topics):
		m.first += rows
		m.chosen = min(m.chosen+rows, len(p.Topics)-1)
	case p.NextCursor != "":
		m.before = append(m.before, topPage{m.query.Cursor, len(p.Topics)})
		return m.turn(p.NextCursor)
	default:
		m.chosen = max(0, len(p.Topics)-1)
	}
	return nil
}

// up shows the topics above those that are shown.
func (m *topModel) up() tea.Cmd {
	rows, n := m.rows(), len(m.before)
	switch {
	case m.query != m.seen.query:
	case m.first > 0:
		m.first, m.chosen = max(0, m.first-rows), max(0, m.chosen-rows)
	case n > 0:
		cursor := m.before[n-1].cursor
		m.before = m.before[:n-1]
		ask := m.turn(cursor)
		m.chosen = m.query.Limit
		return ask
	default:
		m.chosen = 0
	}
	return nil
}

// anew asks for the first page of another query.
func (m *topModel) anew() tea.Cmd {
	m.before = nil
	return m.turn("")
}

func (m *topModel) turn(cursor string) tea.Cmd {
	m.query.Cursor, m.chosen, m.first = cursor, 0, 0
	return m.ask()
}

func (m *topModel) search(key, text string) tea.Cmd {
	switch key {
	case "esc":
		m.mode = browsing
	case "enter":
		m.mode, m.query.Search = browsing, m.typed
		return m.anew()
	case "backspace":
		_, size := utf8.DecodeLastRuneInString(m.typed)
		m.typed = m.typed[:len(m.typed)-size]
	default:
		m.typed += plain(text)
	}
	return nil
}

// confirm pauses or resumes the topic if the user agrees.
func (m *topModel) confirm(key string) tea.Cmd {
	t := m.target
	m.mode, m.target = browsing, nil
	if key != "y" && key != "Y" {
		m.notice = "nothing was changed"
		return nil
	}
	change, text := m.server.PauseTopic, t.Name+" is paused: its tasks are accepted, and wait"
	if t.Paused {
		change, text = m.server.ResumeTopic, t.Name+" is delivered again"
	}
	m.notice = fmt.Sprintf("asking the server about %s ...", t.Name)
	ctx, timeout := m.ctx, m.timeout
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return topDone{text, m.noAnswer(change(ctx, t.Name), client.ErrUnknown)}
	}
}
