package redisledger

import (
	"fmt"
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// Many ids are found with few commands, whatever their shard, and those that are absent are not.
func TestFindMany(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	v := newLives(server.URL())
	v.opts.Shards = 4
	l := v.open(t)
	defer l.Close()
	terms := adopt(t, l)
	var ids []string
	for n := range 5000 {
		id := fmt.Sprint("task-", n)
		ids = append(ids, id)
		if n%2 == 0 {
			if err := l.Apply(t.Context(), terms.ShardOf([]byte(id)), batchOf(put(id, "record of "+id))); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls := func() (n int) {
		for _, m := range commandCalls.FindAllStringSubmatch(server.Do("info", "commandstats").(string), -1) {
			if m[1] == "hget" || m[1] == "hmget" {
				var c int
				_, _ = fmt.Sscan(m[2], &c)
				n += c
			}
		}
		return n
	}
	before := calls()
	found := map[int]bool{}
	if err := l.FindMany(t.Context(), ids, func(i int, e recovery.Entry) {
		if string(e.ID) != ids[i] || string(e.Data) != "record of "+ids[i] || e.Shard != terms.ShardOf(e.ID) || found[i] {
			t.Errorf("%s: %s in shard %d with %q", ids[i], e.ID, e.Shard, e.Data)
		}
		found[i] = true
	}); err != nil {
		t.Fatal(err)
	}
	for i := range ids {
		if found[i] != (i%2 == 0) {
			t.Errorf("%s found: %t", ids[i], found[i])
		}
	}
	if n := calls() - before; n > 100 {
		t.Errorf("%d commands for %d ids", n, len(ids))
	}
}
