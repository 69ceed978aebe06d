package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/tasks"
)

// The looks of text: what is wrong is red, and what matters less is faint. Words say the same, for
// terminals without colors.
const (
	badText  = "\x1b[31m"
	softText = "\x1b[2m"
	boldText = "\x1b[1m"
	pickText = "\x1b[7m"
)

// footLines is how many lines stand below the topics.
const footLines = 2

// staleAfter is how long after the expected answer the figures count as old.
const staleAfter = 3 * time.Second

// View is the whole screen.
func (m *topModel) View() tea.View {
	lines := m.head()
	if m.at.screen == topicsPage {
		lines = append(lines, m.table(m.rows())...)
	} else {
		lines = append(lines, m.body(m.rows())...)
	}
	foot := m.foot()
	for len(lines)+len(foot) < m.height {
		lines = append(lines, "")
	}
	lines = append(lines, foot...)
	if m.height > 0 && len(lines) > m.height { // too low for all: the keys go first
		lines = lines[:m.height]
	}
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen = true
	v.WindowTitle = "lapse top " + plain(m.url)
	return v
}

// rows is how many topics find room between the head, the heads of the columns and the foot.
func (m *topModel) rows() int {
	if m.height == 0 {
		return topicsOnce
	}
	return max(1, m.height-len(m.head())-1-footLines)
}

// line cuts a text to the width of the terminal, and then gives it a look.
func (m *topModel) line(look, text string) string {
	text = plain(text)
	if m.width > 0 {
		text = cut(text, m.width)
	}
	if !m.color || look == "" || text == "" {
		return text
	}
	return look + text + "\x1b[m"
}

// cut ends a text that is too wide with an ellipsis.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width-1)]) + "…"
}

// head is what stands above the topics.
func (m *topModel) head() []string {
	title := "lapse top " + m.url
	if s := m.seen.stats; s != nil {
		title += fmt.Sprintf("  %s %s, up %s", s.Node, s.Version, roundedText(time.Duration(s.Uptime)))
	}
	lines := []string{m.line(boldText, title)}
	if fault := m.stale(); fault != "" {
		lines = append(lines, m.line(badText, fault))
	}
	if m.seen.page == nil {
		return lines
	}
	lines = append(lines, m.wrong()...)
	if r := &m.seen.page.Reach; len(r.Missing) > 0 {
		lines = append(lines, m.line(badText, "without the figures of "+missing(r)))
	} else if lacks := lacksRecent(r); lacks != "" {
		lines = append(lines, m.line(softText, lacks))
	}
	s := m.seen.stats
	if s == nil {
		return append(lines, m.line(softText, "the token may not read the totals"), "")
	}
	if state := nodeState(&s.State); state != "ready" {
		lines = append(lines, m.line(badText, s.Node+": "+state))
	}
	return append(lines, m.line("", "tasks     "+topCounts(&s.Total)), m.line("", "a second  "+m.rates()),
		m.line("", "late now  "+topLate(&s.Total, m.seen.at)), "")
}

// troublesShown is how many troubles of the ledger and the nodes have a line.
const troublesShown = 4

// wrong says what is wrong, as the server judges it: all in one line, and then the ledger and the
// nodes, the causes first.
func (m *topModel) wrong() []string {
	d := m.seen.wrong
	if m.seen.unjudged != nil {
		return []string{m.line(badText, "the server does not say what is wrong: "+explain(m.seen.unjudged))}
	}
	look := ""
	if slices.ContainsFunc(d.Troubles, func(t client.Trouble) bool { return t.Grave }) {
		look = badText
	}
	lines := []string{m.line(look, d.Headline)}
	more := 0
	for i := range d.Troubles {
		t := &d.Troubles[i]
		if t.Topic != "" {
			continue
		}
		if len(lines) > troublesShown {
			more++
			continue
		}
		text, look := "  "+t.Text, softText
		if t.Since != nil {
			text += " for " + roundedText(d.At.Sub(*t.Since).Round(time.Second))
		}
		if t.Detail != "" {
			text += ": " + t.Detail
		}
		if t.Grave {
			look = badText
		}
		lines = append(lines, m.line(look, text))
	}
	if more > 0 {
		lines = append(lines, m.line(badText, fmt.Sprintf("  and %d more: see lapse nodes", more)))
	}
	return lines
}

// stale says that the figures are old, and why; "" if they are not.
func (m *topModel) stale() string {
	age := m.now.Sub(m.seen.at)
	switch {
	case m.seen.page == nil && m.fault == nil:
		return "asking the server ..."
	case m.seen.page == nil:
		return "no figures: " + explain(m.fault)
	case m.fault != nil:
		return fmt.Sprintf("OLD: the figures are of %s ago. %s", roundedText(age.Round(time.Second)), explain(m.fault))
	case age > m.interval+staleAfter:
		return fmt.Sprintf("OLD: the figures are of %s ago. The server does not answer", roundedText(age.Round(time.Second)))
	}
	return ""
}

