package engine

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/minutes"
	"github.com/lapsehq/lapse/tasks/internal/ranking"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// topicPageBytes: a page of topics ends behind the one with which it has so many bytes, by an
// estimate.
const topicPageBytes = 4 << 20

// CountsLocked returns the counts of a topic as they are shown.
func (s *Engine) CountsLocked(t *Topic) task.Counts {
	c := t.Counts
	c.Pending, c.Ready, c.Delivering, c.Dead = t.Gauges[task.Pending], t.Gauges[task.Ready], t.Gauges[task.Delivering], t.Gauges[task.Dead]
	c.Retrying, c.Held = t.Retrying, t.Held
	c.Blocked, c.Strays = int64(t.Blocked()), int64(t.Strays.Live)
	if t.kept != nil {
		c.Finished = t.kept.Gauges[task.Dead]
	}
	c.DeadOldest = t.deadSince()
	c.Receivers = int64(t.Reservers.Local)
	recentLocked(s, t, &c)
	t.overdueInto(&c)
	return c
}

// DescribeLocked returns a topic as callers see it.
func (s *Engine) DescribeLocked(t *Topic) task.Topic {
	c := s.CountsLocked(t)
	d := task.Topic{Name: t.Name, Settings: t.Settings, Revision: t.stored.revision, Counts: c}
	d.Settings.Kind = t.Kind()
	switch {
	case t.undeliverable != nil:
		d.Undeliverable = t.undeliverable.Error()
	case t.Lacks() && c.Ready+c.Delivering > 0:
		d.Undeliverable = t.lacking
	}
	if t.lastFail != 0 {
		d.LastError, d.LastFailed = t.lastError, record.FromMillis(t.lastFail)
	}
	d.ConcurrencySet, d.ConcurrencyNow = t.stored.own, max(t.Settings.Concurrency, s.Dispatch.RaisedFor(&t.Line))
	return d
}

// DescribeUnmet returns a topic that this node has not met, as it would be here. It reports whether
// the topic was deleted and has no settings since, as far as this node knows.
func (s *Engine) DescribeUnmet(name string) (t task.Topic, deleted bool) {
	s.mu.Lock()
	if met, ok := s.TopicTable.ByName[name]; ok {
		deleted = met.stored.deleted
	}
	s.unlock()
	e := s.Config.Resolved[name]
	t = task.Topic{Name: name, Settings: e.Set.WithDefaults(), ConcurrencySet: e.Set.Concurrency != 0}
	t.Settings.Kind = cmp.Or(t.Settings.Kind, task.Pull)
	t.ConcurrencyNow = t.Settings.Concurrency
	if e.Undeliverable != nil {
		t.Undeliverable = e.Undeliverable.Error()
	}
	return t, deleted
}

// DescribeSome makes a page of topics, as far as they fit into one. Those that were
// forgotten meanwhile, or are gone, are left out.
func (s *Engine) DescribeSome(names []string) (page task.TopicPage) {
	bytes := 0
	for i := 0; i < len(names); {
		s.mu.Lock()
		for end := min(i+AtOnce, len(names)); i < end && bytes < topicPageBytes; i++ {
			if t, ok := s.TopicTable.ByName[names[i]]; ok && !s.goneLocked(t) {
				page.Topics = append(page.Topics, s.DescribeLocked(t))
				bytes += describedBytes + len(t.Settings.Delivery) + len(t.lastError)
			}
		}
		s.unlock()
		if bytes >= topicPageBytes && i < len(names) {
			page.NextCursor = names[i-1]
			return page
		}
	}
	return page
}

// describedBytes is about how many bytes of an answer a topic takes up, besides Delivery
// and its last error.
const describedBytes = 1280

