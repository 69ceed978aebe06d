package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// This file is what a start reads beside the pending tasks: the key of receipts, the settings of
// topics, and which tasks are dead.

const (
	// startPatience is how long Open waits for the settings and for the index of the dead. What
	// is not read by then is read while the node delivers.
	startPatience = time.Second
	// deadShardsAtOnce is of how many shards the indexes of the dead are read at once.
	deadShardsAtOnce = 4
	// readFailsEvery is the time between two log lines about something that cannot be read.
	readFailsEvery = 10 * time.Second
)

// The names in readiness of what the start waits for.
const (
	waitsForKey      = "the key of receipts"
	WaitsForSettings = "the settings of topics"
	WaitsForDead     = "the index of the dead"
	waitsForTopics   = "the settings of the topics whose tasks are read"
)

var (
	errSettingsUnread = task.KindOf(task.ErrReplaying, "settings of the topic not read yet; retry")
	errDeadUnread     = task.KindOf(task.ErrReplaying, "index of the dead not read yet; retry")
)

// prepare reads the key of receipts, and begins to read the settings and the index of the dead.
// From a ledger of one node it reads everything, or returns an error. With a ledger of several
// nodes it repeats reads that fail, and after startPatience the start goes on without their
// results:
//
//   - The settings of a topic are asked for one by one, before tasks of it are read back, created
//     or reserved. If they cannot be read, the topic keeps its tasks.
//   - An id that is not known is refused, for it may be that of a dead task.
//   - The node is not ready.
func (s *Engine) prepare(ctx context.Context) error {
	err := s.keepAsking(ctx, waitsForKey, func(ctx context.Context) (err error) {
		s.Signer, err = receipt.Load(ctx, s.Ledger)
		return err
	})
	s.Waits.Clear(waitsForKey)
	if err != nil {
		return fmt.Errorf("receipt key: %w", err)
	}
	if s.Fleet == nil {
		if err := s.loadSettings(ctx); err != nil {
			return fmt.Errorf("topic settings: %w", err)
		}
		if err := s.loadDead(ctx); err != nil {
			return fmt.Errorf("dead tasks: %w", err)
		}
		return nil
	}
	s.Life.Background.Go(func() { s.reads(WaitsForSettings, s.loadSettings) })
	s.Life.Background.Go(func() { s.reads(WaitsForDead, s.loadDead) })
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	for _, read := range []<-chan struct{}{s.Reading.settingsRead, s.Reading.deadRead} {
		select {
		case <-read:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-patience.C:
			s.Config.Log.Warn("start continues without what is not read yet", "node", s.Config.Node,
				"settings", isClosed(s.Reading.settingsRead), "dead", isClosed(s.Reading.deadRead))
			return nil
		}
	}
	return nil
}

// reads runs one of the loads in the background.
func (s *Engine) reads(what string, load func(context.Context) error) {
	s.Waits.Set(what, "being read")
	defer s.Waits.Clear(what)
	err := s.keepAsking(s.Life.Context, what, load)
	if err != nil && !errors.Is(err, recovery.ErrLost) && !s.IsClosing() && s.Life.Context.Err() == nil {
		s.Config.Log.Error("start incomplete", "node", s.Config.Node, "lacks", what, "error", err)
	}
}

// keepAsking calls load until it succeeds, ctx ends, or the ledger is closed or lost. With a ledger
// of one node it calls load once.
func (s *Engine) keepAsking(ctx context.Context, what string, load func(context.Context) error) error {
	var backoff recovery.Backoff
	var told time.Time
	for attempt := 0; ; attempt++ {
		err := load(ctx)
		if err == nil || s.Fleet == nil || errors.Is(err, recovery.ErrClosed) || errors.Is(err, recovery.ErrLost) {
			return err
		}
		s.Waits.Set(what, err.Error())
		if told.IsZero() || time.Since(told) >= readFailsEvery {
			told = time.Now()
			s.Config.Log.Warn("start waits for the ledger", "node", s.Config.Node, "lacks", what, "error", err)
		}
		if cause := backoff.Wait(ctx, attempt); cause != nil {
			return errors.Join(cause, err)
		}
	}
}

