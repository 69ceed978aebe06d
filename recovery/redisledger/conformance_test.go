package redisledger

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/identity"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

func TestMain(m *testing.M) {
	runChild()
	// They wait most of the time, for servers and clocks. A -parallel of the command line counts.
	_ = flag.Set("test.parallel", "8")
	// A pool whose server is down tries it once a second, and once more after Close.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// A life is a ledger in a process of its own, as far as the registry can see.
type life struct {
	*Ledger
	dead *atomic.Bool
}

// lives makes ledgers of one node, each in a process of its own.
type lives struct {
	opts Options
	all  []life
}

func newLives(url string) *lives {
	return &lives{opts: Options{
		URL:           url,
		Node:          "127.0.0.1:7480",
		FailoverAfter: 500 * time.Millisecond,
		Log:           quiet(),
	}}
}

func (v *lives) open(t testing.TB) *Ledger {
	t.Helper()
	opts := v.opts
	pid := len(v.all) + 1
	opts.process = &identity.Process{Host: "test", Machine: "m", Boot: "b", Space: "s", PID: pid, Started: 1}
	opts.fateOf = func(p identity.Process) identity.Fate {
		if p.PID == 0 {
			return identity.FateUnknown // its entry cannot be read
		}
		if p.PID <= len(v.all) && v.all[p.PID-1].dead.Load() {
			return identity.Gone
		}
		return identity.Alive
	}
	l, err := Open(opts)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	v.all = append(v.all, life{l, new(atomic.Bool)})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// crash ends the last process without any clean-up.
func (v *lives) crash() {
	last := v.all[len(v.all)-1]
	last.closing.Do(func() { last.err = last.end(false) })
	last.dead.Store(true)
}

func (v *lives) Open(t *testing.T) recovery.Ledger { return v.open(t) }
func (v *lives) Crash(*testing.T)                  { v.crash() }

// conform runs a suite with each kind of Redis. Its tests share one, and each has keys of its own.
func conform(t *testing.T, run func(t *testing.T, fresh func() *lives)) {
	for name, start := range map[string]func(t *testing.T) string{
		"Standalone": func(t *testing.T) string { return redistest.Start(t).URL() },
		"Sentinel":   func(t *testing.T) string { return redistest.StartSentinel(t).URL() },
		"Cluster":    func(t *testing.T) string { return redistest.StartCluster(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			n := 0
			run(t, func() *lives {
				n++
				v := newLives(url)
				v.opts.Prefix = fmt.Sprintf("test%d:", n)
				return v
			})
		})
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conform(t, func(t *testing.T, fresh func() *lives) {
		ledgertest.Run(t, func(*testing.T) ledgertest.Harness { return fresh() })
	})
}

// A fleetHarness makes nodes that share one Redis.
type fleetHarness struct {
	fresh func() *lives     // each time with the same options
	nodes map[string]*lives // by name
}

func (h fleetHarness) Join(t *testing.T, node string, shards int) recovery.Fleet {
	v := h.nodes[node]
	if v == nil {
		v = h.fresh()
		v.opts.Node, v.opts.Shards = node, shards
		slow(&v.opts)
		h.nodes[node] = v
	}
	return v.open(t)
}

func (h fleetHarness) Crash(_ *testing.T, node recovery.Fleet) {
	h.nodes[node.(*Ledger).opts.Node].crash()
}

func (fleetHarness) Adopt(t *testing.T, by, dead recovery.Fleet) {
	m := fleetNode{Ledger: by.(*Ledger)}
	m.age(t, m.opts.FailoverAfter, dead.(*Ledger).opts.Node)
	m.look(t)
}

func TestFleetConformance(t *testing.T) {
	t.Parallel()
	conform(t, func(t *testing.T, fresh func() *lives) {
		ledgertest.RunFleet(t, func(*testing.T) ledgertest.FleetHarness {
			opts := fresh().opts
			return fleetHarness{func() *lives { return &lives{opts: opts} }, map[string]*lives{}}
		})
	})
}