// SumTopics describes as many topics as are shown, by name, and adds up the counts of the others.
// It visits all topics, and those that are more than that twice: to choose the ones that are shown.
func (s *Engine) SumTopics(most int) (topics []task.Topic, others task.Counts, beyond int) {
	s.mu.Lock()
	many := len(s.TopicTable.ByName) > most
	s.mu.Unlock()
	shown := func(*Topic) bool { return true }
	if many && most > 0 {
		chosen := chooseTopics(s, most)
		shown = func(t *Topic) bool { return chosen[t] }
	}
	s.EachTopic(func(t *Topic) {
		if shown(t) && len(topics) < most {
			topics = append(topics, s.DescribeLocked(t))
			return
		}
		c := s.CountsLocked(t).WithoutRest(t.Settings.Paused)
		others.Add(&c)
		beyond++
	})
	SortTopics(topics)
	return topics, others, beyond
}

// overdueInto enters the overdue tasks of a topic among its counts, which have the others.
func (t *Topic) overdueInto(c *task.Counts) {
	c.OverdueRetrying = t.Missed.Count
	c.Overdue = c.Ready - t.Missed.Ready + t.Missed.Count
	if t.Settings.Paused {
		c.OverduePaused = c.Overdue
	}
	c.OverdueOldest = c.ReadyOldest
	if due, ok := t.Missed.Oldest(); ok {
		if at := record.FromMillis(due); c.OverdueOldest.IsZero() || at.Before(c.OverdueOldest) {
			c.OverdueOldest = at
		}
	}
}

// oldestReady is OldestReady with the strays.
func (t *Topic) oldestReady(stale func(value uint64) bool) (int64, bool) {
	oldest, ok := t.OldestReady(staleLooks, stale)
	if t.Strays.Live > 0 && (!ok || t.oldestStray < oldest) {
		return t.oldestStray, true
	}
	return oldest, ok
}

// oldestOverdue returns the earliest deadline of the overdue tasks of a topic, in Unix
// milliseconds; 0 if there is none.
func (t *Topic) oldestOverdue(stale func(value uint64) bool) int64 {
	oldest, ready := t.oldestReady(stale)
	if due, ok := t.Missed.Oldest(); ok && (!ready || due < oldest) {
		return due
	}
	return oldest
}

// chooseTopics returns so many topics: first those that were set up, then the busiest.
func chooseTopics(s *Engine, limit int) map[*Topic]bool {
	type candidate struct {
		topic *Topic
		set   int
		busy  int64
	}
	best := ranking.Smallest[candidate]{Limit: limit, Compare: func(a, b candidate) int {
		return cmp.Or(b.set-a.set, cmp.Compare(b.busy, a.busy), strings.Compare(a.topic.Name, b.topic.Name))
	}}
	var part []candidate
	s.EachTopicThen(func(t *Topic) {
		c := candidate{topic: t, busy: t.Counts.Scheduled + t.Counts.Delivered}
		for _, n := range t.Gauges {
			c.busy += n
		}
		if s.SetUpLocked(t) {
			c.set = 1
		}
		part = append(part, c)
	}, func() {
		for _, c := range part {
			best.Add(c)
		}
		part = part[:0]
	})
	chosen := make(map[*Topic]bool, limit)
	for _, c := range best.Sorted() {
		chosen[c.topic] = true
	}
	return chosen
}

// Ranks returns those of all topics, in no order.
func (s *Engine) Ranks() []ranking.Rank {
	s.mu.Lock()
	all := make([]ranking.Rank, 0, len(s.TopicTable.ByName))
	s.mu.Unlock()
	s.EachTopic(func(t *Topic) {
		if s.goneLocked(t) {
			return
		}
		r := ranking.Rank{
			Name: t.Name, Paused: t.Settings.Paused, Failed: t.Counts.Failed,
			Pending: t.Gauges[task.Pending], Ready: t.Gauges[task.Ready], Dead: t.Gauges[task.Dead],
		}
		r.Oldest = t.oldestOverdue(s.Store.Stale)
		if t.recent != nil {
			r.FailedRecent = t.recent.Failures(s.Elapsed())
		}
		all = append(all, r)
	})
	return all
}

// staleLooks bounds how many stale items are dropped when the oldest ready task is looked for. Most
// have been trimmed before: many are in front only if the newest tasks were cancelled first.
const staleLooks = 1024

// recentAt returns the minute under way.
func (t *Topic) recentAt(now time.Duration) *minutes.Minute {
	if t.recent == nil {
		t.recent = new(minutes.Recent)
	}
	return t.recent.At(now)
}

