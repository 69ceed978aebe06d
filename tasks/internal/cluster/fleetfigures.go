package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/past"
	"github.com/lapsehq/lapse/tasks/task"
)

// The calls for figures. They read, and no answer is larger than the query allows.
var (
	StatsMethod    = Method[statsQuery, statsReply]{Name: "stats"}
	TopicsMethod   = Method[topicsQuery, topicsReply]{Name: "topics"}
	ForecastMethod = Method[forecastQuery, forecastReply]{Name: "forecast"}
	WavesMethod    = Method[wavesQuery, wavesReply]{Name: "waves"}
)

type (
	// A statsQuery asks for the figures of a node, and of its topics if all of them are at most
	// MaxStatsTopics and fit into so many bytes. With Total it asks for no topics.
	statsQuery struct {
		Bytes int
		Total bool `json:",omitempty"`
	}
	statsReply struct {
		Stats  task.Figures
		Topics []wireTopic `json:",omitempty"`
		Beyond int         `json:",omitempty"` // how many topics there are, if Topics lacks them
		recentReading
	}

	// A topicsQuery asks for a page of topics, of about so many bytes, for the one of that name, or
	// for as many as fit of those names, in that order.
	topicsQuery struct {
		Name     string   `json:",omitempty"`
		Names    []string `json:",omitempty"`
		After    string   `json:",omitempty"` // the page begins behind this name
		Limit    int      `json:",omitempty"`
		Patterns []string `json:",omitempty"` // of the topics that the caller may see; empty: all
		Bytes    int
	}
	topicsReply struct {
		Topics []wireTopic `json:",omitempty"`
		Next   string      `json:",omitempty"` // leads to the next page; empty: there is none
		recentReading
	}

	// A forecastQuery asks for a forecast from a time on, in Unix milliseconds.
	forecastQuery struct {
		Topic    string `json:",omitempty"`
		Window   time.Duration
		Step     time.Duration
		Patterns []string `json:",omitempty"`
		From     int64
	}
	forecastReply struct {
		Counts     []int64
		Ready      int64
		Delivering int64
		Later      int64
		Held       int64 `json:",omitempty"`
		Paused     int64 `json:",omitempty"` // of the ready ones, those of paused topics
		reading
	}

	// A wavesQuery asks for the wave of a span in Unix seconds.
	wavesQuery struct {
		Topic    string   `json:",omitempty"`
		Patterns []string `json:",omitempty"`
		From, To int64
	}
	wavesReply struct {
		Name   string // of the process, in rows of the ledger
		Since  time.Time
		Topics []task.WaveTopic `json:",omitempty"`
		Others task.WaveCounts
		Beyond int  `json:",omitempty"`
		Partly bool `json:",omitempty"` // counts are missing, see task.Wave.Complete
		recentReading
	}
)

const (
	// statsBytes bounds the topics in the answers of all nodes to one query for Stats, and
	// pageBytes those in one page of topics.
	statsBytes = 16 << 20
	pageBytes  = 4 << 20
)

func (s *Cluster) handleStats(_ context.Context, _ string, q statsQuery) (statsReply, error) {
	reads := !s.engine.IsReplayed() // before the figures are read
	st := s.figuresOf(q.Total)
	a := statsReply{recentReading: s.recently(reads), Stats: st.Figures}
	fits := st.Beyond == 0 && !q.Total
	if fits {
		a.Topics, fits = encodeTopics(st.Topics, q.Bytes)
	}
	if !fits {
		a.Topics, a.Beyond = nil, len(st.Topics)+st.Beyond
	}
	return a, nil
}

// encodeTopics encodes topics until they have so many bytes, at least one. It reports whether these
// are all.
func encodeTopics(topics []task.Topic, bytes int) (w []wireTopic, all bool) {
	for i := range topics {
		if len(w) > 0 && bytes <= 0 {
			return w, false
		}
		w = append(w, encodeTopic(&topics[i]))
		bytes -= w[i].size()
	}
	return w, true
}