// rates is what has happened since the look before.
func (m *topModel) rates() string {
	now, before := m.seen.stats, m.earlier.stats
	took := m.seen.at.Sub(m.earlier.at)
	// A node that has come or gone brings or takes what it counted since its start.
	if before == nil || took <= 0 || !slices.Equal(now.Covers, before.Covers) {
		return "not known before the next look"
	}
	var all []string
	for _, r := range []struct {
		name        string
		now, before int64
	}{
		{"scheduled", now.Total.Scheduled, before.Total.Scheduled}, {"delivered", now.Total.Delivered, before.Total.Delivered},
		{"failed", now.Total.Failed, before.Total.Failed}, {"died", now.Total.Died, before.Total.Died}, {"cancelled", now.Total.Cancelled, before.Total.Cancelled},
	} {
		all = append(all, rate(r.now-r.before, took)+" "+r.name)
	}
	return strings.Join(all, ", ")
}

// rate is a number of things for each second. A count that has gone back is that of a node that has
// started again.
func rate(n int64, took time.Duration) string {
	perSecond := float64(n) / took.Seconds()
	switch {
	case n < 0:
		return "-"
	case perSecond >= 10 || perSecond == math.Trunc(perSecond):
		return compact(int64(perSecond))
	}
	return strconv.FormatFloat(perSecond, 'f', 1, 64)
}

// compact is a count in at most 6 characters.
func compact(n int64) string {
	switch {
	case n < 100_000:
		return strconv.FormatInt(n, 10)
	case n < 10_000_000:
		return strconv.FormatInt(n/1000, 10) + "k"
	}
	return strconv.FormatInt(n/1_000_000, 10) + "M"
}

// A topColumn is a column of the table of topics.
type topColumn struct {
	head  string
	width int
	least int // the width of the terminal from which on it is shown
	cell  func(m *topModel, t *client.TopicInfo) string
}

// The width of what is wrong with a topic: the least one, and that of all words together.
const leastWhat, mostWhat = 16, 43

// topColumns stand right of the names. They and 18 characters of a name fit into 80 columns, the
// first two and 14 characters into 40.
var topColumns = []topColumn{
	{"WHAT", leastWhat, 0, func(_ *topModel, t *client.TopicInfo) string { return whatOf(t) }},
	{"READY", 6, 0, func(_ *topModel, t *client.TopicInfo) string { return compact(t.Counts.Ready) }},
	{"OLDEST", 6, 48, func(m *topModel, t *client.TopicInfo) string { return oldest(&t.Counts, m.seen.at) }},
	{"FAILED 5M", 9, 59, func(_ *topModel, t *client.TopicInfo) string { return compact(t.Counts.FailedRecent) }},
	{"DEAD", 6, 67, func(_ *topModel, t *client.TopicInfo) string { return compact(t.Counts.Dead) }},
	{"PENDING", 7, 76, func(_ *topModel, t *client.TopicInfo) string { return compact(t.Counts.Pending) }},
	{"BUSY", 6, 90, func(_ *topModel, t *client.TopicInfo) string { return compact(t.Counts.Delivering) }},
	{"OUT/S", 6, 98, func(m *topModel, t *client.TopicInfo) string { return m.topicRate(t) }},
	{"P99 NOW", 8, 108, func(_ *topModel, t *client.TopicInfo) string { return p99(t) }},
}

// whatOf says in a few words what is wrong with a topic, the worst first.
func whatOf(t *client.TopicInfo) string {
	var words []string
	for i := range t.Troubles {
		words = append(words, t.Troubles[i].Kind)
		if t.Troubles[i].Kind == string(tasks.TroubleLate) && unreceived(t) {
			words = append(words, "no receiver")
		}
	}
	return strings.Join(words, " ")
}

// unreceived reports whether tasks of a topic are ready, and no receiver pulls them.
func unreceived(t *client.TopicInfo) bool {
	n := &t.Counts
	return t.Delivery.Kind == "pull" && n.Ready > 0 && n.Receivers == 0 && n.Delivering == 0 && !t.Paused
}

func p99(t *client.TopicInfo) string {
	if t.Counts.Recent.Count == 0 {
		return "-"
	}
	return latenessText(t.Counts.Recent.P99)
}

// topicRate is how many tasks of a topic were delivered a second since the look before.
func (m *topModel) topicRate(t *client.TopicInfo) string {
	took := m.seen.at.Sub(m.earlier.at)
	if m.earlier.page == nil || took <= 0 || !slices.Equal(m.seen.page.Covers, m.earlier.page.Covers) {
		return "-"
	}
	i := slices.IndexFunc(m.earlier.page.Topics, func(b client.TopicInfo) bool { return b.Name == t.Name })
	if i < 0 {
		return "-"
	}
	return rate(t.Counts.Delivered-m.earlier.page.Topics[i].Counts.Delivered, took)
}