// observe counts how late a first attempt begins.
func (k *topicTable) observe(t *Topic, now, late time.Duration) {
	bucket := t.Counts.Lateness.Observe(late)
	t.recentAt(now).Observe(late, bucket)
	k.History.Now().Observe(late, bucket)
}

// recentLocked adds how late the tasks of a topic are now to its figures.
func recentLocked(s *Engine, t *Topic, c *task.Counts) {
	if t.recent != nil && !t.recent.AddTo(c, s.Elapsed()) {
		t.recent = nil
	}
	oldest, ok := t.oldestReady(s.Store.Stale)
	if !ok {
		return
	}
	now := s.Now()
	c.ReadyOldest = record.FromMillis(oldest)
	c.Recent.Max = max(c.Recent.Max, time.Duration(now-oldest)*time.Millisecond)
	var times, older [len(task.LatenessBounds)]int64
	for i, bound := range task.LatenessBounds {
		times[i] = now - bound.Milliseconds()
	}
	younger := t.LiveBefore(times[:], older[:])
	for i, n := range older {
		c.Recent.Counts[i] += younger - n
		younger = n
	}
	c.Recent.Counts[len(older)] += younger
}

// History returns what was counted in the last hour, by the minute.
func (s *Engine) History() task.History {
	wall := s.Config.Clock()
	s.mu.Lock()
	s.TopicTable.History.Turn(wall, s.Elapsed())
	past := s.TopicTable.History
	s.mu.Unlock()
	return past.Describe(wall)
}

// describe makes a Task of a record. Nothing of it points into the record.
func (s *Engine) describe(id string, f *record.Fields, state task.State) task.Task {
	return describeAt(s.Config.Node, id, f, state)
}

func describeAt(node, id string, f *record.Fields, state task.State) task.Task {
	t := task.Task{ID: id, Topic: string(f.Topic), Node: node}
	fillTask(&t, f, state)
	t.Payload = append([]byte(nil), f.Payload...)
	return t
}

// DescribeRecord makes a Task of a record of whatever state, with its attempts. Its Node is empty.
// A task that was being delivered is pending.
func DescribeRecord(id string, f *record.Fields) task.Task {
	state := task.Pending
	if f.State >= record.Dead {
		state = buriedState(f)
	}
	t := describeAt("", id, f, state)
	t.Attempts = attemptsOf(f)
	return t
}

// StoredTopics returns up to n topics whose settings are stored and that are wanted, by name, from
// behind one on. last is the last one that it has looked at; empty: there are no more. unreadable
// counts settings that this version cannot read.
func (s *Engine) StoredTopics(after string, n int, wanted func(topic string) bool) (all []task.ExportedTopic, last string, unreadable int, err error) {
	if !isClosed(s.Reading.settingsRead) {
		return nil, "", 0, errSettingsUnread
	}
	var names []string
	s.EachTopic(func(t *Topic) {
		if t.stored.revision > 0 && t.Name > after && wanted(t.Name) {
			names = append(names, t.Name)
		}
	})
	slices.Sort(names)
	if len(names) > n {
		names, last = names[:n], names[n-1]
	}
	for _, name := range names {
		if e, _, err := s.resolvedOf(name); err == nil {
			all = append(all, task.ExportedTopic{Name: name, Settings: e.Set.Stored()})
		} else {
			unreadable++
		}
	}
	return all, last, unreadable, nil
}

// AttemptStateOf returns what a record has for the outcome of an attempt.
func AttemptStateOf(o task.AttemptOutcome) (state uint8, known bool) {
	i := slices.Index(attemptOutcomes[:], o)
	return uint8(max(i, 0)), i >= 0 && o != ""
}

// DeadStateOf returns the state of the record of a task that is dead for a reason; empty: the
// reason is not known.
func DeadStateOf(r task.Reason) (state uint8, known bool) {
	if r == "" {
		return record.Dead, true
	}
	i := slices.Index(reasons[:], r)
	return uint8(max(i, 0)), i >= 0
}

