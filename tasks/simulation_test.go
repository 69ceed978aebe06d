package tasks_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

var (
	seed = flag.Uint64("seed", 0, "the one run of the simulation to repeat")
	runs = flag.Int("runs", 6, "runs of the simulation for each kind of ledger")
)

// A simulation does random things to a scheduler and checks it against the model.
type simulation struct {
	*rig.Rig
	m   *model
	rng *rand.Rand

	topics   []string
	requests []tasks.Request  // those that were accepted
	receipts []tasks.Delivery // all that were ever pulled, the newest last
	fresh    int              // of these, how many this process has pulled
	process  atomic.Int32
	faults   bool   // the ledger fails
	release  func() // ends a hold-up of the ledger
}

// Topics of the simulation, and what is special about them.
var simulated = map[string]tasks.TopicSettings{
	"pulled":  {Lease: 20 * time.Second, ConcurrencyPerGroup: 3, DeadRetention: keepsDead, Retry: tasks.Retry{MaxAttempts: 4, MinBackoff: time.Second, MaxBackoff: time.Minute}},
	"counted": {Lease: 20 * time.Second, ConcurrencyPerGroup: 2, CountCrashes: true, Spread: 7 * time.Second, DeadRetention: keepsDead, Retry: tasks.Retry{MaxAttempts: 6, MinBackoff: time.Second, MaxBackoff: time.Minute}},
	"handled": {Lease: 10 * time.Second, Concurrency: 3, ConcurrencyPerGroup: 1, Spread: 2 * time.Second, DeadRetention: keepsDead, Retry: tasks.Retry{MaxAttempts: 4, MinBackoff: time.Second, MaxBackoff: time.Minute}},
	"kept":    {Lease: 20 * time.Second, KeepFinished: keepsFinishedFor, DeadRetention: keepsDead, Retry: tasks.Retry{MaxAttempts: 4, MinBackoff: time.Second, MaxBackoff: time.Minute}},
	"missed":  {Lease: 20 * time.Second, Misfire: tasks.MisfireSkip, DeadRetention: keepsDead, Retry: tasks.Retry{MaxAttempts: 4, MinBackoff: time.Second, MaxBackoff: time.Minute}},
}

// reserved are those that are pulled.
var reserved = []string{"pulled", "counted", "missed", "kept"}

// keepsDead is how long they keep their dead: some of a run are deleted.
const keepsDead = 3 * time.Minute

// keepsFinishedFor is how long one of them keeps its finished tasks.
const keepsFinishedFor = 2 * time.Minute

func TestSimulation(t *testing.T) {
	runs, steps := *runs, 400
	if testing.Short() {
		runs = min(runs, 4)
	}
	for name, options := range map[string][]memledger.Option{
		"Snapshot1": nil, "Snapshot4": {memledger.Shards(4)},
		"Nominating1": {memledger.Nominating()}, "Nominating4": {memledger.Nominating(), memledger.Shards(4)},
	} {
		t.Run(name, func(t *testing.T) {
			for run := range runs {
				s := *seed
				if s == 0 {
					s = rand.Uint64()
				} else if run > 0 {
					break
				}
				simulate(t, s, steps, options)
			}
		})
	}
}

// simulate does one run, which is a function of the seed but for the pauses between two attempts to
// reach a ledger that fails, and for the order in which goroutines run.
func simulate(t *testing.T, seed uint64, steps int, options []memledger.Option) {
	defer func() { // what fails in the bubble ends the test
		if t.Failed() {
			t.Logf("repeat with -run '%s' -seed %d", t.Name(), seed)
		}
	}()
	// Ids that Lapse makes are of the seed as well. No other test runs meanwhile.
	uuid.SetRand(rand.NewChaCha8([32]byte(binary.BigEndian.AppendUint64(make([]byte, 24), seed))))
	defer uuid.SetRand(nil)
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, tasks.Config{Grace: time.Second, SweepBacklog: 2}, options...)
		s := &simulation{
			Rig: r, rng: rand.New(rand.NewPCG(seed, 0)),
			m: &model{t: t, clock: r.Clock, facts: map[string]*fact{}},
		}
		for name := range simulated {
			s.topics = append(s.topics, name)
		}
		slices.Sort(s.topics)
		for _, name := range s.topics {
			set := simulated[name]
			pause := time.Second << s.rng.IntN(6) // without jitter
			set.Retry.MinBackoff, set.Retry.MaxBackoff = pause, pause
			r.MustSetTopic(name, set)
		}
		s.begin()
		for n := range steps {
			// Each step has a generator of its own: what the steps before it have drawn, which may
			// depend on the order in which goroutines have run, does not change what it does.
			s.rng = rand.New(rand.NewPCG(seed, uint64(n)+1))
			s.step()
			if t.Failed() {
				_ = r.Close(context.Background())
				rig.Pass(time.Minute) // for handlers that sleep
				return
			}
		}
		s.end()
	})
}

// begin sets a new scheduler up.
func (s *simulation) begin() {
	s.MustHandle("handled", s.handler)
	synctest.Wait()
}

