package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/engine/minutes"
	"github.com/lapsehq/lapse/tasks/internal/parts"
	"github.com/lapsehq/lapse/tasks/internal/past"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Scheduler takes tasks in and delivers them when they are due. Its methods
// may be called from any goroutine.
type Scheduler struct {
	engine  *engine.Engine
	cluster *cluster.Cluster
}

// Open adopts the ledger, starts reading its tasks back, and begins to deliver;
// it does not wait for the end of replay (see Readiness). The scheduler
// owns the ledger from then on and closes it.
//
// Errors: every fault of cfg at once; recovery.ErrHeld when another process owns
// the ledger; recovery.ErrLayout; or why the ledger cannot be read.
func Open(ctx context.Context, ledger recovery.Ledger, cfg Config) (*Scheduler, error) {
	checked, err := cfg.Check()
	if err != nil {
		return nil, err
	}
	test, _ := ctx.Value(parts.Key{}).(parts.Parts)
	e := engine.New(ctx, ledger, checked)
	s := &Scheduler{engine: e, cluster: cluster.New(e, test.Peers)}
	s.cluster.Past = past.New(s.pastOptions(ledger))
	if err := s.engine.Adopt(ctx); err != nil {
		return nil, err
	}
	if err := s.cluster.Share(ctx); err != nil {
		s.engine.Life.Cancel()
		return nil, errors.Join(err, ledger.Close())
	}
	fire := e.Fired
	if test.Fired != nil {
		fire = func(values []uint64) { e.Fired(test.Fired(values)) }
	}
	if err := s.engine.Start(ctx, fire); err != nil {
		return nil, err
	}
	s.cluster.StartLoops()
	close(s.engine.Life.Opened)
	return s, nil
}

// pastOptions says where the past has its figures, and what keeps it.
func (s *Scheduler) pastOptions(ledger recovery.Ledger) past.Options {
	e := s.engine
	archive, _ := ledger.(recovery.Archive)
	return past.Options{
		Archive: archive, Node: e.Config.Node, Clock: e.Config.Clock, Total: e.History,
		Topics: func(visit func(string, *task.Counts)) {
			e.EachTopic(func(t *engine.Topic) { visit(t.Name, &t.Counts) })
		},
		Topic: func(name string) (task.Counts, bool) {
			t, err := e.Topic(name)
			return t.Counts, err == nil
		},
		Down: func() bool { return e.Committer.AnyDown() },
		Ended: func(from, to int64, visit func(topic string, minute int64, c *task.WaveCounts)) {
			e.EachEnded(from, to, func(r *minutes.Row) {
				all := r.All()
				c := all.Wave()
				visit(r.Topic, r.Minute, &c)
			})
		},
	}
}

// Close ends the scheduler. In this order: new calls are refused and waiting
// receivers sent home; running handlers get Config.Grace (or until ctx ends) to finish,
// then their context is cancelled, and those that heed it have a moment to tell what
// became of their attempts; what reserved deliveries are still open is
// written down with its lease, so that their receipts count after the next Open; what
// the ledger has not confirmed is written; the ledger is closed.
//
// It is idempotent. An error tells what could not be written: after the next Open
// those tasks stand as they stood before.
func (s *Scheduler) Close(ctx context.Context) error { return s.engine.Close(ctx) }

// Moving returns nil once the scheduler has shown that it moves: its lock was taken, its wheel has
// read the clock, and a sweep under way has come further. It waits for that until ctx ends, and
// then returns a *StuckError. Judge by StuckError.For, not by the wait alone: a busy scheduler may
// need a second, and a process that was suspended has had no time to answer. It says nothing about
// the ledger, which Readiness reports. It returns nil once the scheduler is closed.
func (s Admin) Moving(ctx context.Context) error { return s.engine.Moving(ctx) }

// Format is the version of the newest records that this version of the package reads and
// writes. A ledger that several nodes share is told, so that none of them adopts what
// it cannot read.
const Format = record.Version
