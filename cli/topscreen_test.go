package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/lapsehq/lapse/client"
)

// The keys that turn pages leave no topic out: a page of the server has more than a screen.
func TestTopTurnsScreens(t *testing.T) {
	r := newTopRig(t, 80, 16) // 7 topics
	r.server.topics = nil
	for i := range 20 {
		r.server.topics = append(r.server.topics, client.TopicInfo{Name: fmt.Sprintf("topic-%02d", i)})
	}
	r.server.next, r.server.matched = "2", 40
	r.look(0)
	shows := func(place, first, last, chosen string) {
		t.Helper()
		r.shows("  pgdn "+place+" of 40", first+" ", last+" ")
		if got := strings.Count(r.screen(), "topic-"); got != 7 {
			t.Errorf("%d topics are shown:\n%s", got, r.screen())
		}
		if got := r.model.topic(); got == nil || got.Name != chosen {
			t.Errorf("chosen is %v, want %s", got, chosen)
		}
	}
	shows("1-7", "topic-00", "topic-06", "topic-00")
	r.keys("down", "pgdown")
	shows("8-14", "topic-07", "topic-13", "topic-08")
	r.keys("pgdown")
	shows("14-20", "topic-13", "topic-19", "topic-15")
	r.keys("pgup")
	shows("7-13", "topic-06", "topic-12", "topic-08")
	r.keys("end")
	shows("14-20", "topic-13", "topic-19", "topic-19")
	r.keys("pgdown")
	shows("21-27", "topic-00", "topic-06", "topic-00")
	r.keys("pgup")
	shows("14-20", "topic-13", "topic-19", "topic-19")
	if q := r.server.queries; q[len(q)-2].Cursor != "2" || q[len(q)-1].Cursor != "" {
		t.Errorf("the server was asked for %+v", q)
	}
	// In another order the first one is chosen, wherever the one that was is now.
	r.server.topics[0], r.server.topics[19] = r.server.topics[19], r.server.topics[0]
	r.keys("s")
	shows("1-7", "topic-19", "topic-06", "topic-19")
	r.server.next, r.server.matched = "", 0
	r.look(time.Second)
	r.keys("pgdown", "pgdown", "pgdown")
	r.shows("pgdn 14-20 of 20", "topic-00")
	if asked := len(r.server.queries); r.server.queries[asked-1].Cursor != "" {
		t.Error("it turns the last page")
	}
}

// The width goes to the name and the most important columns first, and then to what is wrong.
func TestTopColumns(t *testing.T) {
	late := time.Now().Add(-time.Minute)
	for width, want := range map[int]string{
		40: "TOPIC           WHAT               READY",
		50: "OLDEST", 66: "FAILED 5M", 70: "DEAD", 80: "PENDING",
		112: "late no receiver failing ", 113: "   10m28s", 120: "late no receiver failing dead ",
	} {
		r := newTopRig(t, width, 24)
		one := client.TopicInfo{Name: "order.unpaid.1"}
		one.Delivery.Kind, one.Counts.Ready, one.Counts.Overdue.OldestAt, one.Counts.FailedRecent, one.Counts.Dead = "pull", 1, &late, 2, 3
		one.Counts.Recent = client.RecentLateness{Count: 1, P99: client.Duration(10*time.Minute + 28*time.Second + 221*time.Millisecond)}
		r.server.topics = []client.TopicInfo{one}
		r.look(0)
		r.shows(want, "q quit")
		for _, line := range strings.Split(r.screen(), "\n") {
			if strings.HasPrefix(line, "TOPIC") && strings.HasSuffix(line, "…") || strings.HasPrefix(line, "order") && strings.HasSuffix(line, "…") {
				t.Errorf("at %d columns a column is cut: %q", width, line)
			}
		}
	}
}

// Enter opens a topic with its errors, its oldest tasks and its settings, n the nodes, f the
// forecast, ? the keys; esc leads back. All of it fits, and goes up and down where it does not.
func TestTopOpensPages(t *testing.T) {
	r := newTopRig(t, 80, 24)
	r.look(0)
	r.shows("enter open", "? help")
	r.keys("down", "enter")
	r.shows("mail is failing", "3 dead, 0 ready", "answered 502", "ready-1", "retrying-1", "1h ago", "p pause  esc topics")
	for _, q := range r.server.lists {
		if q.Topic != "mail" || q.Limit != topShown || !q.Brief {
			t.Errorf("it lists %+v", q)
		}
	}
	r.keys("end")
	r.shows("lease", "47s")
	r.keys("home", "down", "down")
	if r.model.above != 2 {
		t.Errorf("%d lines are above the screen, want 2", r.model.above)
	}
	r.keys("f")
	r.shows("mail falls due in the next hour", "3000  ####")
	if o := r.server.outlook; o.Topic != "mail" || o.Window != time.Hour {
		t.Errorf("the forecast is of %+v", o)
	}
	r.keys("esc", "enter", "p")
	r.shows("Pause mail?")
	r.keys("y")
	r.shows("mail is paused")
	if got := fmt.Sprint(r.server.changes); got != "[pause mail]" {
		t.Errorf("it did %s", got)
	}
	r.keys("n")
	r.shows("NODE", "n1", "live", "n2", "silent", "http://n2.example")
	r.server.err = client.ErrUnreachable
	r.look(7 * time.Second)
	r.shows("OLD:", "n2")
	r.server.err = nil
	r.keys("?", "p", "s")
	r.shows("enter          open the topic", "esc topics")
	r.keys("esc")
	r.shows("sort: worst", "order.unpaid", "PENDING")
	for _, size := range [][2]int{{40, 12}, {20, 6}, {10, 3}, {1, 1}, {300, 400}} {
		r.send(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for _, key := range []string{"enter", "n", "f", "?"} {
			r.keys("esc", key, "end", "pgup", "pgdown")
			r.screen()
		}
	}
}

// A terminal of 80 columns shows what is dead and how late the latest was, whatever else there is.
func TestTopShowsDeadAndMost(t *testing.T) {
	r := newTopRig(t, 80, 24)
	n, late := &r.server.stats.Total, time.Now().Add(-100*time.Hour)
	n.Dead, n.Ready, n.Delivering, n.Pending, n.Retrying, n.Held, n.Overdue.OldestAt = 99_999, 1_234_567, 65_000, 9_876_543, 98_765, 1_234, &late
	n.Recent = client.RecentLateness{Count: 9, P50: client.Duration(90 * time.Minute), P99: client.Duration(100 * time.Hour), Max: client.Duration(99*time.Hour + 59*time.Minute + 59*time.Second)}
	r.look(0)
	r.shows("99999 dead, 1234k ready, 65000 delivering, 9876k pending", "the oldest for 4d4h; most 4d4h", "p99 up to")
}
