package cluster_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/ranking"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

var allSorts = []TopicSort{SortName, SortWorst, SortLate, SortFailed, SortDead, SortReady, SortPending, SortPaused}

// sortsBefore reports whether topic a comes before topic b, as package task says it.
func sortsBefore(sort TopicSort, now time.Time, a, b *task.Topic) bool {
	late := func(t *task.Topic) time.Duration {
		if t.Settings.Paused || t.Counts.OverdueOldest.IsZero() {
			return -1
		}
		return now.Sub(t.Counts.OverdueOldest)
	}
	paused := func(t *task.Topic) int64 {
		if !t.Settings.Paused {
			return -1
		}
		return t.Counts.Pending + t.Counts.Ready
	}
	class := func(t *task.Topic) int {
		switch {
		case late(t) >= LateAfter:
			return 0
		case t.Counts.FailedRecent > 0:
			return 1
		case t.Counts.Dead > 0:
			return 2
		case t.Settings.Paused:
			return 3
		}
		return 4
	}
	more := func(x, y int64) (before, tie bool) { return x > y, x == y }
	var before, tie bool
	switch sort {
	case SortName:
		tie = true
	case SortLate:
		before, tie = more(int64(late(a)), int64(late(b)))
	case SortFailed:
		if before, tie = more(a.Counts.FailedRecent, b.Counts.FailedRecent); tie && a.Counts.FailedRecent == 0 {
			before, tie = more(a.Counts.Failed, b.Counts.Failed)
		}
	case SortDead:
		before, tie = more(a.Counts.Dead, b.Counts.Dead)
	case SortReady:
		before, tie = more(a.Counts.Ready, b.Counts.Ready)
	case SortPending:
		before, tie = more(a.Counts.Pending, b.Counts.Pending)
	case SortPaused:
		before, tie = more(paused(a), paused(b))
	case SortWorst:
		ca, cb := class(a), class(b)
		if before, tie = ca < cb, ca == cb; tie && ca < 3 {
			return sortsBefore([]TopicSort{SortLate, SortFailed, SortDead}[ca], now, a, b)
		}
	}
	return before || tie && a.Name < b.Name
}

// wantSorted wants the pages of each order to have the topics of the fleet that match, in that
// order, at whatever node they are asked for.
func wantSorted(f *rig.Fleet, n *rig.Node, topics []task.Topic, rng *rand.Rand) {
	f.T.Helper()
	search := []string{"", "T", "1", "t3", "none"}[rng.IntN(5)]
	matching := slices.DeleteFunc(slices.Clone(topics), func(t task.Topic) bool {
		return !strings.Contains(strings.ToLower(t.Name), strings.ToLower(search))
	})
	for _, sort := range allSorts {
		now := time.Now()
		slices.SortFunc(matching, func(a, b task.Topic) int {
			if sortsBefore(sort, now, &a, &b) {
				return -1
			}
			return 1
		})
		var wanted, got []string
		for i := range matching {
			wanted = append(wanted, fmt.Sprint(matching[i].Name, matching[i].Counts))
		}
		for q := (TopicQuery{Limit: 1 + rng.IntN(4), Sort: sort, Search: search}); len(got) <= len(wanted); {
			page, reach, err := n.Admin().FleetTopics(f.T.Context(), q)
			rig.Want(f.T, "FleetTopics", err, nil)
			if len(page.Topics) > q.Limit || page.Matched != len(matching) || len(reach.Missing) > 0 {
				f.T.Errorf("a page of %d topics by %s has %d of %d, want of %d; missing %v", q.Limit, sort, len(page.Topics), page.Matched, len(matching), reach.Missing)
			}
			for i := range page.Topics {
				got = append(got, fmt.Sprint(page.Topics[i].Name, page.Topics[i].Counts))
			}
			if q.Cursor = page.NextCursor; q.Cursor == "" {
				break
			}
		}
		if !slices.Equal(wanted, got) {
			f.T.Errorf("by %s, with %q, at %s:\n%s\nwant\n%s", sort, search, n.Name, strings.Join(got, "\n"), strings.Join(wanted, "\n"))
		}
	}
}