// FinishedStateOf returns the state of the record of a finished task; empty: its outcome is not
// known.
func FinishedStateOf(o task.Outcome) (state uint8, known bool) {
	if o == "" {
		return record.Finished, true
	}
	i := slices.Index(endsOf[:], o)
	return uint8(max(i, 0)), i >= 0
}

// Stats returns the figures of this node but for those of its topics, and of what it has to do with
// other nodes.
func (s *Engine) Stats() task.Stats {
	st := task.Stats{
		Node: s.Config.Node, At: s.Config.Clock(), Ways: s.Config.ByKind.Stats(),
	}
	st.Took = task.Took{Attempts: make(map[task.Kind]task.Latency, len(s.Dispatch.Took)), Commits: s.Committer.Took()}
	for kind, h := range s.Dispatch.Took {
		st.Took.Attempts[kind] = h.Counts()
	}
	ledger, armed := s.Committer.Stats(), s.Runner.Len()
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Figures = s.Figures
	st.Ledger, st.Armed, st.Backlog = ledger, armed, s.Dispatch.Backlog
	st.Workers, st.Crowd = s.Dispatch.Workers, s.Dispatch.Contenders()
	st.Concurrency = task.DefaultConcurrency
	if s.Dispatch.Raised {
		st.Concurrency = s.Config.SweepMaxConcurrency
	}
	for _, h := range s.Shards.List {
		if h.mine() {
			st.ShardsHeld++
			if h.ShardID != 0 && h.ShardID.Node() != s.NodeNumber {
				st.ShardsAdopted++
			}
		}
	}
	feed := s.Feed.Counts()
	st.Subscriptions, st.EventsLost = feed.Subscriptions-feed.Remote, feed.Lost
	st.Coalescing = s.Misfires.Board.Open()
	s.Spool.describe(&st.Spool)
	st.ArenaBytes, st.ArenaLive = s.Store.Size(), s.Store.Live()
	return st
}

// NodeStatus returns what this node reports to the others with each heartbeat, as far as it does
// not concern them.
func (s *Engine) NodeStatus() task.NodeStatus {
	var all task.Counts
	s.EachTopic(func(t *Topic) {
		all.Add(&t.Counts)
		all.Pending += t.Gauges[task.Pending]
		all.Ready += t.Gauges[task.Ready]
		all.Delivering += t.Gauges[task.Delivering]
		all.Dead += t.Gauges[task.Dead]
	})
	st := task.NodeStatus{
		Pending: all.Pending, Ready: all.Ready, Delivering: all.Delivering, Dead: all.Dead,
		LatenessP50: all.Lateness.Quantile(0.5), LatenessP99: all.Lateness.Quantile(0.99),
		Unsure: s.Unsure(), Catching: !s.IsReplayed(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Room, st.Backlog, st.Draining = s.roomForMoreLocked(), s.Dispatch.Raised, s.Draining
	if s.Spool != nil && s.Cluster.Shares() {
		st.Spooled = s.Spool.shards()
	}
	return st
}

// Readiness tells how far this node is, but for what it expects of the others.
func (s *Engine) Readiness() task.Readiness {
	r := task.Readiness{LedgerOK: true, Unsure: s.Unsure()}
	r.Stalled = s.Committer.Stats().Stall
	if r.Stalled > s.Config.AnswerWithin {
		r.LedgerOK = false
	} else {
		r.Stalled = 0
	}
	if err := s.Condition(); err != nil {
		r.LedgerOK, r.Condition = false, err.Error()
	}
	if reporter, ok := s.Ledger.(recovery.Reporter); ok {
		r.Storage = reporter.Health()
		r.LedgerOK = r.LedgerOK && r.Storage.Err == nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.Reading.Progress
	r.Draining, r.Replayed, r.Elapsed = s.Draining, p.Read, p.Elapsed
	if !p.Done && !p.Began.IsZero() {
		r.Elapsed = time.Since(p.Began) // the last report may be old, or there was none
	}
	if s.Fault != nil {
		r.LedgerOK, r.Condition = false, s.Fault.Error()
	}
	return r
}
