package redisledger

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A diary is a Watcher that records its calls.
type diary struct {
	mu      sync.Mutex // guards everything below
	rewound []int
	lost    []error
}

func (d *diary) watch(l *Ledger) {
	l.Watch(recovery.Watcher{
		Rewound: func(shard int) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.rewound = append(d.rewound, shard)
		},
		Lost: func(_ int, err error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.lost = append(d.lost, err)
		},
	})
}

// wait waits until each of n shards was rewound.
func (d *diary) wait(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the shards are rewound", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		seen := slices.Compact(slices.Sorted(slices.Values(d.rewound)))
		return len(seen) == n
	})
}

// epoch is the epoch of the first shard's token.
func epoch(t *testing.T, l *Ledger) int64 {
	t.Helper()
	p, err := l.member.Term(0).Position()
	if err != nil {
		t.Fatal(err)
	}
	return p.Token.Epoch
}

// aloneAndBeside runs a test of a Redis that loses data for a node alone, and for one beside
// another node, which must change nothing that it does not own. beside starts that other node.
func aloneAndBeside(t *testing.T, test func(t *testing.T, v *lives, beside func())) {
	t.Run("alone", func(t *testing.T) { test(t, newLives(""), func() {}) })
	t.Run("beside another", func(t *testing.T) {
		v := newLives("")
		v.opts.FailoverAfter = 5 * time.Second // a live node must not look dead on a busy machine
		test(t, v, func() {
			t.Helper()
			join(t, v.opts.URL, "b", func(o *Options) { o.FailoverAfter = v.opts.FailoverAfter }).put(t)
			eventually(t, "it knows the other one", func() bool { return !v.all[len(v.all)-1].Standing().Alone })
		})
	})
}

// Redis comes back empty: the owner reclaims all of its shards, with or without traffic, and its
// name.
func TestEmptyDataset(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]func(s *redistest.Server){
		"flushed": func(s *redistest.Server) { s.Do("flushall") },
		"restarted without its files": func(s *redistest.Server) {
			s.Kill()
			s.Start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			aloneAndBeside(t, func(t *testing.T, v *lives, beside func()) {
				server := redistest.Start(t)
				v.opts.URL, v.opts.Shards = server.URL(), 4
				l := v.open(t)
				var d diary
				d.watch(l)
				adopt(t, l)
				beside()
				apply(t, l, put("a", "1"))
				apply(t, l, put("b", "1"))
				outage(server)
				persist(t, l, put("c", "2"))
				wantHeld(t, server.Client(), l, content{"c": "2"})
				d.wait(t, 4)
				eventually(t, "the name is registered again", func() bool {
					return server.Do("hexists", "lapse:nodes", v.opts.Node) == int64(1)
				})
				if got := epoch(t, l); got != 2 {
					t.Errorf("the token's epoch is %d, want 2", got)
				}
				// And once more.
				outage(server)
				persist(t, l, put("d", "3"))
				wantHeld(t, server.Client(), l, content{"d": "3"})
				v.crash()
				next := v.open(t)
				adopt(t, next)
				wantHeld(t, server.Client(), next, content{"d": "3"})
			})
		})
	}
}

// A node that was alone reclaims its shards however long Redis was away: no other node could have
// adopted them.
func TestEmptyDatasetAfterALongOutage(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	v.opts.FailoverAfter = time.Hour // no heartbeat but that of Adopt
	l := v.open(t)
	adopt(t, l)
	l.member.Answered(time.Now().Add(-2 * time.Hour))
	server.Do("flushall")
	apply(t, l, put("a", "1"))
	wantHeld(t, server.Client(), l, content{"a": "1"})
}