// FleetStats is tasks.Admin.FleetStats, without Readiness, or FleetTotals.
func (s *Cluster) FleetStats(ctx context.Context, total bool) (task.Stats, task.Reach, error) {
	g, err := gather(ctx, s, StatsMethod, statsQuery{s.share(statsBytes), total})
	if err != nil {
		return task.Stats{}, task.Reach{}, err
	}
	st := s.figuresOf(total)
	beyond := 0 // topics at a node that does not list them
	if st.Beyond > 0 || total {
		beyond = len(st.Topics) + st.Beyond
	}
	if len(g.answers) == 0 && !total {
		return st, g.reach, nil
	}
	sum := sumOf(st.Topics)
	for i := range g.answers {
		a := &g.answers[i].reply
		st.Add(&a.Stats)
		sum.add(s.engine, g.answers[i].node, a.Topics)
		beyond = max(beyond, a.Beyond)
	}
	st.Topics, st.Others, st.Beyond = sum.topics, task.Counts{}, 0
	if total || beyond > 0 || len(sum.topics) > task.MaxStatsTopics {
		st.Topics, st.Others, st.Beyond = nil, st.Total, max(beyond, len(sum.topics))
	}
	engine.SortTopics(st.Topics)
	return st, g.reach, nil
}

// A topicSum adds up topics of several nodes.
type topicSum struct {
	topics []task.Topic
	at     map[string]int // by name
}

// sumOf begins with the topics of this node, which stay as they are.
func sumOf(topics []task.Topic) *topicSum {
	sum := &topicSum{slices.Clone(topics), make(map[string]int, len(topics))}
	for i := range topics {
		sum.at[topics[i].Name] = i
	}
	return sum
}

// add adds topics of another node. The settings are those that this node knows. A topic that was
// deleted here stays out unless it has tasks: the other node may not know yet that it was.
func (t *topicSum) add(e *engine.Engine, node string, topics []wireTopic) {
	for i := range topics {
		name := topics[i].Name
		at, known := t.at[name]
		if !known {
			unmet, deleted := e.DescribeUnmet(name)
			if deleted && !haveTasks(&topics[i].Counts) {
				continue
			}
			at = len(t.topics)
			t.at[name], t.topics = at, append(t.topics, unmet)
		}
		other := topics[i].decode(node)
		t.topics[at].Add(&other)
	}
}

func (s *Cluster) handleTopics(_ context.Context, _ string, q topicsQuery) (a topicsReply, err error) {
	a.recentReading = s.recently(!s.engine.IsReplayed())
	var page task.TopicPage
	switch {
	case q.Name != "":
		page = s.engine.DescribeSome([]string{q.Name})
	case len(q.Names) > 0:
		page = s.engine.DescribeSome(q.Names[:min(len(q.Names), task.MaxTopicPage)])
	default:
		page = s.TopicPage(task.TopicQuery{Limit: min(max(1, q.Limit), task.MaxTopicPage), Cursor: q.After,
			Allows: func(name string) bool { return task.AnyMatches(q.Patterns, name) }})
	}
	var all bool
	a.Next = page.NextCursor
	if a.Topics, all = encodeTopics(page.Topics, q.Bytes); !all {
		a.Next = a.Topics[len(a.Topics)-1].Name
	}
	return a, nil
}

// FleetTopics is tasks.Admin.FleetTopics of a query with a limit. A page by name ends at the
// first name behind which a node may have topics that it has not listed.
func (s *Cluster) FleetTopics(ctx context.Context, q task.TopicQuery) (page task.TopicPage, reach task.Reach, err error) {
	if q.Sort != "" {
		return s.fleetSorted(ctx, q)
	}
	ask := topicsQuery{After: q.Cursor, Limit: q.Limit, Patterns: task.PatternsOf(ctx), Bytes: s.share(pageBytes)}
	g, err := gather(ctx, s, TopicsMethod, ask)
	if err != nil {
		return page, reach, err
	}
	page = s.TopicPage(q)
	if len(g.answers) == 0 {
		return page, g.reach, nil
	}
	sum, end := sumOf(page.Topics), page.NextCursor
	for i := range g.answers {
		a := &g.answers[i].reply
		sum.add(s.engine, g.answers[i].node, a.Topics)
		if a.Next != "" && (end == "" || a.Next < end) {
			end = a.Next
		}
	}
	page.Topics = slices.DeleteFunc(sum.topics, func(t task.Topic) bool {
		return end != "" && t.Name > end || q.Allows != nil && !q.Allows(t.Name)
	})
	engine.SortTopics(page.Topics)
	if len(page.Topics) > q.Limit {
		page.Topics = page.Topics[:q.Limit]
		end = page.Topics[q.Limit-1].Name
	}
	page.NextCursor = end
	return page, g.reach, nil
}

