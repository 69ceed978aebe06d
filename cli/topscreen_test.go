package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
)

// The keys that turn pages leave no topic out: a page of the server has more than a screen.
func TestTopTurnsScreens(t *testing.T) {
	r := newTopRig(t, 80, 16) // 7 topics
	r.server.topics = nil
	for i := range 20 {
		r.server.topics = append(r.server.topics, client.Topic{Name: fmt.Sprintf("topic-%02d", i)})
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
		one := client.Topic{Name: "order.unpaid.1"}
		one.Delivery.Kind, one.Counts.Ready, one.Counts.Overdue.OldestAt, one.Counts.FailedRecent, one.Counts.Dead = "pull", 1, &late, 2, 3
		one.Counts.Recent = client.RecentLateness{Count: 1, P99: client.Duration(10*time.Minute + 28*time.Second + 221*time.Millisecond)}
		r.server.topics = []client.Topic{one}
		r.look(0)
		r.shows(want, "q quit")
		for _, line := range strings.Split(r.screen(), "\n") {
			if strings.HasPrefix(line, "TOPIC") && strings.HasSuffix(line, "…") || strings.HasPrefix(line, "order") && strings.HasSuffix(line, "…") {
				t.Errorf("at %d columns a column is cut: %q", width, line)
			}
		}
	}
}
