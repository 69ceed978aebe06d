package cluster

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/portable"
	"github.com/lapsehq/lapse/tasks/internal/ranking"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A search reads the passes of an export part by part, and has what it finds. Its cursor says how
// far it has come in an order that no change of a task and no move of a shard changes. Unlike an
// export it goes on without a node that is missing, and says so; a shard that changes hands it
// waits for a while.

// SearchMethod has a node read its part of a search. It counts as a survey.
var SearchMethod = Method[searchQuery, searchReply]{Name: "search"}

type (
	searchQuery struct {
		portable.Query
		Within time.Duration
	}
	searchReply struct {
		Coverage
		portable.Part
		reading
		Waited bool `json:",omitempty"` // it got no turn in time, and has read nothing
	}
	// A searchedPart is what nodes have read together.
	searchedPart struct {
		portable.Part
		reach  task.Reach
		waited bool // one of them got no turn, and so all of them get nowhere
		open   bool // a shard changed hands, and its node is missing
	}
)

func (s *Cluster) handleSearch(ctx context.Context, _ string, q searchQuery) (searchReply, error) {
	left, end, err := s.turn(ctx, q.Within)
	if end == nil {
		return searchReply{Part: portable.Part{Last: &q.From}, Waited: true}, err
	}
	defer end()
	q.Within = left
	return s.searchLocal(ctx, q)
}

// searchLocal reads a part of the tasks of this node. It is its turn.
func (s *Cluster) searchLocal(ctx context.Context, q searchQuery) (a searchReply, err error) {
	a.Reads = !s.engine.IsReplayed()
	ctx, cancel := context.WithTimeout(ctx, q.Within+surveySlack)
	defer cancel()
	deadline, _ := ctx.Deadline()
	until := time.Now().Add(min(q.Within, time.Until(deadline)*3/4))
	if s.Fleet == nil {
		a.Part, _, err = portable.ReadUntil(ctx, s.engine, &q.Query, until)
		return a, err
	}
	var shards []int
	st, err := s.Covers(ctx, &a.Coverage, func(ctx context.Context) (err error) {
		a.Part, shards, err = portable.ReadUntil(ctx, s.engine, &q.Query, until)
		return err
	})
	if err != nil {
		return a, err
	}
	a.Items = inSnapshot(a.Items, shards, st)
	return a, nil
}

// A searchCursor is how far a search has come.
type searchCursor struct {
	Version int    `json:"v"`
	Text    string `json:"q"`
	portable.Way
	Seen    int  `json:"n,omitempty"` // dead and finished tasks that were looked at
	Partial bool `json:"x,omitempty"` // something was missing
	Stalls  int  `json:"w,omitempty"` // for how many parts a shard has not come to rest
	Round   int  `json:"r,omitempty"` // how often the search has begun before
}

const (
	searchVersion = 1
	// searchStalls is for how many parts a search waits for a shard that changes hands.
	searchStalls = 3
	// searchRounds bounds how often a search begins, if shards change hands while it goes on: then
	// it is not known which dead tasks were requeued.
	searchRounds = 3
	// searchPause is after which time a search looks again for such a shard.
	searchPause = 50 * time.Millisecond
)

