package redisledger

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

func TestMain(m *testing.M) {
	runChild()
	goleak.VerifyTestMain(m)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// A life is a ledger in a process of its own, as far as the registry can tell.
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
	opts.process = &process{Host: "test", Machine: "m", Boot: "b", Space: "s", PID: pid, Started: 1}
	opts.fateOf = func(p process) fate {
		if p.PID <= len(v.all) && v.all[p.PID-1].dead.Load() {
			return gone
		}
		return alive
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

func TestConformance(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) string{
		"Standalone": func(t *testing.T) string { return redistest.Start(t).URL() },
		"Sentinel":   func(t *testing.T) string { return redistest.StartSentinel(t).URL() },
		"Cluster":    func(t *testing.T) string { return redistest.StartCluster(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			url := start(t)
			n := 0
			ledgertest.Run(t, func(*testing.T) ledgertest.Harness {
				n++
				v := newLives(url)
				v.opts.Prefix = fmt.Sprintf("test%d:", n)
				return v
			})
		})
	}
}
