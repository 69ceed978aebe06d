package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Each task of a wave has one fate, whichever node asks, while nodes end, are killed and come back:
// what they had counted counts once.
func TestWavesSurvive(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		began, made := time.Now().Truncate(time.Minute), int64(0)
		for round := range 30 {
			n := f.Nodes[random.IntN(3)]
			for range random.IntN(5) {
				_, err := n.Schedule(t.Context(), Request{ID: fmt.Sprint("t", made), Topic: fmt.Sprint("x", made%3), Delay: time.Duration(random.IntN(3600)) * time.Second})
				rig.Want(t, "Schedule", err, nil)
				made++
			}
			rig.Pass(2 * time.Minute)
			for topic := range 3 {
				ds, err := n.Reserve(t.Context(), fmt.Sprint("x", topic), 3, 0, 0)
				rig.Want(t, "Reserve", err, nil)
				for _, d := range ds {
					n.SettleOne([]Verb{Ack, Release, Bury}[random.IntN(3)], d)
				}
			}
			rig.Pass(2 * time.Minute) // so that a kill loses nothing
			switch k := f.Nodes[random.IntN(3)]; round % 3 {
			case 1:
				k.Stop()
				k.Restart()
			case 2:
				k.Crash()
				k.Restart()
			}
			rig.Pass(time.Minute)
			at := f.Nodes[random.IntN(3)]
			w, reach, err := at.Admin().FleetWaves(t.Context(), WaveQuery{From: began, To: began.Add(6 * time.Hour)})
			rig.Want(t, "FleetWaves", err, nil)
			if c := w.Total(); c.Open()+c.Ended() != made || !w.Complete || w.Since.After(began.Add(time.Minute)) {
				t.Fatalf("round %d, at %s: %d of %d: %+v, since %v, complete %v, missing %v", round, at.Name, c.Open()+c.Ended(), made, c, w.Since, w.Complete, reach.Missing)
			}
		}
	})
}

// Tasks that end at several nodes while a wave is counted count once.
func TestFleetWaveOfTasksThatEnd(t *testing.T) {
	f := rig.NewFleet(t, 3)
	minute := time.Now().Truncate(time.Minute)
	const number, batch = 30_000, 500
	for i := range 3 {
		_, err := f.Nodes[i].ScheduleBatch(t.Context(), slices.Repeat([]Request{{Topic: "x", Due: minute}}, number/3))
		rig.Want(t, "ScheduleBatch", err, nil)
	}
	batches := make(chan int)
	go func() {
		defer close(batches)
		for ended := 0; ended < number; {
			n := f.Nodes[ended/batch%3]
			ds, err := n.Reserve(t.Context(), "x", batch, time.Minute, 0)
			if err != nil {
				t.Error(err)
				return
			}
			receipts := make([]string, len(ds))
			for i := range ds {
				receipts[i] = ds[i].Receipt()
			}
			batches <- ended
			if _, err := n.Settle(t.Context(), Verdict{Verb: Ack}, receipts); err != nil {
				t.Error(err)
				return
			}
			ended += len(ds)
		}
	}()
	q, whole := WaveQuery{From: minute, To: minute.Add(time.Minute)}, 0
	for ended := range batches {
		w, reach, err := f.Nodes[ended/batch%3].Admin().FleetWaves(t.Context(), q)
		rig.Want(t, "FleetWaves", err, nil)
		if c := w.Total(); w.Complete && c.Open()+c.Ended() != number {
			t.Errorf("%d tasks are counted once %d have ended: %+v; %v", c.Open()+c.Ended(), ended, c, reach.Missing)
		} else if w.Complete {
			whole++
		}
	}
	if whole == 0 {
		t.Error("no node answered for all of them")
	}
}

// A survivor is a scheduler on a ledger that keeps what it has written, with a clock that is ahead.
type survivor struct {
	*Scheduler
	t     *testing.T
	name  string
	ahead atomic.Int64
	open  func() (recovery.Ledger, error)
}

func (s *survivor) start() {
	s.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ledger, err := s.open()
		rig.Want(s.t, "opening the ledger", err, nil)
		s.Scheduler, err = Open(s.t.Context(), ledger, Config{Node: s.name, Log: slog.New(slog.DiscardHandler), Clock: func() time.Time {
			return time.Now().Add(time.Duration(s.ahead.Load()))
		}})
		if errors.Is(err, recovery.ErrHeld) { // by the process that was killed, for a second
			<-tick.C
			continue
		}
		rig.Want(s.t, "Open", err, nil)
		break
	}
	<-rig.Engine(s.Scheduler).Reading.Replayed
}

