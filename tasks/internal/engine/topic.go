package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/deadindex"
	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/engine/minutes"
	"github.com/lapsehq/lapse/tasks/task"
)

// Topic is the state of one topic at this node. Dispatch decides about its Line. Guarded by
// Engine.mu.
type Topic struct {
	dispatch.Line
	rest *time.Timer // while the line rests
	gate *gate       // of its workers

	Name     string
	Settings task.TopicSettings
	stored   storedTopic
	Handler  task.Deliverer // registered by the program; it takes precedence over the settings
	// Deliverer is the handler, or made by a way from the settings; nil: the topic is pulled, or
	// undeliverable.
	Deliverer task.Deliverer
	// undeliverable says why no receiver can have its tasks at present: this process cannot follow
	// the settings.
	undeliverable error
	receiving
	offloaded []*Delivery // of tasks of other nodes, which the workers deliver after its own

	Pushed    bool                 // its ready tasks are in Engine.Dispatch.Backlog
	numbered  uint64               // how many outcomes there were before it got its number
	Slots     int                  // tasks in memory, in whatever state
	Occupied  bool                 // it has tasks, be it dead ones
	quotas    []*Quota             // in which it counts
	Undecided bool                 // misfired tasks of it wait to be coalesced
	Gauges    [task.Dead + 1]int64 // tasks by the state that is shown
	Retrying  int64                // of the pending ones, those of which an attempt was made
	Missed    minutes.Missed       // see commit.go
	wave      *minutes.Row         // that counted its last task; nil: none has ended
	Held      int64                // of the pending ones, those whose countdown is held
	Oldest    deadindex.Oldest     // the task that has been dead the longest
	keeping
	Counts    task.Counts
	recent    *minutes.Recent // first attempts of the last minutes; nil: there was none
	lastError string
	lastFail  int64 // when the attempt ended that failed with lastError, Unix ms
	asking
}

// An asking is what is known of whether receivers ask for the tasks of a topic, see isUnasked.
type asking struct {
	asked   bool          // by a receiver, since the start
	unasked time.Duration // since when the sweep has seen tasks ready, and no receiver; Elapsed
	told    bool          // that no receiver has asked
}

// A keeping ties a topic to the one that its finished tasks count in, see kept.go.
type keeping struct {
	kept *Topic // has the finished tasks that are kept; nil: there was none
	of   *Topic // of such a one: the topic; nil for any other
}

// A storedTopic describes the stored settings of a topic, as far as they are known.
type storedTopic struct {
	own      bool  // its concurrency was set; a backlog does not raise it
	revision int64 // of the stored settings; 0: none
	seen     int64 // the highest revision met so far, also of settings deleted since
	deleted  bool  // its settings were, and none have been stored since
}

// TopicLocked returns a topic, making it if needed: in one of the reserved places only if
// it may. Error: ErrOverloaded.
func (s *Engine) TopicLocked(name string, reserved bool) (*Topic, error) {
	if t, ok := s.TopicTable.ByName[name]; ok {
		return t, nil
	}
	most := task.MaxTopics
	if !reserved {
		most -= task.ReservedTopics
	}
	if len(s.TopicTable.ByName) >= most && !s.TopicTable.evict() {
		return nil, fmt.Errorf("%w: there are %d topics", task.ErrOverloaded, len(s.TopicTable.ByName))
	}
	return s.AddTopicLocked(name), nil
}

// keptTopicLocked returns the topic of a task that was accepted once: MaxTopics does not
// bound it.
func (s *Engine) keptTopicLocked(name []byte) *Topic {
	if t, ok := s.TopicTable.ByName[string(name)]; ok {
		return t
	}
	return s.AddTopicLocked(string(name))
}

// AddTopicLocked makes a topic that this node has not met.
func (s *Engine) AddTopicLocked(name string) *Topic {
	t := &Topic{Name: name, gate: new(gate)}
	e := s.Config.Resolved[name]
	if !isClosed(s.Reading.settingsRead) {
		e.Undeliverable = errSettingsUnread
	}
	t.take(e)
	s.countBacklogLocked(t)
	s.numberLocked(t)
	t.quotas = s.TopicTable.Quotas.of(name)
	s.TopicTable.ByName[name] = t
	return t
}

