package campaign

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// binary is the program under test.
var binary string

// options are set by the environment. The defaults are enough for `make fault`.
type options struct {
	seeds         []uint64
	nodes, tasks  int
	duration      time.Duration
	failoverAfter time.Duration
	faults        []string
	features      []string
	stock         int // tasks that are due in hours
	rate          int // calls a second, at most
	job           bool
	dir           string
}

// sentinel reports whether a seed has a Redis behind a sentinel: every fourth one has.
func (o *options) sentinel(seed uint64) bool {
	return seed%4 == 3 && slices.Contains(o.faults, "failover")
}

// A load is what callers share.
type load struct {
	pace     chan struct{} // one for each request
	job      bool
	batch    int           // mean size of one
	ahead    time.Duration // the latest deadline, from now
	made     atomic.Int64  // tasks that were requested
	accepted atomic.Int64  // tasks that were accepted
}

func campaign(t *testing.T, o options, seed uint64, all *matrix) {
	f := newFleet(t, o, seed)
	plan := planOf(seed, settings{nodes: o.nodes, duration: o.duration, failoverAfter: o.failoverAfter, faults: o.faults, features: o.features})
	for i, r := range plan {
		f.note("plan %d: %s", i, r)
	}
	const callers, receivers = 24, 2
	receiving, calling := rig.NewWorkers(t), rig.NewWorkers(t)
	for i := range receivers * o.nodes {
		w := &receiver{fleet: f, home: f.nodes[i/receivers], rng: rand.New(rand.NewPCG(seed, uint64(1000+i))), job: o.job}
		receiving.Go(func() { w.work(receiving.Ctx) })
	}
	if !o.job {
		receiving.Go(func() { f.requeue(receiving.Ctx, rand.New(rand.NewPCG(seed, 2000))) })
	}
	l, perSecond := o.load()
	calling.Go(func() { l.tick(calling.Ctx, perSecond) })
	for i := range callers {
		c := &caller{fleet: f, load: l, name: i + 1, rng: rand.New(rand.NewPCG(seed, uint64(100+i)))}
		calling.Go(func() { c.work(calling.Ctx) })
	}
	began := time.Now()
	f.runRounds(plan)
	injecting := time.Since(began)
	rig.Within(20*time.Millisecond, o.duration, func() bool { return l.accepted.Load() >= int64(o.tasks) })
	calling.Stop()
	left := f.finish(l.ahead)
	receiving.Stop()
	f.report(o, seed, len(plan), injecting, left)
	all.add(f.matrix)
}

// load is a mix of calls that makes the tasks in time.
func (o *options) load() (l *load, perSecond float64) {
	l = &load{pace: make(chan struct{}), job: o.job, ahead: 5 * o.failoverAfter}
	each := float64(o.tasks) / o.duration.Seconds()
	if o.job {
		l.batch = 500
		return l, max(1, each/500)
	}
	perSecond = min(max(each/2, 25), float64(o.rate))
	// A fifth of the calls make one task each, another fifth a batch.
	l.batch = max(1, int(1.4*(each-perSecond/5)/(perSecond/5)))
	return l, perSecond
}

// tick sets the pace.
func (l *load) tick(ctx context.Context, perSecond float64) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / perSecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		select {
		case l.pace <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
}