// handler behaves as the task's id and attempt say.
func (s *simulation) handler(ctx context.Context, d *tasks.Delivery) error {
	term := simulated["handled"].Lease
	s.m.delivered(d, term, true)
	process := s.process.Load()
	kind := (len(d.Payload)*7 + int(d.Payload[len(d.Payload)-1])*3 + d.Attempt*5) % 11
	s.m.mu.Lock()
	if s.m.ended {
		kind = 0
	}
	s.m.mu.Unlock()
	conclude := func(err error) error {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		f := s.m.fact(d.ID)
		if f.open == nil || f.open.receipt != d.Receipt() || f.open.crashed || process != s.process.Load() {
			return err // it is no longer this delivery's
		}
		died := task.Judge(err).Verb == tasks.Bury || err != nil && d.Attempt >= simulated["handled"].Retry.MaxAttempts
		switch {
		case ctx.Err() != nil:
			s.m.lastWords(d.ID, err == nil, died)
		case err == nil:
			s.m.acknowledged(d.ID, d.Receipt(), false)
		default:
			s.m.failed(d.ID, died, false)
		}
		return err
	}
	switch kind {
	case 0, 1, 2, 3:
		return conclude(nil)
	case 4:
		time.Sleep(3 * time.Second)
		return conclude(nil)
	case 5, 6:
		return conclude(errors.New("no luck"))
	case 7:
		return conclude(tasks.RetryAfter(errors.New("busy"), 30*time.Second))
	case 8:
		return conclude(tasks.Kill(errors.New("hopeless")))
	case 9:
		time.Sleep(15 * time.Second) // overruns its lease
		return nil
	}
	panic(conclude(errors.New("oops")))
}

func (s *simulation) maxAttempts(topic string) int { return simulated[topic].Retry.MaxAttempts }

// step does one thing and lets what it has started come to rest.
func (s *simulation) step() {
	type move struct {
		weight int
		do     func()
	}
	moves := []move{
		{14, s.schedule}, {4, s.again}, {3, s.batch}, {7, s.cancel}, {5, s.reschedule}, {4, s.replace}, {3, s.replaceBatch}, {3, s.fire}, {3, s.hold}, {4, s.resume},
		{8, s.look}, {2, s.list}, {14, s.reserve}, {16, s.verdict}, {2, s.giveBack}, {3, s.requeue}, {1, s.deleteDead}, {1, s.purgeTopic}, {2, s.cancelGroup},
		{2, s.pauseTopic}, {2, s.setTopic}, {20, s.wait}, {2, s.stepClock}, {3, s.breakLedger}, {6, s.heal}, {1, s.kill}, {1, s.cleanly}, {2, s.inspect},
	}
	total := 0
	for _, m := range moves {
		total += m.weight
	}
	n := s.rng.IntN(total)
	for _, m := range moves {
		if n -= m.weight; n < 0 {
			m.do()
			break
		}
	}
	synctest.Wait()
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.expired(s.maxAttempts)
	s.m.kept(keepsDead)
	if !s.faults && s.Stats().Ledger.Queued == 0 {
		s.m.settled()
	}
}

// end heals everything, waits until all is delivered, and wants nothing to be left.
func (s *simulation) end() {
	s.heal()
	for _, name := range s.topics {
		rig.Want(s.T, "resume", s.Admin().PauseTopic(s.T.Context(), name, false), nil)
	}
	s.m.mu.Lock()
	s.m.ended = true
	s.m.mu.Unlock()
	s.resumeAll()
	for range 4 * 60 {
		rig.Pass(time.Minute)
		for _, name := range reserved {
			ds, err := s.Reserve(s.T.Context(), name, tasks.MaxReserve, 0, 0)
			rig.Want(s.T, "Reserve", err, nil)
			for i := range ds {
				s.m.delivered(&ds[i], 20*time.Second, false)
				s.Ack(ds[i])
				s.m.mu.Lock()
				s.m.acknowledged(ds[i].ID, ds[i].Receipt(), true)
				s.m.mu.Unlock()
			}
		}
		s.m.mu.Lock()
		s.m.expired(s.maxAttempts)
		s.m.kept(keepsDead)
		s.m.mu.Unlock()
		if c := s.Stats().Total; c.Pending+c.Ready+c.Delivering == 0 {
			break
		}
	}
	rig.Pass(time.Second)
	s.CheckConsistency()
	s.WantNoRescue()
	if stats := s.Stats(); stats.Total.Pending+stats.Total.Ready+stats.Total.Delivering != 0 || stats.AuditRepaired != 0 {
		s.T.Errorf("left: %+v, repaired %d", stats.Total, stats.AuditRepaired)
	}
	for id := range s.m.facts {
		task, err := s.Get(s.T.Context(), id)
		s.m.saw(id, task, err)
		if err == nil && task.State != tasks.Dead && task.State != tasks.Finished {
			s.m.fault(id, "is still %v", task.State)
		}
	}
	// Who died on a clock that was ahead is kept until it has come so far; and after a
	// step of the clock no task is deleted for a while.
	rig.Pass(2 * time.Hour)
	s.CheckConsistency()
	if c := s.Stats().Total; c.Dead != 0 || c.Finished != 0 || !c.DeadOldest.IsZero() {
		s.T.Errorf("%d are still dead, since %v, and %d finished ones are kept", c.Dead, c.DeadOldest, c.Finished)
	}
	if s.m.told == 0 {
		s.T.Error("nothing was delivered at all")
	}
}

// anyID is one of a few, so that things happen to the same task.
func (s *simulation) anyID() string {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if n := len(s.m.made); n > 0 && s.rng.IntN(4) == 0 {
		return s.m.made[s.rng.IntN(n)]
	}
	return fmt.Sprint("id", s.rng.IntN(25))
}

func (s *simulation) request(id string) tasks.Request {
	r := tasks.Request{ID: id, Topic: s.topics[s.rng.IntN(len(s.topics))], Group: s.anyGroup(), Payload: fmt.Append(nil, s.rng.IntN(1000))}
	switch s.rng.IntN(4) {
	case 0: // due now
	case 1:
		r.Delay = time.Duration(s.rng.Int64N(int64(time.Hour)))
	default:
		r.Delay = time.Duration(s.rng.Int64N(int64(20 * time.Second)))
	}
	return r
}

// anyGroup is one of a few, or none.
func (s *simulation) anyGroup() string { return []string{"", "one", "two", "three"}[s.rng.IntN(4)] }
