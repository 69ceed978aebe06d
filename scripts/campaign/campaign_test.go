//go:build fault

package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// binary is the program under test.
var binary string

func TestMain(m *testing.M) {
	os.Exit(rig.WithProgram(func(path string) int {
		binary = path
		return m.Run()
	}))
}

// options are set by the environment. The defaults are enough for `make fault`.
type options struct {
	seeds         []uint64
	nodes, tasks  int
	duration      time.Duration
	failoverAfter time.Duration
	faults        []crash.Trouble
	sentinels     bool // every fourth seed has a Redis behind a sentinel
	job           bool
	dir           string
}

// sentinel reports whether a seed has a Redis behind a sentinel.
func (o *options) sentinel(seed uint64) bool { return o.sentinels && seed%4 == 3 }

func fromEnvironment(t *testing.T) options {
	o := options{nodes: 3, tasks: 1500, duration: 16 * time.Second, failoverAfter: 1500 * time.Millisecond}
	o.seeds = []uint64{45} // a drain, a cut beside a kill, a loss, Redis down beside a kill
	fail := func(name, text string, err error) {
		t.Fatalf("%s=%q: %v", name, text, err)
	}
	set := func(name string, parse func(text string) error) {
		if text := os.Getenv(name); text != "" {
			if err := parse(text); err != nil {
				fail(name, text, err)
			}
		}
	}
	number := func(into *int, least int) func(string) error {
		return func(text string) (err error) {
			if *into, err = strconv.Atoi(text); err == nil && *into < least {
				err = fmt.Errorf("must be at least %d", least)
			}
			return err
		}
	}
	length := func(into *time.Duration) func(string) error {
		return func(text string) (err error) {
			*into, err = time.ParseDuration(text)
			return err
		}
	}
	set("LAPSE_SEEDS", func(text string) (err error) {
		o.seeds, err = seeds(text)
		return err
	})
	set("LAPSE_NODES", number(&o.nodes, 2))
	set("LAPSE_TASKS", number(&o.tasks, 1))
	set("LAPSE_DURATION", length(&o.duration))
	set("LAPSE_FAILOVER_AFTER", length(&o.failoverAfter))
	names := "all"
	set("LAPSE_FAULTS", func(text string) error { names = text; return nil })
	var err error
	if o.faults, o.sentinels, err = troubles(names); err != nil {
		fail("LAPSE_FAULTS", names, err)
	}
	o.job = os.Getenv("LAPSE_JOB") != ""
	if o.dir = os.Getenv("LAPSE_DIR"); o.dir == "" {
		o.dir = t.ArtifactDir()
	}
	return o
}

// seeds reads a list such as 1-20,33.
func seeds(text string) (list []uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, ok := strings.Cut(part, "-")
		if !ok {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 64)
		if err != nil {
			return nil, err
		}
		last, err := strconv.ParseUint(to, 10, 64)
		if err != nil {
			return nil, err
		}
		if last < first || last-first >= 10_000 {
			return nil, fmt.Errorf("%s is no range of at most 10,000 seeds", part)
		}
		for seed := first; seed <= last; seed++ {
			list = append(list, seed)
		}
	}
	return list, nil
}

// troubles reads a list of names of faults, all of them, or none.
func troubles(text string) (list []crash.Trouble, sentinels bool, err error) {
	switch text {
	case "none":
		return nil, false, nil
	case "all":
		for _, trouble := range Faults {
			list = append(list, trouble)
		}
		return list, true, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		trouble, ok := Faults[name]
		if !ok {
			return nil, false, fmt.Errorf("there is no fault %q", name)
		}
		sentinels = sentinels || trouble == crash.FailedOver
		list = append(list, trouble)
	}
	return list, sentinels, nil
}

// TestCampaign runs each seed, and judges it. `make campaign` lists its settings.
func TestCampaign(t *testing.T) {
	o := fromEnvironment(t)
	t.Logf("what is noted is kept in %s", o.dir)
	for _, seed := range o.seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			campaign(t, o, seed)
		})
	}
}

// A load is what callers share.
type load struct {
	pace     chan struct{} // one for each request
	choices  []choice
	batch    int           // mean size of one
	ahead    time.Duration // the latest deadline, from now
	made     atomic.Int64  // tasks that were requested
	accepted atomic.Int64  // tasks that were accepted
}

func campaign(t *testing.T, o options, seed uint64) {
	f := newFleet(t, o, seed)
	plan := Plan(seed, o.plan(seed))
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
}

// plan returns the settings of a seed's plan.
func (o *options) plan(seed uint64) Settings {
	s := Settings{Nodes: o.nodes, Duration: o.duration, FailoverAfter: o.failoverAfter}
	for _, trouble := range o.faults {
		// A sentinel answers any fault of its master with a failover.
		if o.sentinel(seed) == (trouble == crash.FailedOver) && (o.sentinel(seed) || trouble != crash.FailedOver) || !ofRedis(trouble) {
			s.Faults = append(s.Faults, trouble)
		}
	}
	return s
}

// load is a mix of calls that makes the tasks in time.
func (o *options) load() (l *load, perSecond float64) {
	l = &load{pace: make(chan struct{}), choices: everything, ahead: 5 * o.failoverAfter}
	each := float64(o.tasks) / o.duration.Seconds()
	if o.job {
		l.choices, l.batch = job, 500
		return l, max(1, each/500)
	}
	perSecond = min(max(each/2, 25), 120)
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