// Others may have taken a node for dead before Redis lost everything. It neither brings back tasks
// that they have finished, nor gives up what may be the only memory: a node that holds the shard
// claims it, and this one claims it itself when no other one has for several heartbeats.
func TestEmptyDatasetAfterOversleeping(t *testing.T) {
	for name, adopted := range map[string]bool{"nobody has it": false, "another node has it": true} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			v := oneShard(server.URL())
			v.opts.FailoverAfter = time.Hour // no heartbeat
			l := v.open(t)
			adopt(t, l)
			apply(t, l, put("a", "1"))
			server.Do("hset", "lapse:nodes", "another", "{}")
			if err := l.member.Beat(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.member.Answered(time.Now().Add(-2 * time.Hour))
			l.member.Probe().SeenHeld(time.Now().Add(-2 * time.Hour))
			server.Do("flushall")
			b := batchOf(put("b", "1"))
			for range 2 {
				if err := l.Apply(t.Context(), 0, b); err == nil || errors.Is(err, recovery.ErrLost) {
					t.Fatalf("Apply: %v, want doubt", err)
				}
				if l.member.KeepOnce(); l.Standing().Certain {
					t.Fatal("it is certain of what another one may hold")
				}
			}
			if adopted {
				server.Do("hset", l.member.Term(0).Keys.Tasks(), layout.OwnerField, layout.NewToken("another", "x", 3).String())
			}
			if err := l.member.Probe().Age(31 * time.Minute); err != nil {
				t.Fatal(err)
			}
			switch err := l.Apply(t.Context(), 0, b); {
			case adopted && !errors.Is(err, recovery.ErrLost):
				t.Errorf("Apply: %v, want ErrLost", err)
			case !adopted && err != nil:
				t.Error(err)
			case !adopted:
				wantHeld(t, server.Client(), l, content{"b": "1"})
			}
		})
	}
}

// The answer to the claim that reclaims a shard is lost: the next claim counts as its repetition.
func TestClaimUnanswered(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	v.opts.FailoverAfter = time.Hour // no heartbeat
	l := v.open(t)
	var d diary
	d.watch(l)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	server.Do("flushall")
	loss := &lossOf{digest: conn.ClaimScript.Digest}
	l.client.AddHook(loss)
	b := batchOf(put("b", "1"))
	if err := l.Apply(t.Context(), 0, b); !errors.Is(err, errNoAnswer) {
		t.Fatalf("Apply: %v", err)
	}
	if err := l.Apply(t.Context(), 0, b); err != nil {
		t.Fatal(err)
	}
	d.wait(t, 1)
	wantHeld(t, server.Client(), l, content{"b": "1"})
	if got := epoch(t, l); got != 2 {
		t.Errorf("the token's epoch is %d, want 2", got)
	}
}

// A lossOf loses the answer to the first run of a script.
type lossOf struct {
	network
	digest string
	done   bool
}

func (n *lossOf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if len(cmd.Args()) > 1 && cmd.Args()[1] == n.digest && !n.done {
			n.done = true
			cmd.SetErr(errNoAnswer)
			return errNoAnswer
		}
		return err
	}
}

// A single token is missing while Redis has kept the rest: the owner reclaims the shard. It waits
// for the claims of others if they may have adopted it before the loss; also if the owner has sent
// heartbeats again since.
func TestMissingToken(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		peers bool          // another node is registered
		gap   time.Duration // between two heartbeats, after the shard was seen last
		doubt bool
	}{
		"alone":                        {},
		"alone, after a gap":           {gap: 2 * time.Hour},
		"among others":                 {peers: true, gap: time.Minute},
		"among others, after a gap":    {peers: true, gap: 2 * time.Hour, doubt: true},
		"among others, barely in time": {peers: true, gap: 59 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			v := oneShard(server.URL())
			v.opts.FailoverAfter = time.Hour // no heartbeat but these
			l := v.open(t)
			var d diary
			d.watch(l)
			adopt(t, l)
			apply(t, l, put("a", "1"))
			if test.peers {
				server.Do("hset", "lapse:nodes", "another", "{}")
			}
			l.member.KeepOnce()
			l.member.Answered(time.Now().Add(-test.gap))
			if err := l.member.Beat(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.member.Answered(time.Now()) // and before the shards are checked, one is lost
			server.Do("del", l.member.Term(0).Keys.Tasks())
			err := l.Apply(t.Context(), 0, batchOf(put("b", "1")))
			if (err != nil) != test.doubt || errors.Is(err, recovery.ErrLost) {
				t.Fatalf("Apply: %v; doubt wanted: %v", err, test.doubt)
			}
			if !test.doubt {
				d.wait(t, 1)
			}
		})
	}
}

