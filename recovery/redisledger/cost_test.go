package redisledger

import (
	"context"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

var commandCalls = regexp.MustCompile(`(?m)^cmdstat_([^:]*):calls=(\d+)`)

// executed counts what a server executes while f runs, without the counting itself.
func executed(server *redistest.Server, f func()) (all int) {
	count := func() (n int) {
		for _, m := range commandCalls.FindAllStringSubmatch(server.Do("info", "commandstats").(string), -1) {
			if calls, _ := strconv.Atoi(m[2]); m[1] != "info" && m[1] != "hello" {
				n += calls
			}
		}
		return n
	}
	before := count()
	f()
	return count() - before
}

// What a node reads from Redis about other nodes does not grow with their number, unless it reads
// the owners of shards; then one read serves all callers that wait.
func TestCostOfManyNodes(t *testing.T) {
	for _, nodes := range []int{3, 30} {
		server := redistest.Start(t)
		a := join(t, server.URL(), "self", func(o *Options) { still(o); o.Shards = 16 })
		fillRegistry(t, a.Ledger, nodes)
		want := func(what string, most int, f func(ctx context.Context) error) {
			t.Helper()
			if got := executed(server, func() {
				if err := f(t.Context()); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}); got > most {
				t.Errorf("%s among %d nodes takes %d commands; want %d at most", what, nodes, got, most)
			}
		}
		want("a first look at the nodes", 3, a.member.Poll)
		want("a look at the nodes", 3, a.member.Poll)
		want("Homes", 3, func(ctx context.Context) error { _, err := a.ShardIDs(ctx); return err })
		want("Peers", 0, func(ctx context.Context) error {
			peers, err := a.Peers(ctx)
			if len(peers) != nodes {
				t.Errorf("there are %d of %d nodes", len(peers), nodes)
			}
			return err
		})
		want("Unindexed", 0, func(ctx context.Context) error { _, err := a.Unindexed(ctx); return err })

		a.member.Probe().ForgetOwners()
		shardIDs, err := a.ShardIDs(t.Context())
		if err != nil || len(shardIDs) != 16*nodes {
			t.Fatalf("Homes = %d, %v", len(shardIDs), err)
		}
		const callers = 32
		together := func(f func(ctx context.Context) error) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				var all sync.WaitGroup
				release := a.member.Probe().HoldReads()
				for range callers {
					all.Go(func() {
						if err := f(ctx); err != nil {
							t.Error(err)
						}
					})
				}
				eventually(t, "all callers wait", func() bool { return waitingForLocks() >= callers })
				release()
				all.Wait()
				return nil
			}
		}
		want("Nodes, by many callers", 3+16*nodes, together(func(ctx context.Context) error { _, err := a.Nodes(ctx); return err }))
		one := shardIDs[:1]
		want("Holders of one shard", 4, func(ctx context.Context) error {
			found, err := a.Holders(ctx, one)
			if len(found) != 1 {
				t.Errorf("found %v", found)
			}
			return err
		})
		want("Holders of none", 0, func(ctx context.Context) error { _, err := a.Holders(ctx, nil); return err })
		want("all owners, by many callers", 16*nodes, together(a.member.Probe().RefreshOwners))
	}
}

// waitingForLocks counts the goroutines that wait for a mutex.
func waitingForLocks() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "[sync.Mutex.Lock")
}
