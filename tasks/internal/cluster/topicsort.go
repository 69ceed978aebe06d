package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// Pages of topics that are searched or sorted. Where a topic stands follows from its figures at all
// nodes together, so this node first gathers a few figures of all topics that match, chooses those
// of the page, and asks for these alone what else is known of them.

// RanksMethod asks for the figures by which topics are sorted.
var RanksMethod = Method[ranksQuery, ranksReply]{Name: "ranks"}

type (
	// A ranksQuery asks for about so many bytes of ranks: those that are first in that order.
	ranksQuery struct {
		Search   string         `json:",omitempty"`
		Sort     task.TopicSort `json:",omitempty"`
		Patterns []string       `json:",omitempty"` // of the topics that the caller may see
		Bytes    int
	}
	ranksReply struct {
		Ranks   []engine.Rank `json:",omitempty"`
		Matched int           `json:",omitempty"` // how many topics match, be they in Ranks or not
		reading
	}
)

// ranksBytes bounds the ranks in the answers of all nodes to one query, and rankSize is about how
// many bytes of a message a rank takes up, besides its name.
const (
	ranksBytes = 16 << 20
	rankSize   = 100
)

func (s *Cluster) handleRanks(_ context.Context, _ string, q ranksQuery) (a ranksReply, err error) {
	a.Reads = !s.engine.IsReplayed()
	ranks := s.ranksOf(&task.TopicQuery{Search: q.Search, Allows: func(name string) bool { return task.AnyMatches(q.Patterns, name) }})
	a.Matched = len(ranks)
	size := 0
	for _, r := range ranks {
		size += sizeOfRank(r)
	}
	first := ranks
	if len(ranks) > task.MaxSortedTopics || size > q.Bytes {
		first = nil
		for _, p := range s.firstPlaces(ranks, q.Sort, nil, task.MaxSortedTopics) {
			first = append(first, p.rank)
		}
	}
	for _, r := range first {
		if q.Bytes -= sizeOfRank(r); q.Bytes < 0 {
			break
		}
		a.Ranks = append(a.Ranks, *r)
	}
	return a, nil
}

// sizeOfRank returns about how many bytes of a message a rank takes up.
func sizeOfRank(r *engine.Rank) int { return rankSize + len(r.Name) }

// ranksOf returns the ranks of the topics of this node that match a query. They are shared.
func (s *Cluster) ranksOf(q *task.TopicQuery) []*engine.Rank {
	all := s.Figures.ranks.do(func() ([]engine.Rank, bool) {
		all := s.engine.Ranks()
		return all, len(all) > task.MaxStatsTopics
	})
	part := strings.ToLower(q.Search)
	matching := make([]*engine.Rank, 0, len(all))
	for i := range all {
		if r := &all[i]; (q.Allows == nil || q.Allows(r.Name)) && (part == "" || strings.Contains(strings.ToLower(r.Name), part)) {
			matching = append(matching, r)
		}
	}
	return matching
}

// sortedPage is TopicPage of a query with an order.
func (s *Cluster) sortedPage(q task.TopicQuery) (page task.TopicPage) {
	ranks := s.ranksOf(&q)
	places := s.firstPlaces(ranks, q.Sort, placeAt(&q), q.Limit+1)
	more := len(places) > q.Limit
	names := namesOf(places[:min(len(places), q.Limit)])
	page = s.engine.DescribeSome(names)
	page.Matched = len(ranks)
	switch end := slices.Index(names, page.NextCursor); {
	case end >= 0:
		page.NextCursor = places[end].cursor(q.Sort)
	case more:
		page.NextCursor = places[q.Limit-1].cursor(q.Sort)
	}
	return page
}

// fleetSorted is FleetTopics of a query with an order.
func (s *Cluster) fleetSorted(ctx context.Context, q task.TopicQuery) (page task.TopicPage, reach task.Reach, err error) {
	g, err := gather(ctx, s, RanksMethod, ranksQuery{q.Search, q.Sort, task.PatternsOf(ctx), s.share(ranksBytes)})
	if err != nil {
		return page, reach, err
	}
	if len(g.answers) == 0 {
		return s.sortedPage(q), g.reach, nil
	}
	ranks, matched := s.addRanks(s.ranksOf(&q), g.answers, &q)
	places := s.firstPlaces(ranks, q.Sort, placeAt(&q), q.Limit+1)
	page.Matched = matched
	names := namesOf(places[:min(len(places), q.Limit)])
	if len(names) == 0 {
		return page, g.reach, nil
	}
	sum, end, reach, err := s.describeAll(ctx, names, g)
	if err != nil {
		return page, reach, err
	}
	for _, name := range names[:end] {
		if i, known := sum.at[name]; known {
			page.Topics = append(page.Topics, sum.topics[i])
		}
	}
	if end < len(places) {
		page.NextCursor = places[end-1].cursor(q.Sort)
	}
	return page, reach, nil
}

