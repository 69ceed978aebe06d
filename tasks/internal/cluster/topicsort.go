package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/tasks/internal/ranking"
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
		// Known is the digest of the names that match at the asking node, see ranking.Digest. A
		// node that has the same leaves out the ranks that move nothing: most, if nothing is wrong.
		Known uint64 `json:",omitempty"`
	}
	ranksReply struct {
		Ranks   []ranking.Rank `json:",omitempty"`
		Matched int            `json:",omitempty"` // how many topics match, be they in Ranks or not
		recentReading
	}
)

// ranksBytes bounds the ranks in the answers of all nodes to one query, and rankSize is about how
// many bytes of a message a rank takes up, besides its name.
const (
	ranksBytes = 16 << 20
	rankSize   = 100
)

func (s *Cluster) handleRanks(_ context.Context, _ string, q ranksQuery) (a ranksReply, err error) {
	a.recentReading = s.recently(!s.engine.IsReplayed())
	ranks := s.ranksOf(&task.TopicQuery{Search: q.Search, Allows: func(name string) bool { return task.AnyMatches(q.Patterns, name) }})
	a.Matched = len(ranks)
	if q.Known != 0 && q.Known == ranking.Digest(ranks) {
		ranks = slices.DeleteFunc(ranks, func(r *ranking.Rank) bool { return !r.Moves(q.Sort) })
	}
	size := 0
	for _, r := range ranks {
		size += sizeOfRank(r)
	}
	first := ranks
	if len(ranks) > task.MaxSortedTopics || size > q.Bytes {
		first = nil
		for _, p := range ranking.First(ranks, &task.TopicQuery{Sort: q.Sort}, task.MaxSortedTopics, s.engine.Now()) {
			first = append(first, p.Rank)
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
func sizeOfRank(r *ranking.Rank) int { return rankSize + len(r.Name) }

// ranksOf returns the ranks of the topics of this node that match a query. They are shared.
func (s *Cluster) ranksOf(q *task.TopicQuery) []*ranking.Rank {
	all := s.Figures.ranks.do(func() ([]ranking.Rank, bool) {
		all := s.engine.Ranks()
		return all, len(all) > task.MaxStatsTopics
	})
	part := strings.ToLower(q.Search)
	matching := make([]*ranking.Rank, 0, len(all))
	for i := range all {
		if r := &all[i]; (q.Allows == nil || q.Allows(r.Name)) && (part == "" || strings.Contains(strings.ToLower(r.Name), part)) {
			matching = append(matching, r)
		}
	}
	return matching
}

// sortedPage is TopicPage of a query with an order, whose ranks match it.
func (s *Cluster) sortedPage(q task.TopicQuery, ranks []*ranking.Rank) (page task.TopicPage) {
	places := ranking.First(ranks, &q, q.Limit+1, s.engine.Now())
	more := len(places) > q.Limit
	names := ranking.Names(places[:min(len(places), q.Limit)])
	page = s.engine.DescribeSome(names)
	page.Matched = len(ranks)
	switch end := slices.Index(names, page.NextCursor); {
	case end >= 0:
		page.NextCursor = places[end].Cursor(q.Sort)
	case more:
		page.NextCursor = places[q.Limit-1].Cursor(q.Sort)
	}
	return page
}

// fleetSorted is FleetTopics of a query with an order.
func (s *Cluster) fleetSorted(ctx context.Context, q task.TopicQuery) (page task.TopicPage, reach task.Reach, err error) {
	g, own, err := s.gatherRanks(ctx, &q)
	if err != nil {
		return page, reach, err
	}
	if len(g.answers) == 0 {
		return s.sortedPage(q, own), g.reach, nil
	}
	ranks, matched := s.addRanks(own, g.answers, &q)
	most := q.Limit
	if q.Cursor == "" { // so that a diagnosis and a page of the worst ask the nodes for the same
		most = max(most, task.MaxDiagnosed)
	}
	places := ranking.First(ranks, &q, most+1, s.engine.Now())
	page.Matched = matched
	names := ranking.Names(places[:min(len(places), most)])
	if len(names) == 0 {
		return page, g.reach, nil
	}
	sum, end, reach, err := s.describeAll(ctx, names, g)
	if err != nil {
		return page, reach, err
	}
	end = min(end, q.Limit)
	for _, name := range names[:end] {
		if i, known := sum.at[name]; known {
			page.Topics = append(page.Topics, sum.topics[i])
		}
	}
	if end < len(places) {
		page.NextCursor = places[end-1].Cursor(q.Sort)
	}
	return page, reach, nil
}

// gatherRanks returns the ranks of other nodes that match a query, and this node's. The ranks that
// others have left out are of topics that this node had when it asked them, so these are among its
// own even if they have gone since.
func (s *Cluster) gatherRanks(ctx context.Context, q *task.TopicQuery) (*gathered[ranksReply], []*ranking.Rank, error) {
	if s.NoPeers() {
		return &gathered[ranksReply]{reach: s.OwnReach()}, s.ranksOf(q), nil
	}
	ask := ranksQuery{Search: q.Search, Sort: q.Sort, Patterns: task.PatternsOf(ctx), Bytes: s.share(ranksBytes)}
	key, err := json.Marshal([]any{RanksMethod.Name, ask})
	if err != nil {
		return nil, nil, err
	}
	type both struct {
		of  *gathered[ranksReply]
		own []*ranking.Rank
	}
	v, err := s.Figures.gathered.do(ctx, string(key), func() any {
		own := s.ranksOf(q)
		ask.Known = ranking.Digest(own)
		return both{gatherNow(s.engine.Life.Context, s, GatherWithin, RanksMethod, ask, nil), own}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("the other nodes were asked: %w", err)
	}
	own := s.ranksOf(q) // what has come since is there at once
	has := make(map[string]bool, len(own))
	for _, r := range own {
		has[r.Name] = true
	}
	for _, r := range v.(both).own {
		if !has[r.Name] && !s.isDeleted(r.Name) {
			own = append(own, r)
		}
	}
	return v.(both).of, own, nil
}

// addRanks adds the ranks of other nodes to those of this one, which stay as they are. It returns
// how many topics match, at least.
func (s *Cluster) addRanks(own []*ranking.Rank, answers []nodeAnswer[ranksReply], q *task.TopicQuery) (ranks []*ranking.Rank, matched int) {
	others := make(map[string]*ranking.Rank)
	for i := range answers {
		a := &answers[i].reply
		matched = max(matched, a.Matched)
		for _, r := range a.Ranks { // answers are shared: each is copied
			if sum := others[r.Name]; sum != nil {
				sum.Add(&r)
			} else {
				others[r.Name] = &r
			}
		}
	}
	ranks = make([]*ranking.Rank, 0, len(own)+len(others))
	for _, r := range own {
		if sum := others[r.Name]; sum != nil {
			delete(others, r.Name)
			sum.Paused = r.Paused
			sum.Add(r)
			r = sum
		}
		ranks = append(ranks, r)
	}
	for name, r := range others {
		if q.Allows(name) && (r.Pending+r.Ready+r.Dead > 0 || !s.isDeleted(name)) {
			ranks = append(ranks, r)
		}
	}
	return ranks, max(matched, len(ranks))
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
	reach = d.reach
	reach.Missing = slices.Concat(g.reach.Missing, d.reach.Missing)
	slices.SortFunc(reach.Missing, func(a, b *task.NodeError) int { return strings.Compare(a.Node, b.Node) })
	return sum, end, reach, nil
}

func (s *Cluster) isDeleted(topic string) bool {
	_, deleted := s.engine.DescribeUnmet(topic)
	return deleted
}
