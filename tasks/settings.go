package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

const (
	settingPrefix      = "topic/"
	defaultConcurrency = 64
)

// withDefaults fills in what is zero.
func (t TopicSettings) withDefaults() TopicSettings {
	orDefault(&t.Retry.MaxAttempts, 20)
	orDefault(&t.Retry.MinBackoff, time.Second)
	orDefault(&t.Retry.MaxBackoff, max(10*time.Minute, t.Retry.MinBackoff))
	orDefault(&t.Lease, 30*time.Second)
	orDefault(&t.Concurrency, defaultConcurrency)
	return t
}

// stored is what the ledger keeps: with the defaults that hold today, except for a
// Concurrency that nobody has set, so that a backlog may raise it. Records of before
// have 64 there whether it was set or not; they count as set and are never raised.
func (t TopicSettings) stored() TopicSettings {
	full := t.withDefaults()
	full.Concurrency = t.Concurrency
	return full
}

func orDefault[N int | time.Duration](v *N, def N) {
	if *v == 0 {
		*v = def
	}
}

// Validate reports everything that is out of range, as an *InvalidError.
func (t TopicSettings) Validate() error { return t.faults().err() }

func (t TopicSettings) faults() (f faults) {
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
	return f
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
			s.equipLocked(t, stored, revision)
		}
	})
}

// equipLocked gives a topic other settings, as they were set; revision 0 means that
// nobody has stored them.
func (s *Scheduler) equipLocked(t *topic, set TopicSettings, revision int64) {
	t.settings, t.own = set.withDefaults(), set.Concurrency != 0
	t.revision, t.seen = revision, max(t.seen, revision)
	s.countBacklogLocked(t)
	s.wakeLocked(t)
}

// given is what was set, without the default of Concurrency.
func (t *topic) given() TopicSettings {
	set := t.settings
	if !t.own {
		set.Concurrency = 0
	}
	return set
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
// Errors: ErrInvalid, ErrRevision, ErrOverloaded, ErrUnknown, ErrClosed.
func (s *Scheduler) SetTopic(ctx context.Context, name string, t TopicSettings, ifRevision int64) (Topic, error) {
	var f faults
	if !validName(name) {
		f.add("topic", nameProblem)
	}
	f = append(f, t.faults()...)
	if err := f.err(); err != nil {
		return Topic{}, err
	}
	for {
		s.mu.Lock()
		have, known := s.topics[name]
		if !known {
			have = &topic{} // as it would be
		}
		var err error
		switch {
		case s.ended:
			err = ErrClosed
		case ifRevision >= 0 && have.revision != ifRevision:
			err = ErrRevision
		default:
			err = have.deliverableBy(t.Kind)
		}
		if err == nil {
			have, err = s.topicLocked(name)
		}
		if err != nil {
			s.unlock()
			return Topic{}, err
		}
		revision := have.revision
		s.unlock()
		stored, err := s.putTopic(ctx, name, revision, &t)
		if errors.Is(err, recovery.ErrConflict) {
			// Another call was faster, or a write landed whose answer was lost.
			if err = s.reloadTopic(ctx, name, have, revision); err == nil {
				continue
			}
		}
		if err != nil {
			return Topic{}, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		s.mu.Lock()
		have = s.keptTopic([]byte(name)) // it may have been forgotten meanwhile
		if stored > have.seen {          // else somebody has changed or deleted them since
			s.equipLocked(have, t, stored)
		}
		described := s.describeLocked(have)
		s.unlock()
		return described, nil
	}
}

// reloadTopic takes over what the ledger has for a topic, after it has refused a
// change that was based on the revision known. It returns an error if that is no
// news, so that nobody tries the same again for ever.
func (s *Scheduler) reloadTopic(ctx context.Context, name string, t *topic, known int64) error {
	settings, ok := s.ledger.(recovery.Settings)
	if !ok {
		return recovery.ErrConflict
	}
	lost, err := s.settingsLost(ctx, settings)
	if err != nil {
		return err
	}
	value, revision, err := settings.Setting(ctx, settingPrefix+name)
	if err != nil {
		return err
	}
	if lost || revision != 0 && revision < known {
		// The news is that memory knows better. Who asks for it first writes it again.
		if _, err = s.restoreOnce(ctx, settings); errors.Is(err, recovery.ErrConflict) {
			err = nil // somebody else does already
		}
		return err
	}
	var stored TopicSettings
	if revision != 0 {
		if err := json.Unmarshal(value, &stored); err != nil {
			return err
		}
	}
	if revision == known {
		return recovery.ErrConflict
	}
	s.mu.Lock()
	defer s.unlock()
	if t.revision == known { // else the call that was faster has brought the news
		t.revisedLocked(revision)
		s.equipLocked(t, stored, revision)
	}
	return nil
}

// revisedLocked takes over the revision that the ledger has. If it is a lower one,
// the ledger has lost the settings and its revisions have begun anew: they must not
// be taken for those of before.
func (t *topic) revisedLocked(revision int64) {
	if revision < t.revision {
		t.seen = revision
	}
	t.revision = revision
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
		return s.unstored.Add(1), nil
	}
	var value []byte
	if t != nil {
		var err error
		if value, err = json.Marshal(t.stored()); err != nil {
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
			t, revision = have.given(), have.revision
		}
		s.unlock()
		t.Paused, t.Kind = paused, ""
		if _, err := s.SetTopic(ctx, name, t, revision); !errors.Is(err, ErrRevision) {
			return err
		}
	}
}

// DeleteTopic forgets a topic's settings. Its tasks stay, and the defaults hold
// for them. ifRevision is the revision that the caller has seen, or -1 for any.
// Errors: ErrNoTopic, ErrRevision, ErrUnknown, ErrClosed.
func (s *Scheduler) DeleteTopic(ctx context.Context, name string, ifRevision int64) error {
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
	if ifRevision >= 0 && revision != ifRevision {
		return ErrRevision
	}
	if _, err := s.putTopic(ctx, name, revision, nil); err != nil {
		if errors.Is(err, recovery.ErrConflict) {
			_ = s.reloadTopic(ctx, name, have, revision) // for the next call
			return ErrRevision
		}
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	s.mu.Lock()
	defer s.unlock()
	if have.revision == revision { // else somebody has set them anew
		s.equipLocked(have, s.cfg.Topics[name], 0)
	}
	return nil
}