// loadSettings reads the stored settings of all topics. A topic is delivered as soon as its own
// are read; one without settings when all are read.
func (s *Engine) loadSettings(ctx context.Context) error {
	s.mu.Lock()
	for name := range s.Config.Topics {
		_, _ = s.TopicLocked(name, true) // far below MaxTopics
	}
	s.mu.Unlock()
	if settings, ok := s.Ledger.(recovery.Settings); ok {
		if err := settings.EachSetting(ctx, task.SettingPrefix, func(name string, value []byte, revision int64) {
			s.takeSetting(strings.TrimPrefix(name, task.SettingPrefix), storedSetting{value, revision})
		}); err != nil {
			return err
		}
	}
	s.mu.Lock()
	close(s.Reading.settingsRead)
	s.mu.Unlock()
	s.EachTopic(func(t *Topic) {
		if t.unread() {
			s.applyLocked(t, s.Config.Resolved[t.Name], 0)
		}
	})
	return nil
}

// learnTopicsOf is LearnTopic for the topics of records that are about to come into memory. It
// goes on until they are known: what a topic says of windows, misfires and attempts must hold for
// a task from the beginning. It reports false if ctx ends.
func (s *Engine) learnTopicsOf(ctx context.Context, page []recovery.Entry) bool {
	if isClosed(s.Reading.settingsRead) {
		return true
	}
	defer s.Waits.Clear(waitsForTopics)
	return nil == s.keepAsking(ctx, waitsForTopics, func(ctx context.Context) error {
		for i := range page {
			f, err := record.Decode(page[i].Data)
			if err != nil {
				continue // it is left where it is
			}
			if err := s.LearnTopic(ctx, string(f.Topic)); err != nil {
				return err
			}
		}
		return nil
	})
}

// loadDead learns which ids are dead, and how many of which topic. Where the ledger has an
// index it reads no records.
func (s *Engine) loadDead(ctx context.Context) error {
	scanner, ok := s.Ledger.(recovery.DeadScanner)
	shards, scanning := errgroup.WithContext(ctx)
	shards.SetLimit(deadShardsAtOnce)
	if !ok {
		shards.Go(func() error {
			dead := gatheredDead{s: s, takes: func(n int) bool { return readsLocked(s.OwnedLocked(n)) }}
			defer dead.flush()
			return s.Ledger.ListDead(scanning, "", recovery.Ref{}, func(e recovery.Entry) bool {
				dead.add(e.Shard, e)
				return true
			})
		})
	}
	for n := 0; ok && n < s.Terms.Shards; n++ {
		shards.Go(func() error {
			h := s.Shards.view.Load().term(n).of
			// If the shard is lost, the number may stand for another one.
			dead := gatheredDead{s: s, takes: func(int) bool { return readsLocked(h) && s.OwnedLocked(n) == h }}
			err := scanner.ScanDead(scanning, n, func(e recovery.Entry) { dead.add(n, e) })
			dead.flush()
			if errors.Is(err, recovery.ErrLost) {
				return nil // the shard is another node's
			}
			return err
		})
	}
	err := shards.Wait()
	if err == nil {
		close(s.Reading.deadRead)
	}
	return err
}

// readsLocked reports whether a shard is one of those whose dead the start reads.
func readsLocked(h *OwnedShard) bool { return h.mine() && h.stage != acquired }

// gatheredDead are dead tasks that the ledger has listed, until memory takes note of them. Noted
// one by one, each would take the lock. No dead task can be requeued or deleted meanwhile. The
// ledger may list a task more than once.
type gatheredDead struct {
	s       *Engine
	takes   func(shard int) bool // reports, under the lock, whether dead of a shard are noted
	entries []recovery.Entry
}

// add takes an entry, which is valid only during the call.
func (d *gatheredDead) add(shard int, e recovery.Entry) {
	e.Shard, e.ID, e.Data = shard, bytes.Clone(e.ID), nil
	if d.entries = append(d.entries, e); len(d.entries) == AtOnce {
		d.flush()
	}
}

// flush has memory take note of those that were gathered.
func (d *gatheredDead) flush() {
	d.s.InPieces(d.entries, func(piece []recovery.Entry) {
		for i := range piece {
			if e := &piece[i]; d.takes(e.Shard) {
				d.s.addDeadLocked(d.s.labelledLocked(e.Spot.Label), e.Shard, e.ID, e.Spot.At)
			}
		}
	})
	d.entries = d.entries[:0]
}