// numberLocked gives a topic its place.
func (s *Engine) numberLocked(t *Topic) {
	t.numbered = s.Outcomes.Count
	if k := len(s.TopicTable.vacantNumbers); k > 0 {
		t.Number, s.TopicTable.vacantNumbers = s.TopicTable.vacantNumbers[k-1], s.TopicTable.vacantNumbers[:k-1]
		s.TopicTable.ByNumber[t.Number] = t
		return
	}
	t.Number = uint32(len(s.TopicTable.ByNumber))
	s.TopicTable.ByNumber = append(s.TopicTable.ByNumber, t)
}

// vacate gives the place of a topic free.
func (k *topicTable) vacate(t *Topic) {
	k.ByNumber[t.Number] = &Topic{}
	k.vacantNumbers = append(k.vacantNumbers, t.Number)
}

// evict forgets a topic that no task and no caller needs, if it finds one
// quickly, so that names used once do not use the places of topics up for ever.
func (k *topicTable) evict() bool {
	const looks = 100
	n := 0
	for name, t := range k.ByName {
		if t.idle() {
			delete(k.ByName, name)
			if k.vacate(t); t.kept != nil {
				k.vacate(t.kept)
			}
			return true
		}
		if n++; n == looks {
			break
		}
	}
	return false
}

func (t *Topic) idle() bool {
	return t.Slots == 0 && t.Gauges[task.Dead] == 0 && t.stored.revision == 0 && t.Handler == nil &&
		t.Workers == 0 && t.Reservers.Queue.Len() == 0 && t.Offloads == 0 && (t.kept == nil || t.kept.idle())
}

// ended returns what counts a task of a topic in slot n, which has ended, by its deadline in Unix
// milliseconds. That it has ended now is counted as well.
func (k *topicTable) ended(t *Topic, n uint32, due int64) *minutes.Counts {
	c := k.endedIn(t, n, minutes.MinuteOf(due))
	c.Last = k.History.Ended.Now
	return c
}

// endedIn is ended of a task that has not ended now.
func (k *topicTable) endedIn(t *Topic, n uint32, minute int64) *minutes.Counts {
	if t.wave == nil || t.wave.Minute != minute {
		if t.wave = k.History.Ended.Row(t.Name, minute); t.wave == nil {
			return new(minutes.Counts) // of a minute that is not remembered
		}
	}
	return k.History.Ended.In(t.wave, n)
}

// Topic is tasks.Scheduler.Topic.
func (s *Engine) Topic(name string) (task.Topic, error) {
	s.mu.Lock()
	defer s.unlock()
	t, ok := s.TopicTable.ByName[name]
	switch {
	case !isClosed(s.Reading.settingsRead) && (!ok || t.unread()):
		return task.Topic{}, errSettingsUnread
	case !ok || s.goneLocked(t):
		return task.Topic{}, task.ErrNoTopic
	}
	return s.DescribeLocked(t), nil
}

// Topics is tasks.Admin.Topics.
func (s *Engine) Topics() []task.Topic {
	var all []task.Topic
	s.EachTopic(func(t *Topic) {
		if !s.goneLocked(t) {
			all = append(all, s.DescribeLocked(t))
		}
	})
	SortTopics(all)
	return all
}

// goneLocked reports whether a topic was deleted and has neither tasks nor another reason to be
// shown.
// The node still knows it, for its counts and for receivers that wait for tasks of it.
func (s *Engine) goneLocked(t *Topic) bool {
	return t.stored.deleted && !t.Occupied && !s.SetUpLocked(t)
}

// SetUpLocked reports whether a topic has settings, stored or of the configuration, or a handler.
func (s *Engine) SetUpLocked(t *Topic) bool {
	_, brought := s.Config.Resolved[t.Name]
	return brought || t.stored.revision != 0 || t.Handler != nil
}

