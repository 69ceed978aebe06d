package respapi_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestStreamGoRedis uses the verbs of streams as go-redis has them.
func TestStreamGoRedis(t *testing.T) {
	r, _ := streamRig(t)
	for _, protocol := range []int{2, 3} {
		c := redis.NewClient(&redis.Options{Addr: r.addr, Protocol: protocol})
		ctx := t.Context()
		if err := c.XGroupCreateMkStream(ctx, "expired:t", "g", "$").Err(); err == nil || err.Error() != "BUSYGROUP Consumer Group name already exists" {
			t.Errorf("XGROUP CREATE: %v", err)
		}
		read := &redis.XReadGroupArgs{Group: "g", Consumer: "a", Streams: []string{"expired:t", ">"}, Count: 10, Block: time.Millisecond}
		if _, err := c.XReadGroup(ctx, read).Result(); !errors.Is(err, redis.Nil) {
			t.Errorf("XREADGROUP without entries: %v", err)
		}
		r.expire("t", "k", 5)
		streams, err := c.XReadGroup(ctx, read).Result()
		if err != nil || len(streams) != 1 || len(streams[0].Messages) != 5 {
			t.Fatalf("XREADGROUP: %v, %v", streams, err)
		}
		messages := streams[0].Messages
		if m := messages[3]; streams[0].Stream != "expired:t" || m.Values["key"] != "k3" || m.Values["value"] != "v" {
			t.Errorf("the fourth entry of %s is %v", streams[0].Stream, m)
		}
		pending, err := c.XPending(ctx, "expired:t", "g").Result()
		if err != nil || pending.Count != 5 || pending.Consumers["a"] != 5 || pending.Lower != messages[0].ID || pending.Higher != messages[4].ID {
			t.Errorf("XPENDING: %+v, %v", pending, err)
		}
		claimed, next, err := c.XAutoClaim(ctx, &redis.XAutoClaimArgs{Stream: "expired:t", Group: "g", Consumer: "b", Start: "0", Count: 2}).Result()
		if err != nil || len(claimed) != 2 || claimed[1].Values["key"] != "k1" || next != messages[2].ID {
			t.Errorf("XAUTOCLAIM: %v, %s, %v", claimed, next, err)
		}
		ids, err := c.XClaimJustID(ctx, &redis.XClaimArgs{Stream: "expired:t", Group: "g", Consumer: "a", Messages: []string{messages[2].ID}}).Result()
		if err != nil || len(ids) != 1 || ids[0] != messages[2].ID {
			t.Errorf("XCLAIM: %v, %v", ids, err)
		}
		list, err := c.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: "expired:t", Group: "g", Start: "-", End: "+", Count: 10, Consumer: "b"}).Result()
		if err != nil || len(list) != 2 || list[0].RetryCount != 2 {
			t.Errorf("XPENDING with a range: %v, %v", list, err)
		}
		info, err := c.XInfoStream(ctx, "expired:t").Result()
		if err != nil || info.Length != 5 || info.Groups != 1 {
			t.Errorf("XINFO STREAM: %+v, %v", info, err)
		}
		full, err := c.XInfoStreamFull(ctx, "expired:t", 3).Result()
		if err != nil || len(full.Groups) != 1 || full.Groups[0].PelCount != 5 || len(full.Groups[0].Pending) != 3 || len(full.Groups[0].Consumers) != 2 {
			t.Errorf("XINFO STREAM FULL: %+v, %v", full, err)
		}
		groups, err := c.XInfoGroups(ctx, "expired:t").Result()
		if err != nil || len(groups) != 1 || groups[0].Name != "g" || groups[0].Pending != 5 || groups[0].Consumers != 2 {
			t.Errorf("XINFO GROUPS: %+v, %v", groups, err)
		}
		consumers, err := c.XInfoConsumers(ctx, "expired:t", "g").Result()
		if err != nil || len(consumers) != 2 || consumers[1].Name != "b" || consumers[1].Pending != 2 {
			t.Errorf("XINFO CONSUMERS: %+v, %v", consumers, err)
		}
		for i, m := range messages {
			if n, err := c.XAck(ctx, "expired:t", "g", m.ID).Result(); err != nil || n != 1 {
				t.Errorf("XACK of entry %d: %d, %v", i, n, err)
			}
		}
		if n, err := c.XLen(ctx, "expired:t").Result(); err != nil || n != 0 {
			t.Errorf("XLEN: %d, %v", n, err)
		}
		c.Close()
	}
}