// FleetTopic is tasks.Admin.FleetTopic.
func (s *Cluster) FleetTopic(ctx context.Context, name string) (t task.Topic, reach task.Reach, err error) {
	g, err := gather(ctx, s, TopicsMethod, topicsQuery{Name: name, Bytes: s.share(pageBytes)})
	if err != nil {
		return t, reach, err
	}
	if t, err = s.engine.Topic(name); err != nil && !errors.Is(err, task.ErrNoTopic) {
		return t, g.reach, err // its settings are not known: the defaults would be taken for them
	}
	sum := &topicSum{at: make(map[string]int)}
	if err == nil {
		sum = sumOf([]task.Topic{t})
	}
	for i := range g.answers {
		sum.add(s.engine, g.answers[i].node, g.answers[i].reply.Topics)
	}
	if len(sum.topics) == 0 {
		for _, m := range g.reach.Missing {
			if errors.Is(m, task.ErrReplaying) {
				return t, g.reach, m // it may meet the topic among what it has not read
			}
		}
		return t, g.reach, err
	}
	return sum.topics[0], g.reach, nil
}

func (s *Cluster) handleForecast(ctx context.Context, _ string, q forecastQuery) (forecastReply, error) {
	ctx = task.WithGrant(ctx, &task.Grant{Topics: q.Patterns})
	f, err := s.ownForecast(ctx, task.Outlook{Topic: q.Topic, Window: q.Window, Step: q.Step}, q.From)
	return forecastReply{f.Counts, f.Ready, f.Delivering, f.Later, f.Held, f.ReadyPaused, reading{!f.Complete}}, err
}

// ownForecast is the part of this node, whose Counts are shared: nodes that ask for the same within
// a second have all tasks looked at once. Errors: those of Engine.Forecast.
func (s *Cluster) ownForecast(ctx context.Context, o task.Outlook, from int64) (f task.Forecast, err error) {
	if s.NoPeers() {
		return s.engine.Forecast(ctx, o, from)
	}
	patterns := task.PatternsOf(ctx)
	key, err := json.Marshal([]any{o, from, patterns})
	if err != nil {
		return f, err
	}
	v, err := s.Figures.forecasts.doWanted(ctx, s.engine.Life.Context, string(key), func(ctx context.Context) any {
		f, err := s.engine.Forecast(task.WithGrant(ctx, &task.Grant{Topics: patterns}), o, from)
		return forecastPart{f, err}
	})
	if err != nil {
		return f, err
	}
	return v.(forecastPart).Forecast, v.(forecastPart).err
}

type forecastPart struct {
	task.Forecast
	err error
}

// usedFor has a part that failed not used again.
func (p forecastPart) usedFor() time.Duration {
	if p.err != nil {
		return 0
	}
	return gatherAgain
}

// fleetForecast is FleetForecast without its judgement.
func (s *Cluster) fleetForecast(ctx context.Context, o task.Outlook) (task.Forecast, task.Reach, error) {
	from := s.engine.Now()
	if !s.NoPeers() {
		from -= from % gatherAgain.Milliseconds() // so that callers ask the same
	}
	g, err := gather(ctx, s, ForecastMethod, forecastQuery{o.Topic, o.Window, o.Step, task.PatternsOf(ctx), from})
	if err != nil {
		return task.Forecast{}, task.Reach{}, err
	}
	f, err := s.ownForecast(ctx, o, from)
	if err != nil {
		return f, g.reach, err
	}
	f.Counts = slices.Clone(f.Counts)
	for i := range g.answers {
		a := &g.answers[i].reply
		f.Add(&task.Forecast{Counts: a.Counts, Ready: a.Ready, Delivering: a.Delivering, Later: a.Later, Held: a.Held, ReadyPaused: a.Paused, Complete: !a.Reads})
	}
	f.Complete = f.Complete && len(g.reach.Missing) == 0
	return f, g.reach, nil
}