// SortTopics sorts topics by their names.
func SortTopics(all []task.Topic) {
	slices.SortFunc(all, func(a, b task.Topic) int { return strings.Compare(a.Name, b.Name) })
}

// EachTopic calls visit for every topic, under the lock: at most AtOnce topics in one critical
// section, with the lock free for others in between. A topic that is made or forgotten
// meanwhile is visited once or not at all; one whose name is forgotten and met again, perhaps
// twice. It is the only way to visit all topics: TestNoLoopOverAllTopics fails for others.
func (s *Engine) EachTopic(visit func(*Topic)) { s.EachTopicThen(visit, func() {}) }

// EachTopicThen is EachTopic with something that is done after each critical section.
func (s *Engine) EachTopicThen(visit func(*Topic), then func()) {
	for from := 0; ; from += AtOnce {
		s.mu.Lock()
		all := s.TopicTable.ByNumber
		part := all[min(from, len(all)):min(from+AtOnce, len(all))]
		for _, t := range part {
			if t.Name != "" && t.of == nil { // else its place is vacant, or has finished tasks
				visit(t)
			}
		}
		s.unlock()
		then()
		if len(part) < AtOnce {
			return
		}
		runtime.Gosched() // who waits for the lock gets it before the next section
	}
}

// TopicNames returns the names of all topics, in no order.
func (s *Engine) TopicNames() (names []string) {
	s.EachTopic(func(t *Topic) { names = append(names, t.Name) })
	return names
}

// take gives a topic other resolved settings.
func (t *Topic) take(e task.Resolved) {
	t.Settings, t.stored.own = e.Set.WithDefaults(), e.Set.Concurrency != 0
	t.Deliverer, t.receiver, t.undeliverable = e.By, e.Receiver, e.Undeliverable
	if t.Handler != nil && !t.unread() {
		t.Deliverer, t.receiver, t.undeliverable = t.Handler, "", nil
	}
	_, t.targeter = t.Deliverer.(task.Targeter)
	t.Serve(dispatch.Policy{
		Stopped: t.Stopped(), Pulled: t.Pulled(), Delivered: t.Deliverer != nil, Batches: takesBatches(t.Deliverer),
		Concurrency: t.Settings.Concurrency, Fixed: t.stored.own, Weight: t.Settings.Weight,
	}, t.Settings.Rate, time.Now)
	if n := t.Settings.ConcurrencyPerGroup; t.Groups != nil {
		t.Groups.SetLimit(n)
	} else if n > 0 {
		t.Groups = dispatch.NewGroups(n)
	}
	if t.rest != nil {
		t.rest.Stop()
		t.rest = nil
	}
	t.received()
}

// applyLocked gives a topic other resolved settings; revision 0 means that no caller has stored its
// settings. Deliveries under way keep the settings with which they began.
func (s *Engine) applyLocked(t *Topic, e task.Resolved, revision int64) {
	pulled, spread, unfit := t.Pulled(), t.Settings.Spread, t.undeliverable != nil
	t.take(e)
	t.setRevision(revision)
	t.stored.seen = max(t.stored.seen, revision)
	if t.AsyncSettle { // of the deliverer before; this one may be another
		t.AsyncSettle = false
		s.freeLocked(0, t.Busy)
	}
	// While a topic is undeliverable its tasks keep their places: its window may not be known.
	if t.Slots > 0 && t.undeliverable == nil && (t.Settings.Spread != spread || unfit || t.Undecided) {
		s.misfirePassLocked(t)
	}
	s.countBacklogLocked(t)
	s.returnStraysLocked(t, t.Strays.Count)
	s.reviewGroupsLocked(t)
	if pulled && !t.Pulled() {
		s.carryOutLocked(s.Dispatch.WakeReceivers(&t.Line))
	}
	s.WakeLocked(t)
}

// setRevision notes the revision of the settings that a topic has now.
func (t *Topic) setRevision(revision int64) {
	t.stored.deleted = revision == 0 && (t.stored.deleted || t.stored.revision != 0)
	t.stored.revision = revision
}

