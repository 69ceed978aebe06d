package redisledger

import (
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// The keys that are told are those that Redis has, with the ids in them but for the anchor, and the
// node that has the shard.
func TestStored(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "10.0.0.5:7480", still)
	b := join(t, server.URL(), "b", still)
	shards := a.opts.Shards
	before, err := b.Stored(t.Context(), "10.0.0.5:7480", shards)
	if err != nil || len(before) != shards {
		t.Fatalf("%d shards, %v", len(before), err)
	}
	if first := before[0]; !strings.HasSuffix(first.Pending, "{10.0.0.5:7480/0}:pending") || !strings.HasSuffix(first.Tasks, "{10.0.0.5:7480/0}:tasks") ||
		first.Count != 0 || first.Owner != "10.0.0.5:7480" {
		t.Errorf("%+v", first)
	}
	server.Do("sadd", before[shards-1].Pending, "order-1", "order-2")
	after, err := b.Stored(t.Context(), "10.0.0.5:7480", shards)
	if err != nil || after[shards-1].Count != 2 {
		t.Errorf("%+v, %v", after, err)
	}
	if unknown, err := b.Stored(t.Context(), "none-such", 1); err != nil || unknown[0].Owner != "" || unknown[0].Count != 0 {
		t.Errorf("of a node that does not exist: %+v, %v", unknown, err)
	}
	if _, err := b.Stored(t.Context(), "{", 1); err == nil {
		t.Error("no error for a name that breaks the keys")
	}
}
