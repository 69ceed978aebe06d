package redisledger

import (
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// The master dies and its replica has all writes: the owner goes on.
func TestFailover(t *testing.T) {
	t.Parallel()
	aloneAndBeside(t, func(t *testing.T, v *lives, beside func()) {
		servers := redistest.StartSentinel(t)
		v.opts.URL, v.opts.Shards = servers.URL(), 1
		l := v.open(t)
		var d diary
		d.watch(l)
		adopt(t, l)
		beside()
		apply(t, l, put("a", "1"))
		servers.Master.Do("wait", 1, 5000)
		servers.FailOver()
		persist(t, l, put("b", "2"))
		wantHeld(t, servers.Replica.Client(), l, content{"a": "1", "b": "2"})
	})
}

// The master dies, and its replica lags behind: the owner claims the shard again and reports it,
// whether it is writing or idle.
func TestFailoverLosesWrites(t *testing.T) {
	t.Parallel()
	aloneAndBeside(t, func(t *testing.T, v *lives, beside func()) {
		servers := redistest.StartSentinel(t)
		v.opts.URL, v.opts.Shards = servers.URL(), 2
		l := v.open(t)
		var d diary
		d.watch(l)
		adopt(t, l)
		beside()
		apply(t, l, put("a", "1"), put("b", "1"))
		servers.Master.Do("wait", 1, 5000)
		servers.ShutReplicaOut()
		apply(t, l, remove("a"), put("c", "2"))
		if err := l.Apply(t.Context(), 1, batchOf(put("x", "2"))); err != nil {
			t.Fatal(err)
		}
		servers.FailOver()
		d.wait(t, 2)
		wantHeld(t, servers.Replica.Client(), l, content{"a": "1", "b": "1"})
		persist(t, l, put("d", "3"))
		wantHeld(t, servers.Replica.Client(), l, content{"a": "1", "b": "1", "d": "3"})
		m := newMemory()
		if err := recovery.Replay(t.Context(), l, m, nil); err != nil {
			t.Fatal(err)
		}
		m.compare(t, content{"a": "1", "b": "1", "d": "3"})
	})
}
