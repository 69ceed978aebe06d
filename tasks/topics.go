package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// topic is what a scheduler knows of one topic. Guarded by Scheduler.mu.
type topic struct {
	name      string
	number    uint32 // position in Scheduler.byNumber
	settings  TopicSettings
	revision  int64 // of the stored settings; 0: none
	deliverer Deliverer
	queue     queue
	reservers reservers
	workers   int             // goroutines of work
	busy      int             // of those, how many have a task
	slots     int             // tasks in memory, in whatever state
	gauges    [Dead + 1]int64 // tasks by the state that is shown
	counts    Counts
}

// MaxTopics bounds the topics of a node.
const MaxTopics = 100_000

const settingPrefix = "topic/"

// topicLocked returns a topic, making it if needed. Error: ErrOverloaded.
func (s *Scheduler) topicLocked(name string) (*topic, error) {
	if t, ok := s.topics[name]; ok {
		return t, nil
	}
	if len(s.topics) >= MaxTopics && !s.evictTopic() {
		return nil, fmt.Errorf("%w: there are %d topics", ErrOverloaded, MaxTopics)
	}
	return s.addTopic(name), nil
}

// keptTopic returns the topic of a task that was accepted once: MaxTopics does not
// bound it.
func (s *Scheduler) keptTopic(name []byte) *topic {
	if t, ok := s.topics[string(name)]; ok {
		return t
	}
	return s.addTopic(string(name))
}

func (s *Scheduler) addTopic(name string) *topic {
	if len(s.byNumber) == 0 {
		s.byNumber = append(s.byNumber, &topic{}) // number 0: of slots that have none yet
	}
	t := &topic{name: name, number: uint32(len(s.byNumber)), settings: s.cfg.Topics[name].withDefaults()}
	if k := len(s.vacantNumbers); k > 0 {
		t.number, s.vacantNumbers = s.vacantNumbers[k-1], s.vacantNumbers[:k-1]
		s.byNumber[t.number] = t
	} else {
		s.byNumber = append(s.byNumber, t)
	}
	s.topics[name] = t
	return t
}

// evictTopic forgets a topic that nothing and nobody needs, if it finds one
// quickly, so that names used once do not use the places of topics up for ever.
func (s *Scheduler) evictTopic() bool {
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
	return t.slots == 0 && t.gauges[Dead] == 0 && t.revision == 0 && t.deliverer == nil &&
		t.workers == 0 && t.reservers.queue.Len() == 0
}

// withDefaults fills in what is zero.
func (t TopicSettings) withDefaults() TopicSettings {
	orDefault(&t.Retry.MaxAttempts, 20)
	orDefault(&t.Retry.MinBackoff, time.Second)
	orDefault(&t.Retry.MaxBackoff, max(10*time.Minute, t.Retry.MinBackoff))
	orDefault(&t.Lease, 30*time.Second)
	orDefault(&t.Concurrency, 64)
	return t
}

func orDefault[N int | time.Duration](v *N, def N) {
	if *v == 0 {
		*v = def
	}
}

// Validate reports everything that is out of range, as an *InvalidError.
func (t TopicSettings) Validate() error {
	var f faults
	t = t.withDefaults()
	if t.Kind != "" && t.Kind != Pull && t.Kind != Handler {
		f.add("delivery.kind", "must be pull or handler")
	}
	if t.Retry.MaxAttempts < 1 || t.Retry.MaxAttempts > 1000 {
		f.add("retry.max_attempts", "must be from 1 to 1000")
	}
	if t.Retry.MinBackoff < time.Millisecond || t.Retry.MinBackoff > 24*time.Hour {
		f.add("retry.min_backoff", "must be from 1 ms to 24 h")
	}
	if t.Retry.MaxBackoff < t.Retry.MinBackoff || t.Retry.MaxBackoff > 30*24*time.Hour {
		f.add("retry.max_backoff", "must be from min_backoff to 30 days")
	}
	if t.Lease < MinLease || t.Lease > MaxLease {
		f.add("lease", leaseText)
	}
	if t.Concurrency < 1 || t.Concurrency > 100_000 {
		f.add("concurrency", "must be from 1 to 100000")
	}
	return f.err()
}

// loadTopics reads the stored settings.
func (s *Scheduler) loadTopics(ctx context.Context) error {
	s.addTopicsOf(s.cfg.Topics)
	settings, ok := s.ledger.(recovery.Settings)
	if !ok {
		return nil
	}
	return settings.EachSetting(ctx, settingPrefix, func(name string, value []byte, revision int64) {
		name = strings.TrimPrefix(name, settingPrefix)
		var stored TopicSettings
		if err := json.Unmarshal(value, &stored); err != nil {
			s.cfg.Log.Error("the stored settings of a topic cannot be read; its defaults hold", "topic", name, "error", err)
			return
		}
		if t, err := s.topicLocked(name); err == nil {
			t.settings, t.revision = stored.withDefaults(), revision
		}
	})
}

func (s *Scheduler) addTopicsOf(brought map[string]TopicSettings) {
	for name := range brought {
		_, _ = s.topicLocked(name) // far below MaxTopics
	}
}

