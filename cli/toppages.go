package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/lapsehq/lapse/client"
)

// This file has the pages of top beside the list of topics: one topic, the nodes, the forecast,
// help.

// A topScreen is what top shows.
type topScreen uint8

const (
	topicsPage   topScreen = iota
	topicPage              // one topic: what is wrong, its oldest tasks, errors, settings
	nodesPage              // all nodes
	forecastPage           // what falls due in the next hour
	helpPage               // the keys
)

// A topDetails is what pages need of a client beside the list.
type topDetails interface {
	Topic(ctx context.Context, name string, scope ...client.Scope) (*client.TopicInfo, error)
	List(ctx context.Context, query client.Query) (*client.Page, error)
	Nodes(ctx context.Context) ([]client.Node, error)
	Forecast(ctx context.Context, o client.Outlook) (*client.Forecast, error)
}

// A topPlace is a screen, and the topic that it is about; empty: none, or all.
type topPlace struct {
	screen topScreen
	topic  string
}

// topShown is how many tasks of a kind the page of a topic lists.
const topShown = 5

// topHelp is the page of the keys.
const topHelp = `up, down       choose a topic; on other pages, go up and down
pgup, pgdown   the screen above or below
home, end      the first or the last of this page
enter          open the topic: its errors, its oldest tasks, its settings
n              the nodes
f              what falls due in the next hour; of the topic, if one is open
s, S           what comes first: worst, late, failed, dead, ready, pending, ...
/              search topics by a part of their names
p              pause or resume the topic; it asks first
space          look at once
esc            back to the topics
q              end
`

// open shows a page, and asks for what stands on it.
func (m *topModel) open(at topPlace) tea.Cmd {
	m.at, m.above, m.text = at, 0, ""
	if at.screen == helpPage {
		m.text = topHelp
	}
	return m.ask()
}

// pageKey does what a key means on a page; false: the page has no use for it.
func (m *topModel) pageKey(name string) (known bool) {
	switch name {
	case "up", "k":
		m.above--
	case "down", "j":
		m.above++
	case "pgup":
		m.above -= m.rows()
	case "pgdown":
		m.above += m.rows()
	case "home":
		m.above = 0
	case "end":
		m.above = strings.Count(m.text, "\n")
	case "esc", "backspace", "left":
		m.at, m.above, m.text = topPlace{}, 0, ""
		return true
	default: // those of the list have no meaning here but p, which is about the topic
		return name != "p" || m.at.screen != topicPage
	}
	m.above = max(0, min(m.above, strings.Count(m.text, "\n")-m.rows()))
	return true
}

// describe asks for a page, and writes it. A bounded number of calls, each with a bounded answer.
func (m *topModel) describe(ctx context.Context, w io.Writer) error {
	switch m.at.screen {
	case topicPage:
		return m.describeTopic(ctx, w)
	case nodesPage:
		list, err := m.details.Nodes(ctx)
		if err == nil {
			topNodes(w, list)
		}
		return err
	case forecastPage:
		f, err := m.details.Forecast(ctx, client.Outlook{Topic: m.at.topic, Window: time.Hour, Step: 5 * time.Minute, Scope: m.query.Scope})
		if err == nil {
			forecastChart(w, f)
		}
		return err
	}
	_, err := io.WriteString(w, topHelp)
	return err
}

func (m *topModel) describeTopic(ctx context.Context, w io.Writer) error {
	t, err := m.details.Topic(ctx, m.at.topic, m.query.Scope)
	if err != nil {
		return err
	}
	now := time.Now()
	for i := range t.Troubles {
		fmt.Fprintln(w, topTrouble(&t.Troubles[i], now))
	}
	fmt.Fprintln(w, "tasks     "+topCounts(&t.Counts))
	fmt.Fprintln(w, "late now  "+topLate(&t.Counts, now))
	if text := lastError(t, now); text != "" {
		fmt.Fprintln(w, "last error  "+text)
	}
	for _, state := range []string{"ready", "retrying"} {
		page, err := m.details.List(ctx, client.Query{Topic: t.Name, State: client.State(state), Limit: topShown, Brief: true})
		if err != nil {
			return err
		}
		var rows [][]string
		for i := range page.Tasks {
			one := &page.Tasks[i]
			rows = append(rows, []string{state, one.ID, relative(one.NextAt, now), fmt.Sprintf("%d attempts", one.Attempt), one.LastError})
		}
		table(w, rows)
	}
	fmt.Fprintln(w)
	topicBlock(w, t, now)
	return nil
}

