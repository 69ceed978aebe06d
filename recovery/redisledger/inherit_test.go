package redisledger

import (
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// fromSpool is a creation that comes from a spool.
func fromSpool(id, data, spool string, number int64) recovery.Change {
	c := put(id, data)
	c.Mark = recovery.Mark{Spool: spool, Number: number}
	return c
}

func wantMark(t *testing.T, l *Ledger, spool string, want int64) {
	t.Helper()
	if got, err := l.SpoolMark(t.Context(), spool, "any"); err != nil || got != want {
		t.Errorf("mark of %s: %d, %v, want %d", spool, got, err, want)
	}
}

// Tasks that came from a spool before do not come back after they are gone, whichever process sends
// them again; and another spool's numbers are separate.
func TestSpoolInheritedOnce(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	l := v.open(t)
	adopt(t, l)
	wantMark(t, l, "s", 0)
	batch := []recovery.Change{fromSpool("a", "1", "s", 1), fromSpool("b", "1", "s", 2)}
	apply(t, l, batch...)
	wantMark(t, l, "s", 2)
	apply(t, l, remove("a"), put("c", "1"))
	v.crash()
	l = v.open(t)
	adopt(t, l)
	apply(t, l, batch...)
	apply(t, l, fromSpool("d", "1", "s", 3), fromSpool("e", "1", "s", 1<<52+1))
	wantMark(t, l, "s", 1<<52+1)
	apply(t, l, fromSpool("x", "1", "other", 1))
	wantMark(t, l, "other", 1)
	wantHeld(t, server.Client(), l, content{"b": "1", "c": "1", "d": "1", "e": "1", "x": "1"})
	if got := l.member.Term(0).Sequence; got != 3 {
		t.Errorf("3 batches were counted as %d", got)
	}

	// Marks are not tasks: a scan finds nothing amiss, and an empty shard retires.
	m := newMemory()
	if err := recovery.Replay(t.Context(), l, m, nil); err != nil {
		t.Fatal(err)
	}
	m.compare(t, content{"b": "1", "c": "1", "d": "1", "e": "1", "x": "1"})
	s := l.member.Term(0)
	retire := func() any {
		return conn.RetireScript.Run(t.Context(), l.client, s.Keys[:3], s.Token.String(), "-#-#9").Val()
	}
	if got := retire(); got != int64(0) {
		t.Errorf("a shard with tasks is retired: %v", got)
	}
	counts := conn.VerifyScript.Run(t.Context(), l.client, s.Keys.Living()).Val().([]any)
	if counts[2] != counts[3] {
		t.Errorf("verify counts %v records and %v ids", counts[2], counts[3])
	}
	apply(t, l, remove("b"), remove("c"), remove("d"), remove("e"), remove("x"))
	if got := retire(); got != int64(1) {
		t.Errorf("an empty shard is not retired: %v", got)
	}
}

// A Redis that is out of memory takes nothing from a spool, and does not count it as taken.
func TestSpoolMeetsFullRedis(t *testing.T) {
	server := redistest.Start(t)
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	server.Do("config", "set", "maxmemory", "1")
	b := batchOf(fromSpool("a", "1", "s", 1))
	if err := l.Apply(t.Context(), 0, b); err == nil {
		t.Fatal("a full Redis has taken a task")
	}
	wantMark(t, l, "s", 0)
	server.Do("config", "set", "maxmemory", "0")
	apply(t, l, fromSpool("a", "1", "s", 1))
	wantMark(t, l, "s", 1)
	wantHeld(t, server.Client(), l, content{"a": "1"})
}
