package redisledger

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// While Redis has lost the registry or the token of a shard, no node claims to know of all shards.
func TestHoldersAfterALoss(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	open := func(node string) *Ledger {
		v := newLives(url)
		v.opts.Node, v.opts.Shards, v.opts.FailoverAfter = node, 2, 20*time.Second
		l := v.open(t)
		if _, err := l.Adopt(t.Context()); err != nil {
			t.Fatal("Adopt:", err)
		}
		return l
	}
	a, b := open("a"), open("b")
	holders := func() (map[recovery.ShardID]recovery.Holder, error) {
		shardIDs, err := a.ShardIDs(t.Context())
		if err != nil {
			return nil, err
		}
		return a.Holders(t.Context(), shardIDs)
	}
	if all, err := holders(); err != nil || len(all) != 4 {
		t.Fatalf("Holders = %v, %v", all, err)
	}
	back := func(what string) {
		t.Helper()
		eventually(t, what, func() bool { all, err := holders(); return err == nil && len(all) == 4 })
	}

	// The token of a shard, which its holder writes again.
	keys := b.keys.Shard("b", 1)
	tasks := keys.Tasks()
	if err := a.client.HDel(t.Context(), tasks, layout.OwnerField).Err(); err != nil {
		t.Fatal(err)
	}
	if all, err := holders(); err == nil {
		t.Errorf("Holders without a token = %v", all)
	}
	if err := a.client.HSet(t.Context(), tasks, layout.OwnerField, b.member.All()[1].Token.String()).Err(); err != nil {
		t.Fatal(err)
	}
	back("the token is there")

	// The registration of a live node, which registers again.
	if err := a.client.HDel(t.Context(), a.keys.Nodes(), "b").Err(); err != nil {
		t.Fatal(err)
	}
	if all, err := holders(); err == nil {
		t.Errorf("Holders without a node that lives = %v", all)
	}
	back("the node is registered again")

	// And this node's own.
	if err := a.client.HDel(t.Context(), a.keys.Nodes(), "a").Err(); err != nil {
		t.Fatal(err)
	}
	if all, err := holders(); err == nil {
		t.Errorf("Holders without being registered = %v", all)
	}
	back("this node is registered again")
}

// Callers that give up while the registry is being read do not keep a dead node alive.
func TestImpatientCallersDelayNoAdoption(t *testing.T) {
	url := redistest.Start(t).URL()
	v := newLives(url)
	v.opts.Node, v.opts.Shards, v.opts.FailoverAfter = "a", 2, time.Hour
	a := v.open(t)
	if _, err := a.Adopt(t.Context()); err != nil {
		t.Fatal("Adopt:", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.client.AddHook(leaver{cancel})
	_, _ = a.ShardIDs(ctx)
	if ctx.Err() == nil {
		t.Fatal("the caller has not left")
	}
	if _, broken := a.member.Probe().Watched(); broken {
		t.Error("the watch begins anew because a caller has left")
	}
}

// A leaver cancels the caller's context as soon as Redis gets a pipeline.
type leaver struct{ leave func() }

func (l leaver) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (l leaver) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (l leaver) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		l.leave()
		return next(ctx, cmds)
	}
}
