package tasks

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// topic is what a scheduler knows of one topic. Guarded by Scheduler.mu.
type topic struct {
	name          string
	number        uint32 // position in Scheduler.byNumber
	settings      TopicSettings
	own           bool      // its concurrency was set; a backlog does not raise it
	revision      int64     // of the stored settings; 0: none
	seen          int64     // the highest revision met so far, also of settings deleted since
	deleted       bool      // its settings were, and none have been stored since
	handler       Deliverer // what the program has registered; it goes before what the settings say
	deliverer     Deliverer // the handler, or what a way has made of the settings; nil: the topic is pulled, or undeliverable
	undeliverable error     // why no receiver can have its tasks at present: this process cannot do what its settings say
	queue         queue
	reservers     reservers
	pins          int             // rooms of the cluster that know the topic, so that it must not be forgotten
	workers       int             // places that its workers have: deliveries that they may make at once
	busy          int             // of those, how many are taken by a delivery
	offloaded     []*delivery     // of tasks of other nodes, which the workers deliver after its own
	offloads      int             // nodes whose tasks of this topic are taken when there is room
	asyncSettle   bool            // its deliverer leaves deliveries to their receipts
	contending    int             // 1 + its position in Scheduler.contenders; 0: it is not there
	passes        float64         // deliveries for its weight, while places were scarce
	limiter       *rate.Limiter   // of its rate; nil: no bound
	rest          *time.Timer     // until the limiter lets another delivery begin
	held          bool            // MaxInFlight keeps it waiting; it is in Scheduler.held
	pushed        bool            // its ready tasks are in Scheduler.backlog
	slots         int             // tasks in memory, in whatever state
	occupied      bool            // it has tasks, be it dead ones
	quotas        []*quota        // in which it counts
	undecided     bool            // misfired tasks of it wait to be coalesced
	gauges        [Dead + 1]int64 // tasks by the state that is shown
	oldest        oldestDead      // who has been dead the longest
	counts        Counts
}

// topicLocked returns a topic, making it if needed: in one of the reserved places only if
// it may. Error: ErrOverloaded.
func (s *engine) topicLocked(name string, reserved bool) (*topic, error) {
	if t, ok := s.topics[name]; ok {
		return t, nil
	}
	most := MaxTopics
	if !reserved {
		most -= ReservedTopics
	}
	if len(s.topics) >= most && !s.evictTopic() {
		return nil, fmt.Errorf("%w: there are %d topics", ErrOverloaded, len(s.topics))
	}
	return s.addTopic(name), nil
}

// keptTopic returns the topic of a task that was accepted once: MaxTopics does not
// bound it.
func (s *engine) keptTopic(name []byte) *topic {
	if t, ok := s.topics[string(name)]; ok {
		return t
	}
	return s.addTopic(string(name))
}

func (s *engine) addTopic(name string) *topic {
	t := &topic{name: name, number: uint32(len(s.byNumber))}
	e := s.cfg.Resolved[name]
	if !isClosed(s.settingsRead) {
		e.Undeliverable = errSettingsUnread
	}
	t.take(e)
	s.countBacklogLocked(t)
	if k := len(s.vacantNumbers); k > 0 {
		t.number, s.vacantNumbers = s.vacantNumbers[k-1], s.vacantNumbers[:k-1]
		s.byNumber[t.number] = t
	} else {
		s.byNumber = append(s.byNumber, t)
	}
	t.quotas = s.quotas.of(name)
	s.topics[name] = t
	return t
}

// evictTopic forgets a topic that no task and no caller needs, if it finds one
// quickly, so that names used once do not use the places of topics up for ever.
func (s *engine) evictTopic() bool {
	const looks = 100
	n := 0
	for name, t := range s.topics {
		if t.idle() {
			delete(s.topics, name)
			s.byNumber[t.number] = &topic{}
			s.vacantNumbers = append(s.vacantNumbers, t.number)
			return true
		}
		if n++; n == looks {
			break
		}
	}
	return false
}

func (t *topic) idle() bool {
	return t.slots == 0 && t.gauges[Dead] == 0 && t.revision == 0 && t.handler == nil &&
		t.workers == 0 && t.reservers.queue.Len() == 0 && t.pins == 0 && t.offloads == 0
}