// topTrouble says a trouble, and for how long it has lasted.
func topTrouble(t *client.Trouble, now time.Time) string {
	text := t.Text
	if t.Since != nil && !t.Since.IsZero() {
		text += " for " + roundedText(now.Sub(*t.Since).Round(time.Second))
	}
	if t.Detail != "" {
		text += ": " + t.Detail
	}
	return text
}

// topNodes is the table of nodes with what matters first: a narrow terminal cuts the end.
func topNodes(w io.Writer, list []client.Node) {
	rows := [][]string{{"NODE", "STATE", "SEEN", "SHARDS", "READY", "DEAD", "PENDING", "BUSY", "ADDRESS", "VERSION"}}
	for i := range list {
		n := &list[i]
		row := []string{n.Name, string(n.State), roundedText(time.Duration(n.HeartbeatAge)), fmt.Sprintf("%d of %d", n.Shards.Held+n.Shards.Adopted, n.Shards.Own)}
		if s := n.Status; s != nil {
			row = append(row, compact(s.Ready), compact(s.Dead), compact(s.Pending), compact(s.Delivering))
		} else {
			row = append(row, "-", "-", "-", "-")
		}
		rows = append(rows, append(row, n.Address, n.Version))
	}
	table(w, rows)
}

// looked is describe as text, for a look.
func (m *topModel) looked(ctx context.Context) (string, error) {
	var b bytes.Buffer
	err := m.describe(ctx, &b)
	return b.String(), err
}

// body is what the page shows, as far as there is room.
func (m *topModel) body(rows int) []string {
	title := map[topScreen]string{topicPage: m.at.topic, nodesPage: "nodes", forecastPage: "falls due in the next hour", helpPage: "keys"}[m.at.screen]
	if m.at.screen == forecastPage && m.at.topic != "" {
		title = m.at.topic + " " + title
	}
	lines := []string{m.line(boldText, title)}
	if m.text == "" && m.fault == nil {
		return append(lines, m.line(softText, "asking the server ..."))
	}
	all := strings.Split(strings.TrimRight(m.text, "\n"), "\n")
	from := max(0, min(m.above, len(all)-1))
	for _, line := range all[from:min(from+rows, len(all))] {
		lines = append(lines, m.line("", line))
	}
	return lines
}

// topCounts is how many tasks stand where: what matters at night comes first, and 80 columns have
// it.
func topCounts(n *client.Counts) string {
	text := fmt.Sprintf("%s dead, %s ready, %s delivering, %s pending", compact(n.Dead), compact(n.Ready), compact(n.Delivering), compact(n.Pending))
	var among []string
	if n.Retrying > 0 {
		among = append(among, compact(n.Retrying)+" retrying")
	}
	if n.Held > 0 {
		among = append(among, compact(n.Held)+" held")
	}
	if len(among) > 0 {
		text += " (" + strings.Join(among, ", ") + ")"
	}
	return text
}

// topLate is how late tasks are, the oldest and the most before the rest.
func topLate(n *client.Counts, now time.Time) string {
	if n.Recent.Count == 0 {
		return "nothing is ready, and no first attempt was made in the last 5 minutes"
	}
	text := fmt.Sprintf("most %s, p99 up to %s, p50 up to %s", latenessText(n.Recent.Max), latenessText(n.Recent.P99), latenessText(n.Recent.P50))
	if n.Overdue.OldestAt != nil {
		text = fmt.Sprintf("%s overdue, the oldest for %s; %s", compact(n.Overdue.Count), oldest(n, now), text)
	}
	return text
}