// addRanks adds the ranks of other nodes to those of this one, which stay as they are. It returns
// how many topics match, at least.
func (s *Cluster) addRanks(own []*engine.Rank, answers []nodeAnswer[ranksReply], q *task.TopicQuery) (ranks []*engine.Rank, matched int) {
	sums := make(map[string]*engine.Rank, len(own))
	for _, r := range own {
		sums[r.Name] = r
	}
	added := make(map[string]bool) // those that are not shared
	for i := range answers {
		a := &answers[i].reply
		matched = max(matched, a.Matched)
		for k := range a.Ranks {
			r := a.Ranks[k]
			had := sums[r.Name]
			switch {
			case !q.Allows(r.Name) || had == nil && r.Pending+r.Ready+r.Dead == 0 && s.engine.IsDeleted(r.Name):
				continue
			case had != nil:
				r.Paused = had.Paused
				r.Add(had)
			}
			if added[r.Name] {
				*had = r
				continue
			}
			sums[r.Name], added[r.Name] = &r, true
		}
	}
	return slices.Collect(maps.Values(sums)), max(matched, len(sums))
}

// describeAll adds up the topics of these names at this node and at those that have answered. All
// nodes have described the first names up to end.
func (s *Cluster) describeAll(ctx context.Context, names []string, g *gathered[ranksReply]) (sum *topicSum, end int, reach task.Reach, err error) {
	of := make([]string, 0, len(g.answers)) // nil would be all
	for i := range g.answers {
		of = append(of, g.answers[i].node)
	}
	d, err := gather(ctx, s, TopicsMethod, topicsQuery{Names: names, Bytes: s.share(pageBytes)}, of...)
	if err != nil {
		return nil, 0, reach, err
	}
	end = len(names)
	upTo := func(next string) {
		if i := slices.Index(names, next); i >= 0 {
			end = min(end, i+1)
		}
	}
	page := s.engine.DescribeSome(names)
	upTo(page.NextCursor)
	sum = sumOf(page.Topics)
	for i := range d.answers {
		a := &d.answers[i].reply
		sum.add(s.engine, d.answers[i].node, a.Topics)
		upTo(a.Next)
	}
	reach = task.Reach{Nodes: d.reach.Nodes, Missing: slices.Concat(g.reach.Missing, d.reach.Missing)}
	slices.SortFunc(reach.Missing, func(a, b *task.NodeError) int { return strings.Compare(a.Node, b.Node) })
	return sum, end, reach, nil
}

// A place is where a topic stands in an order: by class, then by value, then by name.
type place struct {
	class, value int64
	name         string
	rank         *engine.Rank
}

func (p *place) compare(o *place) int {
	return cmp.Or(cmp.Compare(p.class, o.class), cmp.Compare(p.value, o.value), strings.Compare(p.name, o.name))
}

// cursor leads to what comes after the place. A topic that changes its place meanwhile is listed
// twice or not at all.
func (p *place) cursor(sort task.TopicSort) string {
	return fmt.Sprintf("%s~%d~%d~%s", sort, p.class, p.value, p.name)
}

// placeAt returns the place of a query's cursor; nil if it has none.
func placeAt(q *task.TopicQuery) *place {
	p, err := placeOfCursor(q)
	if err != nil {
		return nil
	}
	return p
}

// CheckCursor reports whether a query with an order has a cursor of that order, or none.
func CheckCursor(q *task.TopicQuery) bool {
	_, err := placeOfCursor(q)
	return err == nil
}

func placeOfCursor(q *task.TopicQuery) (*place, error) {
	if q.Cursor == "" {
		return nil, nil
	}
	p := &place{}
	_, err := fmt.Sscanf(q.Cursor, string(q.Sort)+"~%d~%d~%s", &p.class, &p.value, &p.name)
	if err == nil && (p.cursor(q.Sort) != q.Cursor || !task.ValidName(p.name)) {
		err = fmt.Errorf("%w: the cursor", task.ErrInvalid)
	}
	return p, err
}

// firstPlaces returns so many places, the first of an order behind that place.
func (s *Cluster) firstPlaces(ranks []*engine.Rank, sort task.TopicSort, after *place, limit int) []place {
	now := s.engine.Now()
	first := Smallest[place]{Limit: limit, Compare: func(a, b place) int { return a.compare(&b) }}
	for _, r := range ranks {
		class, value := classOf(r, sort, now)
		p := place{class, value, r.Name, r}
		if after == nil || after.compare(&p) < 0 {
			first.Add(p)
		}
	}
	return first.Sorted()
}

func namesOf(places []place) []string {
	names := make([]string, len(places))
	for i := range places {
		names[i] = places[i].name
	}
	return names
}

// classOf returns where a topic stands in an order: the smaller ones come first.
func classOf(r *engine.Rank, sort task.TopicSort, now int64) (class, value int64) {
	switch sort {
	case task.SortWorst:
		switch {
		case !r.Paused && r.Oldest != 0 && now-r.Oldest >= task.LateAfter.Milliseconds():
			return 0, r.Oldest
		case r.FailedRecent > 0:
			return 1, -r.FailedRecent
		case r.Dead > 0:
			return 2, -r.Dead
		case r.Paused:
			return 3, 0
		}
		return 4, 0
	case task.SortLate:
		if r.Paused || r.Oldest == 0 {
			return 1, 0
		}
		return 0, r.Oldest
	case task.SortFailed:
		if r.FailedRecent > 0 {
			return 0, -r.FailedRecent
		}
		return 1, -r.Failed
	case task.SortDead:
		return 0, -r.Dead
	case task.SortReady:
		return 0, -r.Ready
	case task.SortPending:
		return 0, -r.Pending
	case task.SortPaused:
		if r.Paused {
			return 0, -r.Pending - r.Ready
		}
		return 1, 0
	}
	return 0, 0
}