// Topic is tasks.Scheduler.Topic.
func (s *engine) Topic(name string) (Topic, error) {
	s.mu.Lock()
	defer s.unlock()
	t, ok := s.topics[name]
	switch {
	case !isClosed(s.settingsRead) && (!ok || t.unread()):
		return Topic{}, errSettingsUnread
	case !ok || s.gone(t):
		return Topic{}, ErrNoTopic
	}
	return s.describeLocked(t), nil
}

// Topics is tasks.Scheduler.Topics.
func (s *engine) Topics() []Topic {
	var all []Topic
	s.eachTopic(func(t *topic) {
		if !s.gone(t) {
			all = append(all, s.describeLocked(t))
		}
	})
	sortTopics(all)
	return all
}

// gone reports whether a topic was deleted and has neither tasks nor another reason to be shown.
// The node still knows it, for its counts and for receivers that wait for tasks of it.
func (s *engine) gone(t *topic) bool { return t.deleted && !t.occupied && !s.setUp(t) }

// setUp reports whether a topic has settings, stored or of the configuration, or a handler.
func (s *engine) setUp(t *topic) bool {
	_, brought := s.cfg.Resolved[t.name]
	return brought || t.revision != 0 || t.handler != nil
}

// countsLocked returns the counts of a topic as they are shown.
func (t *topic) countsLocked() Counts {
	c := t.counts
	c.Pending, c.Ready, c.Delivering, c.Dead = t.gauges[Pending], t.gauges[Ready], t.gauges[Delivering], t.gauges[Dead]
	c.DeadOldest = t.deadSince()
	return c
}

func (s *engine) describeLocked(t *topic) Topic {
	c := t.countsLocked()
	d := Topic{Name: t.name, Settings: t.settings, Revision: t.revision, Counts: c}
	d.Settings.Kind = t.kind()
	if t.undeliverable != nil {
		d.Undeliverable = t.undeliverable.Error()
	}
	d.ConcurrencySet, d.ConcurrencyNow = t.own, max(t.settings.Concurrency, s.raisedLocked(t))
	return d
}

func sortTopics(all []Topic) {
	slices.SortFunc(all, func(a, b Topic) int { return strings.Compare(a.Name, b.Name) })
}

// eachTopic calls visit for every topic, under the lock: at most atOnce topics in one critical
// section, with the lock free for others in between. A topic that is made or forgotten
// meanwhile is visited once or not at all; one whose name is forgotten and met again, perhaps
// twice. It is the only way to visit all topics: TestNoLoopOverAllTopics fails for others.
func (s *engine) eachTopic(visit func(*topic)) { s.eachTopicThen(visit, func() {}) }

// eachTopicThen is eachTopic with something that is done after each critical section.
func (s *engine) eachTopicThen(visit func(*topic), then func()) {
	for from := 0; ; from += atOnce {
		s.mu.Lock()
		part := s.someTopicsLocked(from)
		for _, t := range part {
			if t.name != "" { // else its place is vacant
				visit(t)
			}
		}
		s.unlock()
		then()
		if len(part) < atOnce {
			return
		}
		runtime.Gosched() // who waits for the lock gets it before the next section
	}
}

// someTopicsLocked returns the topics of one critical section of eachTopic.
func (s *engine) someTopicsLocked(from int) []*topic {
	from = min(from, len(s.byNumber))
	return s.byNumber[from:min(from+atOnce, len(s.byNumber))]
}

const (
	// A page of topics ends behind the one with which it has so many bytes, by an estimate.
	topicPageBytes = 4 << 20
)

// topicNames returns the names of all topics, in no order.
func (s *engine) topicNames() []string {
	s.mu.Lock()
	expected := len(s.topics)
	s.mu.Unlock()
	names := make([]string, 0, expected)
	s.eachTopic(func(t *topic) { names = append(names, t.name) })
	return names
}

// describeSome makes a page of topics, as far as they fit into one. Those that were
// forgotten meanwhile, or are gone, are left out.
func (s *engine) describeSome(names []string) (page TopicPage) {
	bytes := 0
	for i := 0; i < len(names); {
		s.mu.Lock()
		for end := min(i+atOnce, len(names)); i < end && bytes < topicPageBytes; i++ {
			if t, ok := s.topics[names[i]]; ok && !s.gone(t) {
				page.Topics = append(page.Topics, s.describeLocked(t))
				bytes += describedBytes + len(t.settings.Delivery)
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

// describedBytes is about what a topic takes up in an answer, besides Delivery.
const describedBytes = 1 << 10
