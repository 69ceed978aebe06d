package engine

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/tasks/task"
)

// Topic is what a node knows of one topic. Guarded by Engine.Mu, its Queue and Reservers as well.
type Topic struct {
	Name          string
	Number        uint32 // position in Engine.TopicTable.ByNumber
	Settings      task.TopicSettings
	stored        storedTopic
	Handler       task.Deliverer // what the program has registered; it goes before what the settings say
	Deliverer     task.Deliverer // the handler, or what a way has made of the settings; nil: the topic is pulled, or undeliverable
	undeliverable error          // why no receiver can have its tasks at present: this process cannot do what its settings say
	Queue         Queue
	Reservers     Reservers
	Pins          int         // rooms of the cluster that know the topic, so that it must not be forgotten
	Workers       int         // places that its workers have: deliveries that they may make at once
	Busy          int         // of those, how many are taken by a delivery
	Offloaded     []*Delivery // of tasks of other nodes, which the workers deliver after its own
	Offloads      int         // nodes whose tasks of this topic are taken when there is room
	AsyncSettle   bool        // its deliverer leaves deliveries to their receipts
	allotment     allotment
	Pushed        bool                 // its ready tasks are in Engine.Dispatch.Backlog
	Slots         int                  // tasks in memory, in whatever state
	Occupied      bool                 // it has tasks, be it dead ones
	quotas        []*Quota             // in which it counts
	Undecided     bool                 // misfired tasks of it wait to be coalesced
	Gauges        [task.Dead + 1]int64 // tasks by the state that is shown
	Oldest        oldestDead           // who has been dead the longest
	Counts        task.Counts
}

// A storedTopic is what is known of the settings that the ledger has of a topic.
type storedTopic struct {
	own      bool  // its concurrency was set; a backlog does not raise it
	revision int64 // of the stored settings; 0: none
	seen     int64 // the highest revision met so far, also of settings deleted since
	deleted  bool  // its settings were, and none have been stored since
}

// An allotment is how many deliveries a topic may begin: its share of scarce places, and its rate.
type allotment struct {
	contending int           // 1 + its position in Dispatch.Contenders; 0: it is not there
	passes     float64       // deliveries for its weight, while places were scarce
	limiter    *rate.Limiter // of its rate; nil: no bound
	rest       *time.Timer   // until the limiter lets another delivery begin
	held       bool          // MaxInFlight keeps it waiting; it is in Dispatch.held
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
	if len(s.TopicTable.ByName) >= most && !s.evictTopic() {
		return nil, fmt.Errorf("%w: there are %d topics", task.ErrOverloaded, len(s.TopicTable.ByName))
	}
	return s.AddTopic(name), nil
}

// keptTopic returns the topic of a task that was accepted once: MaxTopics does not
// bound it.
func (s *Engine) keptTopic(name []byte) *Topic {
	if t, ok := s.TopicTable.ByName[string(name)]; ok {
		return t
	}
	return s.AddTopic(string(name))
}

// AddTopic makes a topic that this node has not met.
func (s *Engine) AddTopic(name string) *Topic {
	t := &Topic{Name: name, Number: uint32(len(s.TopicTable.ByNumber))}
	e := s.Config.Resolved[name]
	if !isClosed(s.Reading.settingsRead) {
		e.Undeliverable = errSettingsUnread
	}
	t.take(e)
	s.countBacklogLocked(t)
	if k := len(s.TopicTable.vacantNumbers); k > 0 {
		t.Number, s.TopicTable.vacantNumbers = s.TopicTable.vacantNumbers[k-1], s.TopicTable.vacantNumbers[:k-1]
		s.TopicTable.ByNumber[t.Number] = t
	} else {
		s.TopicTable.ByNumber = append(s.TopicTable.ByNumber, t)
	}
	t.quotas = s.TopicTable.Quotas.of(name)
	s.TopicTable.ByName[name] = t
	return t
}