// The registry is lost with everything else. Its lack of other nodes by then does not turn a node
// that may have been adopted from into one that was alone.
func TestLostRegistryNamesNoNode(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	v.opts.FailoverAfter = time.Hour // no heartbeat but these
	l := v.open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	beat := func() {
		t.Helper()
		began := time.Now()
		if err := l.member.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.member.Answered(began)
	}
	server.Do("hset", "lapse:nodes", "another", "{}")
	beat()
	l.member.Answered(time.Now().Add(-2 * time.Hour))
	beat() // and the shards cannot be checked
	server.Do("flushall")
	beat() // registers again
	beat()
	if err := l.Apply(t.Context(), 0, batchOf(put("b", "1"))); err == nil || errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply: %v, want doubt", err)
	}
}

// An older file is restored under a running owner: first one of its own time, then one of its
// predecessor's.
func TestOlderFileRestored(t *testing.T) {
	t.Parallel()
	aloneAndBeside(t, func(t *testing.T, v *lives, beside func()) {
		server := redistest.Start(t, "dbfilename dump.rdb")
		dump := filepath.Join(server.Dir, "dump.rdb")
		save := func() []byte {
			t.Helper()
			server.Do("save")
			b, err := os.ReadFile(dump)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		restore := func(b []byte) {
			t.Helper()
			server.Kill()
			if err := os.WriteFile(dump, b, 0o600); err != nil {
				t.Fatal(err)
			}
			server.Start()
		}
		v.opts.URL, v.opts.Shards = server.URL(), 1
		first := v.open(t)
		adopt(t, first)
		beside()
		apply(t, first, put("a", "1"))
		predecessors := save()
		v.crash()

		l := v.open(t)
		var d diary
		d.watch(l)
		adopt(t, l)
		apply(t, l, put("b", "2"))
		own := save()
		apply(t, l, remove("a"))
		apply(t, l, put("c", "2"))

		restore(own)
		persist(t, l, put("d", "3"))
		wantHeld(t, server.Client(), l, content{"a": "1", "b": "2", "d": "3"})
		d.wait(t, 1)

		restore(predecessors)
		persist(t, l, put("e", "4"))
		wantHeld(t, server.Client(), l, content{"a": "1", "e": "4"})
		eventually(t, "the registration is the newest again", func() bool {
			held, _, err := l.member.ReadEntry(t.Context())
			return err == nil && held.Incarnation == l.member.Self.Incarnation
		})
		if got := epoch(t, l); got != 4 {
			t.Errorf("the token's epoch is %d, want 4", got)
		}
		// The shard's content can be scanned, so that memory can delete what it does not know.
		var ids []string
		if err := l.ScanShard(t.Context(), 0, func(page []recovery.Entry) error {
			for _, e := range page {
				ids = append(ids, string(e.ID))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(ids)
		if !slices.Equal(ids, []string{"a", "e"}) {
			t.Errorf("ScanShard gives %v", ids)
		}
	})
}

// Writes are lost while a replay runs: it begins anew.
func TestLostWritesDuringReplay(t *testing.T) {
	t.Parallel()
	aloneAndBeside(t, func(t *testing.T, v *lives, beside func()) {
		server := redistest.Start(t)
		v.opts.URL, v.opts.Shards = server.URL(), 1
		l := v.open(t)
		adopt(t, l)
		beside()
		for _, part := range numbered(10_000, member.MaxChanges) {
			apply(t, l, part...)
		}
		v.crash()
		l = v.open(t)
		adopt(t, l)
		flushed := false
		err := l.Scan(t.Context(), func([]recovery.Entry) error {
			if !flushed {
				flushed = true
				server.Do("flushall")
			}
			return nil
		})
		if err == nil {
			t.Error("a scan of what was lost meanwhile is called complete")
		}
		m := newMemory()
		if err := recovery.Replay(t.Context(), l, m, nil); err != nil {
			t.Fatal(err)
		}
		m.compare(t, content{})
	})
}