func (s *Cluster) handleWaves(ctx context.Context, _ string, q wavesQuery) (wavesReply, error) {
	ctx = task.WithGrant(ctx, &task.Grant{Topics: q.Patterns})
	reads := !s.engine.IsReplayed() // before the tasks are counted
	w, err := s.engine.Waves(ctx, task.WaveQuery{From: time.Unix(q.From, 0).UTC(), To: time.Unix(q.To, 0).UTC(), Topic: q.Topic})
	return wavesReply{s.Past.Name(), w.Since, w.Topics, w.Others, w.Beyond, !w.Complete, s.recently(reads)}, err
}

// FleetWaves is tasks.Admin.FleetWaves of a query that was checked.
func (s *Cluster) FleetWaves(ctx context.Context, q task.WaveQuery) (task.Wave, task.Reach, error) {
	g, err := gather(ctx, s, WavesMethod, wavesQuery{q.Topic, task.PatternsOf(ctx), q.From.Unix(), q.To.Unix()})
	if err != nil {
		return task.Wave{}, task.Reach{}, err
	}
	w, err := s.engine.Waves(ctx, q)
	if err != nil {
		return w, g.reach, err
	}
	live := map[string]time.Time{s.Past.Name(): w.Since}
	for i := range g.answers {
		a := &g.answers[i].reply
		live[a.Name] = a.Since
		w.Add(&task.Wave{Since: a.Since, Topics: a.Topics, Others: a.Others, Beyond: a.Beyond, Complete: !a.Partly})
	}
	if err := s.addKept(ctx, q, &w, "", live); err != nil {
		return w, g.reach, err
	}
	w.Sum()
	w.Complete = w.Complete && len(g.reach.Missing) == 0
	if at := s.lastDeath(ctx); at.After(w.Since) {
		w.Since = at
	}
	return w, g.reach, nil
}

// lastDeath is when the last of the nodes that are dead was heard, zero if none is. What only it
// had counted in its last minute is lost.
func (s *Cluster) lastDeath(ctx context.Context) (at time.Time) {
	if s.NoPeers() {
		return time.Time{}
	}
	nodes, _ := s.Fleet.ledger.Peers(ctx) // nodes that are not known are missing from the answers
	for i := range nodes {
		if n := &nodes[i]; !n.Self && !n.Released && absence(n) != nil {
			if heard := s.engine.Config.Clock().Add(-n.Silent); heard.After(at) {
				at = heard
			}
		}
	}
	return at
}

// NodeWaves is tasks.Admin.Waves of a query that was checked.
func (s *Cluster) NodeWaves(ctx context.Context, q task.WaveQuery) (task.Wave, error) {
	w, err := s.engine.Waves(ctx, q)
	if err == nil {
		err = s.addKept(ctx, q, &w, s.Past.Node, map[string]time.Time{s.Past.Name(): w.Since})
	}
	w.Sum()
	return w, err
}

// addKept adds what the ledger keeps of processes that are not live, of all nodes or of one. live
// has since when those have counted whose counts are in the wave. Without the ledger the wave is
// not complete. Errors: why ctx has ended.
func (s *Cluster) addKept(ctx context.Context, q task.WaveQuery, w *task.Wave, node string, live map[string]time.Time) error {
	key, err := json.Marshal([]any{"kept waves", q, task.PatternsOf(ctx), node, live})
	if err != nil {
		return err
	}
	patterns := task.PatternsOf(ctx)
	kept, err := s.Figures.gathered.do(ctx, string(key), func() any {
		ctx, cancel := context.WithTimeout(s.engine.Life.Context, readPastWithin)
		defer cancel()
		return s.Past.Waves(task.WithGrant(ctx, &task.Grant{Topics: patterns}), q, node, live)
	})
	if err == nil {
		kept.(*past.KeptWaves).AddTo(w)
	}
	return err
}