// SetTopic replaces a topic's settings; zero fields take their defaults. They hold
// from now on, for tasks that wait already too. ifRevision is the revision that
// the caller has seen, or -1 for any.
//
// Errors: ErrInvalid, ErrRevision, ErrOverloaded, ErrUnavailable, ErrClosed.
func (s *Scheduler) SetTopic(ctx context.Context, name string, t TopicSettings, ifRevision int64) (Topic, error) {
	var f faults
	if !validName(name) {
		f.add("topic", nameProblem)
	}
	if err := errors.Join(f.err(), t.Validate()); err != nil {
		return Topic{}, err
	}
	t = t.withDefaults()
	for {
		s.mu.Lock()
		have, err := s.topicLocked(name)
		switch {
		case s.ended:
			err = ErrClosed
		case err != nil:
		case ifRevision >= 0 && have.revision != ifRevision:
			err = ErrRevision
		default:
			err = have.deliverableBy(t.Kind)
		}
		if err != nil {
			s.unlock()
			return Topic{}, err
		}
		revision := have.revision
		s.unlock()
		stored, err := s.putTopic(ctx, name, revision, &t)
		if errors.Is(err, recovery.ErrConflict) {
			continue // another call was faster: look at the revision again
		}
		if err != nil {
			return Topic{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		s.mu.Lock()
		if stored > have.revision {
			have.settings, have.revision = t, stored
			s.wakeLocked(have)
		}
		described := have.describe()
		s.unlock()
		return described, nil
	}
}

// deliverableBy tells whether this process can deliver the topic's tasks so.
func (t *topic) deliverableBy(k Kind) error {
	if k == "" || k == t.kind() {
		return nil
	}
	problem := "must be pull: this process has no handler for the topic"
	if t.deliverer != nil {
		problem = "must be handler: this process has one for the topic"
	}
	return &InvalidError{Fields: []FieldError{{"delivery.kind", problem}}}
}

func (t *topic) kind() Kind {
	if t.deliverer != nil {
		return Handler
	}
	return Pull
}

func (s *Scheduler) putTopic(ctx context.Context, name string, revision int64, t *TopicSettings) (int64, error) {
	settings, ok := s.ledger.(recovery.Settings)
	if !ok {
		return revision + 1, nil
	}
	var value []byte
	if t != nil {
		var err error
		if value, err = json.Marshal(t); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AnswerWithin)
	defer cancel()
	return settings.PutSetting(ctx, settingPrefix+name, revision, value)
}

// PauseTopic stops the delivery of a topic's tasks, or resumes it. They are
// accepted meanwhile, and wait. Errors: as of SetTopic.
func (s *Scheduler) PauseTopic(ctx context.Context, name string, paused bool) error {
	for {
		s.mu.Lock()
		var t TopicSettings
		var revision int64
		if have, ok := s.topics[name]; ok {
			t, revision = have.settings, have.revision
		}
		s.unlock()
		t.Paused, t.Kind = paused, ""
		if _, err := s.SetTopic(ctx, name, t, revision); !errors.Is(err, ErrRevision) {
			return err
		}
	}
}

// DeleteTopic forgets a topic's settings. Its tasks stay, and the defaults hold
// for them. Errors: ErrNoTopic, ErrUnavailable, ErrClosed.
func (s *Scheduler) DeleteTopic(ctx context.Context, name string) error {
	s.mu.Lock()
	have, ok := s.topics[name]
	if s.ended {
		s.unlock()
		return ErrClosed
	}
	if !ok || have.revision == 0 {
		s.unlock()
		return ErrNoTopic
	}
	revision := have.revision
	s.unlock()
	if _, err := s.putTopic(ctx, name, revision, nil); err != nil {
		if errors.Is(err, recovery.ErrConflict) {
			return ErrRevision
		}
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	s.mu.Lock()
	have.settings, have.revision = s.cfg.Topics[name].withDefaults(), 0
	s.wakeLocked(have)
	s.unlock()
	return nil
}

// Topic returns a topic that has settings, tasks or a handler. Errors: ErrNoTopic.
func (s *Scheduler) Topic(name string) (Topic, error) {
	s.mu.Lock()
	defer s.unlock()
	if t, ok := s.topics[name]; ok {
		return t.describe(), nil
	}
	return Topic{}, ErrNoTopic
}

// Topics returns all topics that this node has met, by name.
func (s *Scheduler) Topics() []Topic {
	s.mu.Lock()
	defer s.unlock()
	all := make([]Topic, 0, len(s.topics))
	for _, t := range s.topics {
		all = append(all, t.describe())
	}
	slices.SortFunc(all, func(a, b Topic) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (t *topic) describe() Topic {
	c := t.counts
	c.Pending, c.Ready, c.Delivering, c.Dead = t.gauges[Pending], t.gauges[Ready], t.gauges[Delivering], t.gauges[Dead]
	d := Topic{Name: t.name, Settings: t.settings, Revision: t.revision, Counts: c}
	d.Settings.Kind = t.kind()
	return d
}