// resolved returns the resolved settings of a topic, to change some of it.
func (t *Topic) resolved() task.Resolved {
	return task.Resolved{Set: t.explicit(), By: t.Deliverer, Receiver: t.receiver, Undeliverable: t.undeliverable}
}

// explicit returns the settings of the topic without the default of Concurrency.
func (t *Topic) explicit() task.TopicSettings {
	set := t.Settings
	if !t.stored.own {
		set.Concurrency = 0
	}
	return set
}

// Kind is how a topic's tasks are delivered.
func (t *Topic) Kind() task.Kind {
	switch {
	case t.Handler != nil:
		return task.Handler
	case t.Deliverer != nil || t.undeliverable != nil && t.Settings.Kind != "":
		return t.Settings.Kind
	}
	return task.Pull
}

// Pulled reports whether receivers ask for the topic's tasks.
func (t *Topic) Pulled() bool { return t.Deliverer == nil && t.undeliverable == nil }

// unknownSettings reports whether the topic's settings are not known, or cannot be read.
func (t *Topic) unknownSettings() bool {
	return t.unread() || errors.Is(t.undeliverable, errIllegibleSettings)
}

// unread reports whether the topic's settings are not known yet, see loadSettings.
func (t *Topic) unread() bool { return errors.Is(t.undeliverable, errSettingsUnread) }

// Stopped reports whether no receiver may have the topic's tasks.
func (t *Topic) Stopped() bool { return t.Settings.Paused || t.undeliverable != nil }

// deliverableBy returns nil if settings may choose a way of delivery in this process, and otherwise
// an ErrInvalid.
func (t *Topic) deliverableBy(k task.Kind) error {
	var problem string
	switch {
	case k == "":
	case t.Handler != nil && k != task.Handler:
		problem = "must be handler: this process has one for the topic"
	case t.Handler == nil && k == task.Handler:
		problem = "must be pull or another way of delivery: this process has no handler for the topic"
	}
	if problem == "" {
		return nil
	}
	return task.Invalid("delivery.kind", problem)
}

// LearnTopic asks for the settings of one topic, if they are not known. After that they are, or
// there is an error, a kind of ErrReplaying.
func (s *Engine) LearnTopic(ctx context.Context, name string) error {
	if isClosed(s.Reading.settingsRead) || !task.ValidName(name) {
		return nil
	}
	settings, ok := s.Ledger.(recovery.Settings)
	s.mu.Lock()
	t, met := s.TopicTable.ByName[name]
	known := met && !t.unread()
	s.mu.Unlock()
	if known || !ok {
		return nil
	}
	value, revision, err := settings.Setting(ctx, task.SettingPrefix+name)
	if err != nil {
		return fmt.Errorf("%w: %w", errSettingsUnread, err)
	}
	if revision != 0 {
		s.takeSetting(name, storedSetting{value, revision})
		return nil
	}
	s.mu.Lock()
	defer s.unlock()
	if t := s.keptTopicLocked([]byte(name)); t.unread() {
		s.applyLocked(t, s.Config.Resolved[name], 0)
	}
	return nil
}

// Deliver is tasks.Scheduler.Deliver.
func (s *Engine) Deliver(topic string, d task.Deliverer) error {
	if !task.ValidName(topic) {
		return task.Invalid("topic", task.NameProblem)
	}
	ctx, cancel := s.Within(s.Life.Context)
	defer cancel()
	_ = s.LearnTopic(ctx, topic) // or else the handler goes before what the settings choose
	s.mu.Lock()
	defer s.unlock()
	if s.Ended {
		return task.ErrClosed
	}
	t, err := s.TopicLocked(topic, true)
	if err != nil {
		return err
	}
	if t.Deliverer != nil || t.Handler != nil {
		return task.ErrHandled
	}
	t.Handler = d
	s.applyLocked(t, task.Resolved{Set: t.explicit(), Undeliverable: t.undeliverable}, t.stored.revision)
	return nil
}