// table is the head of the table and so many topics, the chosen one among them.
func (m *topModel) table(rows int) []string {
	if m.seen.page == nil {
		return nil
	}
	list := m.seen.page.Topics
	if len(list) == 0 {
		text := "no topic yet: schedule a task, and its topic appears here"
		if m.seen.query.Search != "" {
			text = fmt.Sprintf("no topic has %q in its name", m.seen.query.Search)
		}
		return []string{m.line(softText, text)}
	}
	var shown []topColumn
	name := 0
	for i := range list {
		name = max(name, utf8.RuneCountInString(list[i].Name))
	}
	room := m.width
	for _, c := range topColumns {
		if m.width == 0 || m.width >= c.least {
			shown = append(shown, c)
			room -= c.width + 2
		}
	}
	name = max(name, len("TOPIC"))
	shown[0].width = mostWhat
	if m.width > 0 {
		name = min(name, max(room, 8))
		shown[0].width = min(leastWhat+max(room-name, 0), mostWhat)
	}
	cells := make([]string, len(shown))
	for i, c := range shown {
		cells[i] = c.head
	}
	lines := []string{m.line(softText, rowOf(shown, name, "TOPIC", cells))}
	m.first = max(0, min(max(min(m.first, m.chosen), m.chosen-rows+1), len(list)-rows))
	for i := m.first; i < min(m.first+rows, len(list)); i++ {
		t := &list[i]
		for j, c := range shown {
			cells[j] = c.cell(m, t)
		}
		look := ""
		switch {
		case i == m.chosen && m.color:
			look = pickText
		case cells[0] == "paused":
			look = softText
		case cells[0] != "":
			look = badText
		}
		lines = append(lines, m.line(look, rowOf(shown, name, t.Name, cells)))
	}
	return lines
}

// rowOf aligns the cells of a row. Words stand left, numbers right.
func rowOf(shown []topColumn, width int, name string, cells []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s", width, cut(name, width))
	for i, c := range shown {
		if i == 0 {
			fmt.Fprintf(&b, "  %-*s", c.width, cut(cells[i], c.width))
		} else {
			fmt.Fprintf(&b, "  %*s", c.width, cells[i])
		}
	}
	return b.String()
}

// foot is what stands below the topics: more of the chosen one, or a question, and the keys.
func (m *topModel) foot() []string {
	more, keys := m.notice, "s sort: "+string(m.query.Sort)+"  / search"
	if m.query.Search != "" {
		keys += ": " + m.query.Search + "  esc all"
	}
	switch wide := m.width == 0 || m.width >= 76; {
	case m.at.screen != topicsPage:
		keys = "esc topics  n nodes  f forecast  ? help  q quit"
		if m.at.screen == topicPage && wide {
			keys = "p pause  " + keys
		}
	case wide:
		keys = "enter open  ? help  " + keys + "  p pause  q quit"
		if m.width == 0 || m.width >= 110 {
			keys = "n nodes  f forecast  " + keys
		}
	default:
		keys += "  p pause  q quit"
	}
	t := m.topic()
	if m.at.screen != topicsPage {
		t = nil
	}
	switch {
	case m.mode == searching:
		more, keys = "search: "+m.typed+"_", "enter search  esc leave it"
	case m.mode == confirming:
		more = fmt.Sprintf("Pause %s? Its tasks are accepted and wait, at all nodes.", m.target.Name)
		if m.target.Paused {
			more = fmt.Sprintf("Deliver the tasks of %s again, at all nodes?", m.target.Name)
		}
		return []string{m.line(boldText, more), m.line(softText, "y yes  any other key no")}
	case more == "" && t != nil && t.Undeliverable != "":
		more = t.Name + " cannot be delivered: " + t.Undeliverable
	case more == "" && t != nil && unreceived(t):
		more = "no receiver pulls " + t.Name + ": " + counted(t.Counts.Ready, "task is", "tasks are") + " ready"
	case more == "" && t != nil && t.LastFailedAt != nil:
		more = fmt.Sprintf("%s failed %s: %s", t.Name, relative(*t.LastFailedAt, m.seen.at), t.LastError)
	}
	return []string{m.line("", more), m.line(softText, keys+m.place())}
}

// place says which topics of how many are shown, if these are not all.
func (m *topModel) place() string {
	p := m.seen.page
	switch {
	case p == nil || m.mode == searching || m.at.screen != topicsPage:
		return ""
	case m.query != m.seen.query:
		return "  asking the server ..."
	}
	from, all := 0, max(p.Matched, len(p.Topics))
	for _, b := range m.before {
		from += b.topics
	}
	last := min(m.first+m.rows(), len(p.Topics))
	if last <= m.first || from == 0 && last-m.first == all && p.NextCursor == "" {
		return ""
	}
	return fmt.Sprintf("  pgdn %d-%d of %d", from+m.first+1, from+last, all)
}