func TestTopicQueryIsChecked(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for _, name := range []string{"a", "b"} {
			r.Must(Request{Topic: name, Delay: time.Hour})
		}
		page, err := r.Admin().ListTopics(TopicQuery{Sort: SortPending, Limit: 1})
		if rig.Want(t, "ListTopics", err, nil); page.NextCursor == "" || page.Matched != 2 {
			t.Fatalf("the first page is %+v", page)
		}
		for field, q := range map[string]TopicQuery{
			"sort":   {Sort: "best"},
			"search": {Search: strings.Repeat("x", MaxSearch+1)},
			"cursor": {Sort: SortDead, Cursor: page.NextCursor},
		} {
			_, err := r.Admin().ListTopics(q)
			if rig.Want(t, field, err, ErrInvalid); err != nil && !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
			_, _, err = r.Admin().FleetTopics(t.Context(), q)
			rig.Want(t, field, err, ErrInvalid)
		}
		for _, cursor := range []string{"pending", "pending~0~1", "pending~0~1~", "pending~0~1~a b", "pending~0~+1~a", "pending~0~1~-", "a", "~~~"} {
			_, err := r.Admin().ListTopics(TopicQuery{Sort: SortPending, Cursor: cursor})
			rig.Want(t, cursor, err, ErrInvalid)
		}
		// A token sees its own topics only.
		page, _, err = r.Admin().FleetTopics(WithGrant(t.Context(), &Grant{Topics: []string{"b"}}), TopicQuery{Sort: SortPending})
		if rig.Want(t, "FleetTopics", err, nil); page.Matched != 1 || page.Topics[0].Name != "b" {
			t.Errorf("the page is %+v", page)
		}
	})
}

// A node whose topics do not fit into its answer tells of those that come first.
func TestSortedTopicsBeyondThePage(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		const topics, told = 200, 20
		for i := range topics {
			tasks := make([]Request, 1+(i*37)%topics) // of each topic another number
			for k := range tasks {
				tasks[k] = Request{Topic: fmt.Sprintf("t%03d", i), Delay: time.Hour}
			}
			_, err := f.Nodes[1].ScheduleBatch(t.Context(), tasks)
			rig.Want(t, "ScheduleBatch", err, nil)
		}
		first := func(page TopicPage, n int) (names []string) {
			if page.Matched != topics {
				t.Errorf("%d topics match, want %d", page.Matched, topics)
			}
			for i := range page.Topics[:min(n, len(page.Topics))] {
				names = append(names, page.Topics[i].Name)
			}
			return names
		}
		for _, sort := range []TopicSort{SortName, SortPending} {
			page, err := f.Nodes[1].Admin().ListTopics(TopicQuery{Sort: sort, Search: "t"})
			rig.Want(t, "ListTopics", err, nil)
			wanted := first(page, told)
			if got := ranked(t, f.Nodes[0], f.Nodes[1].Name, sort, told*104, 0); !slices.Equal(got, wanted) {
				t.Errorf("by %s, the node tells of %v, want %v", sort, got, wanted)
			}
			for _, n := range f.Nodes {
				page, _, err := n.Admin().FleetTopics(t.Context(), TopicQuery{Sort: sort, Search: "t", Limit: told})
				if rig.Want(t, "FleetTopics", err, nil); !slices.Equal(first(page, told), wanted) {
					t.Errorf("by %s, the first topics at %s are %v, want %v", sort, n.Name, first(page, told), wanted)
				}
				page, _, err = n.Admin().FleetTopics(t.Context(), TopicQuery{Sort: sort, Search: "t", Cursor: string(sort) + "~9~0~z"})
				if rig.Want(t, "FleetTopics", err, nil); len(first(page, 1)) > 0 || page.NextCursor != "" {
					t.Errorf("by %s, behind the last topic %s lists %v", sort, n.Name, page)
				}
			}
		}
	})
}

