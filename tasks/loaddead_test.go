package tasks

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// The start reads who is dead, not what they weigh.
func TestStartWithLargeDeadTasks(t *testing.T) {
	server := redistest.Start(t)
	open := func(url string) *redisledger.Ledger {
		l, err := redisledger.Open(redisledger.Options{URL: url, Node: "a", Shards: 4, Log: slog.New(slog.DiscardHandler)})
		want(t, "redisledger.Open", err, nil)
		return l
	}
	l := open(server.URL())
	terms, err := l.Adopt(t.Context())
	want(t, "Adopt", err, nil)
	const dead = 200
	for i := range dead {
		id := []byte(fmt.Sprint("dead-", i))
		f := fields{revision: 1, state: recDead, next: 1000, topic: []byte("x"), payload: []byte(`"` + strings.Repeat("y", 65_000) + `"`)}
		data := f.encode(nil)
		pending := recovery.Spot{Place: recovery.Pending, At: 1000}
		for _, c := range []recovery.Change{
			{ID: id, To: pending, Data: data},
			{ID: id, From: pending, To: recovery.Spot{Place: recovery.Dead, At: 1000, Label: "x"}, Data: data},
		} {
			var b recovery.Batch
			b.Add(c)
			want(t, "Apply", l.Apply(t.Context(), terms.ShardOf(id), &b), nil)
		}
	}
	want(t, "Close", l.Close(), nil)

	proxy := redistest.NewProxy(t, server.Addr)
	proxy.Throttle(4_000_000) // 13 MB would take 3.3 s
	s, err := Open(t.Context(), open(proxy.URL()), Config{Log: slog.New(slog.DiscardHandler)})
	want(t, "Open", err, nil)
	defer s.Close(t.Context())
	if st := s.Stats(); st.Total.Dead != dead {
		t.Errorf("%d are dead, want %d", st.Total.Dead, dead)
	}
	if _, err := s.Schedule(t.Context(), Request{ID: "dead-7", Topic: "x"}); err == nil {
		t.Error("a dead id is free")
	}
}