// deliver makes tasks and acknowledges them.
func (s *survivor) deliver(n int) {
	s.t.Helper()
	for range n {
		// A slow machine may be late with a heartbeat: then nothing is done.
		(&redisNode{t: s.t, Scheduler: s.Scheduler}).waitFor("a task is taken in", func() bool {
			_, err := s.Schedule(s.t.Context(), Request{Topic: "x"})
			if !errors.Is(err, ErrUnavailable) {
				rig.Want(s.t, "Schedule", err, nil)
			}
			return err == nil
		})
		ds, err := s.Reserve(s.t.Context(), "x", 1, 10*time.Second, 0)
		if err != nil || len(ds) != 1 {
			s.t.Fatalf("reserved %d, %v", len(ds), err)
		}
		answers, err := s.Settle(s.t.Context(), Verdict{Verb: Ack}, []string{ds[0].Receipt()})
		if err != nil || answers[0].Err != nil {
			s.t.Fatalf("acknowledging: %+v, %v", answers, err)
		}
	}
}

// wants waits until a wave of the last hours, as the fleet or this node alone sees it, has so many
// that were delivered.
func (s *survivor) wants(what string, delivered int64, asks ...func(context.Context, WaveQuery) (Wave, error)) {
	s.t.Helper()
	now := time.Now()
	q := WaveQuery{From: now.Add(-2 * time.Hour), To: now.Add(2 * time.Hour)}
	for _, ask := range asks {
		var w Wave
		(&redisNode{t: s.t, Scheduler: s.Scheduler}).waitFor(fmt.Sprintf("%s %d are delivered", what, delivered), func() (done bool) {
			var err error
			w, err = ask(s.t.Context(), q)
			total := w.Total()
			return err == nil && w.Complete && total.Delivered == delivered
		})
	}
}

func (s *survivor) fleet(ctx context.Context, q WaveQuery) (Wave, error) {
	w, _, err := s.Admin().FleetWaves(ctx, q)
	return w, err
}

// What has ended is remembered over restarts on a real disk.
func TestWavesSurviveOnDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &survivor{t: t, open: func() (recovery.Ledger, error) { return diskledger.Open(dir, diskledger.Options{}) }}
	s.start()
	s.deliver(3)
	rig.Want(t, "Close", s.Close(t.Context()), nil)
	s.start()
	s.deliver(2)
	s.wants("after a restart", 5, s.fleet, s.Admin().Waves)
	rig.Want(t, "Close", s.Close(t.Context()), nil)
	s.start()
	s.wants("after another one", 5, s.fleet, s.Admin().Waves)
	rig.Want(t, "Close", s.Close(t.Context()), nil)
}

// What has ended at a node that was killed, or has left, is remembered by the others in Redis. What
// Redis has lost is not said to be known.
func TestWavesSurviveInRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	node := func(name, url string) *survivor {
		return &survivor{t: t, name: name, open: func() (recovery.Ledger, error) {
			return redisledger.Open(redisledger.Options{URL: url, Node: name, Shards: 2, FailoverAfter: 3 * time.Second, Log: slog.New(slog.DiscardHandler)})
		}}
	}
	a, b := node("a", server.URL()), node("b", proxy.URL())
	a.start()
	defer func() { _ = a.Close(t.Context()) }()
	b.start()
	a.deliver(3)
	b.deliver(4)
	a.wants("of both", 7, a.fleet)
	b.ahead.Add(int64(time.Minute)) // the minute is over
	(&redisNode{t: t, Scheduler: a.Scheduler}).waitFor("it is written", func() bool {
		n, _ := server.Do("eval", "local n = 0; for _, k in ipairs(redis.call('keys', '*waves*')) do for _, f in ipairs(redis.call('hkeys', k)) do if string.find(f, ' b [^ ]*/') then n = n + 1 end end end; return n", "0").(int64)
		return n > 0
	})
	proxy.Sever(redistest.Reset)
	atOnce, cancel := context.WithCancel(t.Context())
	cancel()
	_ = b.Close(atOnce) // it cannot tell
	a.wants("without the one that was killed", 7, a.fleet)
	proxy.Heal()
	b.start()
	b.wants("once it is back", 7, b.fleet)
	b.wants("of its own", 4, b.Admin().Waves)
	rig.Want(t, "Close", b.Close(t.Context()), nil)
	a.wants("without the one that has left", 7, a.fleet)

	server.Do("eval", "for _, k in ipairs(redis.call('keys', '*waves*')) do redis.call('del', k) end", "0")
	lost := time.Now()
	b.start()
	defer func() { _ = b.Close(t.Context()) }()
	b.wants("once Redis has lost rows", 3, b.fleet)
	w, err := b.fleet(t.Context(), WaveQuery{From: lost.Add(-time.Hour), To: lost})
	if rig.Want(t, "FleetWaves", err, nil); w.Since.Before(lost.Add(-time.Second)) {
		t.Errorf("it says that it knows of everything since %v; rows were lost until %v", w.Since, lost)
	}
}