// evictTopic forgets a topic that no task and no caller needs, if it finds one
// quickly, so that names used once do not use the places of topics up for ever.
func (s *Engine) evictTopic() bool {
	const looks = 100
	n := 0
	for name, t := range s.TopicTable.ByName {
		if t.idle() {
			delete(s.TopicTable.ByName, name)
			s.TopicTable.ByNumber[t.Number] = &Topic{}
			s.TopicTable.vacantNumbers = append(s.TopicTable.vacantNumbers, t.Number)
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
		t.Workers == 0 && t.Reservers.Queue.Len() == 0 && t.Pins == 0 && t.Offloads == 0
}

// Topic is tasks.Scheduler.Topic.
func (s *Engine) Topic(name string) (task.Topic, error) {
	s.Mu.Lock()
	defer s.Unlock()
	t, ok := s.TopicTable.ByName[name]
	switch {
	case !isClosed(s.Reading.settingsRead) && (!ok || t.unread()):
		return task.Topic{}, errSettingsUnread
	case !ok || s.gone(t):
		return task.Topic{}, task.ErrNoTopic
	}
	return s.DescribeLocked(t), nil
}

// Topics is tasks.Scheduler.Topics.
func (s *Engine) Topics() []task.Topic {
	var all []task.Topic
	s.EachTopic(func(t *Topic) {
		if !s.gone(t) {
			all = append(all, s.DescribeLocked(t))
		}
	})
	SortTopics(all)
	return all
}

// gone reports whether a topic was deleted and has neither tasks nor another reason to be shown.
// The node still knows it, for its counts and for receivers that wait for tasks of it.
func (s *Engine) gone(t *Topic) bool { return t.stored.deleted && !t.Occupied && !s.SetUp(t) }

// SetUp reports whether a topic has settings, stored or of the configuration, or a handler.
func (s *Engine) SetUp(t *Topic) bool {
	_, brought := s.Config.Resolved[t.Name]
	return brought || t.stored.revision != 0 || t.Handler != nil
}

// CountsLocked returns the counts of a topic as they are shown.
func (t *Topic) CountsLocked() task.Counts {
	c := t.Counts
	c.Pending, c.Ready, c.Delivering, c.Dead = t.Gauges[task.Pending], t.Gauges[task.Ready], t.Gauges[task.Delivering], t.Gauges[task.Dead]
	c.DeadOldest = t.deadSince()
	return c
}

// DescribeLocked returns a topic as callers see it.
func (s *Engine) DescribeLocked(t *Topic) task.Topic {
	c := t.CountsLocked()
	d := task.Topic{Name: t.Name, Settings: t.Settings, Revision: t.stored.revision, Counts: c}
	d.Settings.Kind = t.Kind()
	if t.undeliverable != nil {
		d.Undeliverable = t.undeliverable.Error()
	}
	d.ConcurrencySet, d.ConcurrencyNow = t.stored.own, max(t.Settings.Concurrency, s.RaisedLocked(t))
	return d
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
		s.Mu.Lock()
		part := s.someTopicsLocked(from)
		for _, t := range part {
			if t.Name != "" { // else its place is vacant
				visit(t)
			}
		}
		s.Unlock()
		then()
		if len(part) < AtOnce {
			return
		}
		runtime.Gosched() // who waits for the lock gets it before the next section
	}
}

// someTopicsLocked returns the topics of one critical section of EachTopic.
func (s *Engine) someTopicsLocked(from int) []*Topic {
	from = min(from, len(s.TopicTable.ByNumber))
	return s.TopicTable.ByNumber[from:min(from+AtOnce, len(s.TopicTable.ByNumber))]
}

const (
	// A page of topics ends behind the one with which it has so many bytes, by an estimate.
	topicPageBytes = 4 << 20
)

// TopicNames returns the names of all topics, in no order.
func (s *Engine) TopicNames() []string {
	s.Mu.Lock()
	expected := len(s.TopicTable.ByName)
	s.Mu.Unlock()
	names := make([]string, 0, expected)
	s.EachTopic(func(t *Topic) { names = append(names, t.Name) })
	return names
}

// DescribeSome makes a page of topics, as far as they fit into one. Those that were
// forgotten meanwhile, or are gone, are left out.
func (s *Engine) DescribeSome(names []string) (page task.TopicPage) {
	bytes := 0
	for i := 0; i < len(names); {
		s.Mu.Lock()
		for end := min(i+AtOnce, len(names)); i < end && bytes < topicPageBytes; i++ {
			if t, ok := s.TopicTable.ByName[names[i]]; ok && !s.gone(t) {
				page.Topics = append(page.Topics, s.DescribeLocked(t))
				bytes += describedBytes + len(t.Settings.Delivery)
			}
		}
		s.Unlock()
		if bytes >= topicPageBytes && i < len(names) {
			page.NextCursor = names[i-1]
			return page
		}
	}
	return page
}

// describedBytes is about what a topic takes up in an answer, besides Delivery.
const describedBytes = 1 << 10