// A node that is asked for the worst topics by one that knows the same names tells only of those
// with something wrong. The page is the same, and all that match are counted.
func TestRanksThatMoveNothingStayAtTheirNode(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		asking, asked := f.Nodes[0], f.Nodes[1]
		add := func(n *rig.Node, topic string, delay time.Duration) {
			_, err := n.Schedule(t.Context(), Request{Topic: topic, Delay: delay})
			rig.Want(t, "Schedule", err, nil)
		}
		known := []*ranking.Rank{{Name: "c"}, {Name: "a"}, {Name: "b"}}
		for _, r := range known {
			add(asking, r.Name, time.Hour)
			add(asked, r.Name, time.Hour)
		}
		add(asked, "b", time.Millisecond)
		time.Sleep(2 * time.Second) // b is late
		told := func(sort TopicSort, known ...*ranking.Rank) string {
			names := ranked(t, asking, asked.Name, sort, 1<<20, ranking.Digest(known))
			slices.Sort(names)
			return fmt.Sprint(names)
		}
		for _, c := range []struct{ got, want string }{
			{told(SortWorst, known...), "[b]"},
			{told(SortName, known...), "[]"},
			{told(SortPending, known...), "[a b c]"},
			{told(SortWorst, known[:2]...), "[a b c]"},
			{told(SortWorst), "[a b c]"},
		} {
			if c.got != c.want {
				t.Errorf("it tells of %s, want %s", c.got, c.want)
			}
		}
		page, _, err := asking.Admin().FleetTopics(t.Context(), TopicQuery{Sort: SortWorst, Limit: 2})
		if rig.Want(t, "FleetTopics", err, nil); page.Matched != 3 || len(page.Topics) != 2 || page.Topics[0].Name != "b" || page.Topics[1].Name != "a" || page.Topics[1].Counts.Pending != 2 {
			t.Errorf("the page is %+v", page)
		}
	})
}

// ranked returns the topics of which a node tells another one for a page, in about so many bytes,
// if the other one knows the names of a digest.
func ranked(t *testing.T, asking *rig.Node, node string, sort TopicSort, bytes int, known uint64) (names []string) {
	t.Helper()
	reply := callJSON(t, asking.Cluster(), node, cluster.RanksMethod, fmt.Sprintf(`{"Sort":%q,"Bytes":%d,"Known":%d}`, sort, bytes, known))
	var told struct {
		Ranks []struct {
			Name string `json:"n"`
		}
	}
	rig.Want(t, "Unmarshal", json.Unmarshal(reply, &told), nil)
	for _, r := range told.Ranks {
		names = append(names, r.Name)
	}
	return names
}

// callJSON calls a method of a node with the JSON of a query, and returns that of the reply.
func callJSON[Q, A any](t *testing.T, s *cluster.Cluster, node string, m cluster.Method[Q, A], query string) []byte {
	t.Helper()
	var q Q
	rig.Want(t, "Unmarshal", json.Unmarshal([]byte(query), &q), nil)
	a, err := cluster.Call(t.Context(), s, node, m, q)
	rig.Want(t, "Call", err, nil)
	reply, err := json.Marshal(a)
	rig.Want(t, "Marshal", err, nil)
	return reply
}

// Where topics come all the time, the other nodes are asked no more often, and each topic of the
// node that is asked is on the page at once.
func TestTopicsThatCome(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		f.Nodes[1].Must(Request{ID: "first", Topic: "first"})
		rig.Pass(2 * time.Second)
		const pages = 6
		for i := range pages {
			_, err := a.SetTopic(t.Context(), fmt.Sprint("t", i), TopicSettings{}, -1)
			rig.Want(t, "SetTopic", err, nil)
			page, _, err := a.Admin().FleetTopics(t.Context(), TopicQuery{Sort: SortWorst, Limit: 1})
			if err != nil || page.Matched != i+2 {
				t.Errorf("%d topics, %v, want %d", page.Matched, err, i+2)
			}
		}
		// The ranks once, and what each page has of its own topics.
		if kept := rig.Cluster(a.Scheduler).Gathered(); kept > 1+pages {
			t.Errorf("%d answers are kept after %d pages", kept, pages)
		}
	})
}