func decodeSearchCursor(text, of string) (c searchCursor, ok bool) {
	if text == "" {
		return searchCursor{Version: searchVersion, Text: of, Way: portable.Way{Pass: portable.InMemory}}, true
	}
	if len(text) > MaxExportCursor || strings.ContainsAny(text, "\r\n") {
		return c, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	known := c.Version == searchVersion && c.Pass >= portable.InMemory && c.Pass <= portable.Requeued && c.Seen >= 0
	if c.Since == nil {
		c.Since = store.Marks{}
	}
	return c, err == nil && known && c.Text == of
}

func (c *searchCursor) encode() string {
	text, err := json.Marshal(c)
	if err != nil {
		return "" // it consists of texts and numbers
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// Search reads a part of a search of this node alone, or of all nodes. The query was checked.
// Errors: as of tasks.Admin.FleetSearch.
func (s *Cluster) Search(ctx context.Context, q task.SearchQuery, all bool) (f task.Found, reach task.Reach, err error) {
	c, ok := decodeSearchCursor(q.Cursor, q.Text)
	if !ok {
		return f, reach, task.Invalid("cursor", "must be the cursor of the part before, of the same q")
	}
	ask := searchQuery{Within: q.Within, Query: portable.Query{
		Pass: c.Pass, From: c.From, Since: c.Since, Grant: task.PatternsOf(ctx), Text: q.Text, Bytes: task.MaxPageBytes, Items: q.Limit,
	}}
	if all {
		ask.Bytes = s.share(ask.Bytes)
	}
	if c.Pass == portable.Requeued { // its parts cannot be cut
		ask.Items = s.share(ask.Items)
	}
	var topicsFailed error
	var topics sync.WaitGroup
	if q.Cursor == "" {
		topics.Go(func() { f.Topics, topicsFailed = s.topicsNamed(ctx, &q, all) })
	}
	part, err := s.searchParts(ctx, &ask, all)
	topics.Wait()
	if err = errors.Join(err, topicsFailed); err != nil {
		return task.Found{}, task.Reach{}, err
	}
	if len(part.Items) > q.Limit && c.Pass != portable.Requeued {
		part.Items = part.Items[:q.Limit]
		part.Last = &part.Items[q.Limit-1].Position
	}
	for i := range part.Items {
		f.AddTask(q.Text, part.Items[i].Task)
	}
	f.Sort()
	f.Of, f.LookedAt = part.Live+part.Buried, c.looked(&part.Part)
	more, whole := true, len(part.reach.Missing) == 0
	switch {
	case part.waited: // it goes on from where it was
	case part.open && !c.Partial && c.Stalls < searchStalls:
		c.Stalls++
	default:
		more = c.advance(&part.Part, whole)
	}
	if f.Complete = !c.Partial && whole; more {
		f.Cursor = c.encode()
	}
	return f, part.reach, nil
}

// advance moves behind a part, and reports whether the search goes on. What was requeued while the
// log of that was read has been found before.
func (c *searchCursor) advance(part *portable.Part, whole bool) (more bool) {
	c.Stalls, c.Partial = 0, c.Partial || !whole || part.Unreadable > 0
	last := c.Pass == portable.Requeued
	if part.Forgotten && last && !c.Partial {
		if c.Round++; c.Round < searchRounds {
			c.Way, c.Seen = portable.Way{Pass: portable.InMemory}, 0
			return true
		}
		c.Partial = true
	}
	return c.Advance(part) && (!last || part.Unread || part.Last != nil)
}

// looked returns at how many tasks the search has looked, about: those in memory come in the order
// of the hashes of their ids, which are spread evenly.
func (c *searchCursor) looked(part *portable.Part) int {
	switch {
	case c.Pass == portable.InMemory && part.Last != nil:
		return int(float64(part.Live) * (float64(part.Last.Place) / math.MaxUint64))
	case c.Pass == portable.InMemory:
		return part.Live
	case c.Pass == portable.Buried && part.Last != nil:
		c.Seen += part.Looked
		return part.Live + min(c.Seen, part.Buried)
	}
	return part.Live + part.Buried
}

// searchParts puts the parts of all nodes, or that of this one, together. While a shard changes
// hands it asks again, as long as the query allows.
func (s *Cluster) searchParts(ctx context.Context, q *searchQuery, all bool) (searchedPart, error) {
	until := time.Now().Add(q.Within)
	for {
		part, err := s.searchOnce(ctx, *q, all)
		if q.Within = time.Until(until) - searchPause; err != nil || !part.open || q.Within < task.MinWithin {
			return part, err
		}
		select {
		case <-time.After(searchPause):
		case <-ctx.Done():
			return part, context.Cause(ctx)
		}
	}
}

// searchOnce asks others once it is the turn of this node, which ends when it has read its own
// part: it waits for the turns of others without one.
func (s *Cluster) searchOnce(ctx context.Context, q searchQuery, all bool) (sum searchedPart, err error) {
	left, end, err := s.turn(ctx, q.Within)
	if end == nil {
		return searchedPart{Part: portable.Part{Last: &q.From}, reach: s.OwnReach(), waited: true}, err
	}
	q.Within = left
	// Parts are not shared among callers: one that was read before a search began may lack what was
	// there when it did.
	g := &gathered[searchReply]{reach: s.OwnReach()}
	var own searchReply
	var ownFailed error
	var here sync.WaitGroup
	here.Go(func() {
		defer end()
		own, ownFailed = s.searchLocal(ctx, q)
	})
	if all && !s.NoPeers() {
		g = gatherNow(ctx, s, max(GatherWithin, q.Within+surveySlack), SearchMethod, q, nil)
	}
	here.Wait()
	switch {
	case ctx.Err() != nil:
		return sum, context.Cause(ctx)
	case errors.Is(ownFailed, task.ErrClosed):
		return sum, ownFailed
	case ownFailed != nil:
		miss(&g.reach, &task.NodeError{Node: s.NodeName(), Err: ownFailed})
	default:
		g.answers = append(g.answers, nodeAnswer[searchReply]{s.NodeName(), own})
	}
	sum.reach, sum.Marks = g.reach, store.Marks{}
	covered := make(map[recovery.ShardID]bool)
	for i := range g.answers {
		a := &g.answers[i].reply
		sum.Add(&a.Part)
		sum.Unread, sum.waited = sum.Unread || a.Unread, sum.waited || a.Waited
		if len(a.Covered) > 0 || s.Fleet == nil {
			sum.AddMarks(&a.Part)
		}
		for _, shardID := range a.Covered {
			covered[shardID] = true
		}
	}
	for i := range g.answers { // those that are at the end of the part
		if a := &g.answers[i].reply; sum.Last != nil && a.Last != nil && *a.Last == *sum.Last {
			sum.Looked += a.Looked
		}
	}
	sum.Cut()
	for _, m := range sum.reach.Missing {
		sum.open = sum.open || passing(m.Err) && !silent(m.Err)
	}
	if all && !sum.waited && len(sum.reach.Missing) == 0 {
		if hole := s.hole(ctx, covered); hole != nil {
			sum.open = passing(hole.Err)
			miss(&sum.reach, hole)
		}
	}
	return sum, nil
}

// miss adds a node that is missing to a Reach.
func miss(r *task.Reach, m *task.NodeError) {
	r.Nodes = slices.DeleteFunc(r.Nodes, func(name string) bool { return name == m.Node })
	r.Missing = append(slices.DeleteFunc(r.Missing, func(o *task.NodeError) bool { return o.Node == m.Node }), m)
}

// errChangesHands is why the part of a node is not whole.
var errChangesHands = task.KindOf(errNotMine, "a shard changes hands")

// hole returns the node that has a shard which no answer covers, nil if there is none.
func (s *Cluster) hole(ctx context.Context, covered map[recovery.ShardID]bool) *task.NodeError {
	if s.NoPeers() {
		if !s.HasAll() {
			return &task.NodeError{Node: s.NodeName(), Err: errSpoolMissing}
		}
		return nil
	}
	shardIDs, err := s.Fleet.ledger.ShardIDs(ctx)
	if err != nil {
		return &task.NodeError{Err: task.KindOf(err, "the shards are not known")}
	}
	left, err := s.Fleet.ledger.Holders(ctx, slices.DeleteFunc(slices.Clone(shardIDs), func(id recovery.ShardID) bool { return covered[id] }))
	if err == nil {
		err = uncovered(left)
	}
	var at *task.NodeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &at):
		return &task.NodeError{Node: at.Node, Err: errChangesHands}
	}
	return &task.NodeError{Err: task.KindOf(err, "the shards are not known")}
}

// topicsNamed returns the topics that have a text in their names, those that match best first.
// Errors: why ctx has ended.
func (s *Cluster) topicsNamed(ctx context.Context, q *task.SearchQuery, all bool) (names []task.FoundName, err error) {
	granted := task.PatternsOf(ctx)
	asked := task.TopicQuery{Search: q.Text, Sort: task.SortName, Allows: func(name string) bool { return task.AnyMatches(granted, name) }}
	own := s.ranksOf(&asked)
	var others []nodeAnswer[ranksReply]
	if all {
		g, err := gather(ctx, s, RanksMethod, ranksQuery{asked.Search, asked.Sort, granted, s.share(ranksBytes), ranking.Digest(own)})
		if err != nil {
			return nil, err
		}
		others = g.answers
	}
	ranks, _ := s.addRanks(own, others, &asked)
	for _, name := range ranking.Names(ranking.First(ranks, &asked, len(ranks), s.engine.Now())) {
		names = append(names, task.FoundName{Match: task.MatchOf(q.Text, name), Name: name})
	}
	f := task.Found{Topics: names}
	f.Sort()
	return f.Topics[:min(len(names), q.Limit)], nil
}
