package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// costWindow is for how long commands are counted: as long as the pause between two looks at
// the owners of all shards in a fleet of three, with a failover time of 10 s.
const costWindow = 30 * time.Second

// BenchmarkFleetCommands counts the commands that Redis executes for each node of a fleet, those
// within scripts included, with the default failover time and number of shards.
func BenchmarkFleetCommands(b *testing.B) {
	for _, n := range []int{3, 10, 30} {
		b.Run(fmt.Sprintf("%dNodes", n), func(b *testing.B) {
			server := redistest.Start(b)
			nodes := costNodes(b, redisledger.Options{URL: server.URL()}, n)
			for _, load := range []struct {
				name  string
				begin func(ctx context.Context, s *Scheduler, i int)
			}{
				{"Idle", func(context.Context, *Scheduler, int) {}},
				{"Waiting", func(ctx context.Context, s *Scheduler, _ int) {
					for ctx.Err() == nil {
						_, _ = s.Reserve(ctx, "empty", 1, time.Minute, 0)
					}
				}},
				{"Events", func(ctx context.Context, s *Scheduler, _ int) {
					u, err := s.Admin().FleetSubscribe(ctx, EventFilter{})
					if err != nil {
						b.Error(err)
						return
					}
					defer u.Close()
					for err == nil {
						_, err = u.Next(ctx)
					}
				}},
				{"Chosen", func(ctx context.Context, s *Scheduler, i int) {
					tick := time.NewTicker(time.Second)
					defer tick.Stop()
					for made := 0; ; made++ {
						select {
						case <-ctx.Done():
							return
						case <-tick.C:
							_, err := s.Schedule(ctx, Request{ID: fmt.Sprintf("order-%d-%d", i, made), Topic: "x", Delay: time.Hour})
							if err != nil && ctx.Err() == nil {
								b.Error(err)
							}
						}
					}
				}},
			} {
				b.Run(load.name, func(b *testing.B) {
					for b.Loop() {
						ctx, cancel := context.WithCancel(b.Context())
						var all sync.WaitGroup
						for i, s := range nodes {
							all.Go(func() { load.begin(ctx, s, i) })
						}
						time.Sleep(2 * time.Second) // until receivers are known to all nodes
						before := commandsOf(server)
						time.Sleep(costWindow)
						count := commandsOf(server) - before
						cancel()
						all.Wait()
						b.ReportMetric(float64(count)/costWindow.Seconds()/float64(n), "commands/s/node")
					}
				})
			}
			b.Run("CancelGroup", func(b *testing.B) {
				const calls = 50
				for b.Loop() {
					before := commandsOf(server)
					began := time.Now()
					for range calls {
						if _, err := nodes[0].CancelGroup(b.Context(), "none"); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(commandsOf(server)-before)/calls, "commands/call")
					b.ReportMetric(float64(calls)/time.Since(began).Seconds(), "calls/s")
				}
			})
			b.Run("CancelGroup32Callers", func(b *testing.B) {
				for b.Loop() {
					const calls, callers = 20, 32
					before, began := commandsOf(server), time.Now()
					var all sync.WaitGroup
					for range callers {
						all.Go(func() {
							for range calls {
								if _, err := nodes[0].CancelGroup(b.Context(), "none"); err != nil {
									b.Error(err)
								}
							}
						})
					}
					all.Wait()
					b.ReportMetric(float64(commandsOf(server)-before)/calls/callers, "commands/call")
					b.ReportMetric(calls*callers/time.Since(began).Seconds(), "calls/s")
				}
			})
		})
	}
}

// costNodes starts so many nodes, and waits until they know one another.
func costNodes(b testing.TB, o redisledger.Options, n int) []*Scheduler {
	b.Helper()
	var nodes []*Scheduler
	for i := range n {
		o.Node, o.Log = fmt.Sprintf("n%d", i), slog.New(slog.DiscardHandler)
		ledger, err := redisledger.Open(o)
		if err != nil {
			b.Fatal(err)
		}
		s, err := Open(b.Context(), ledger, Config{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close(context.Background()) })
		nodes = append(nodes, s)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		settled := !slices.ContainsFunc(nodes, func(s *Scheduler) bool {
			peers, err := s.Admin().Nodes(b.Context())
			return err != nil || len(peers) != n || rig.Cluster(s).NoPeers() || !rig.Cluster(s).IsIndexed()
		})
		if settled {
			return nodes
		}
		if time.Now().After(deadline) {
			b.Fatal("the nodes do not know one another")
		}
	}
}

// What an idle node sends to Redis does not grow with the number of nodes. Both fleets are counted
// at the same time, so that a busy machine slows both down. One command a second for each other
// node would be a third more.
func TestIdleCommandsAmongManyNodes(t *testing.T) {
	t.Parallel()
	const few, many, window = 3, 12, 10 * time.Second
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	for i, n := range []int{few, many} {
		costNodes(t, redisledger.Options{URL: servers[i].URL(), Shards: 1}, n)
	}
	time.Sleep(3 * time.Second) // until what a start leads to is over
	before := []int64{commandsOf(servers[0]), commandsOf(servers[1])}
	time.Sleep(window)
	rate := func(i, n int) float64 {
		return float64(commandsOf(servers[i])-before[i]) / window.Seconds() / float64(n)
	}
	one, other := rate(0, few), rate(1, many)
	t.Logf("%.1f commands a second and node among %d, %.1f among %d", one, few, other, many)
	if one == 0 || other > 1.2*one {
		t.Errorf("an idle node sends %.1f commands a second among %d nodes, and %.1f among %d", one, few, other, many)
	}
}

var commandCalls = regexp.MustCompile(`(?m)^cmdstat_[^:]*:calls=(\d+)`)

// commandsOf counts what a server has executed.
func commandsOf(server *redistest.Server) (count int64) {
	for _, m := range commandCalls.FindAllStringSubmatch(server.Do("info", "commandstats").(string), -1) {
		n, _ := strconv.ParseInt(m[1], 10, 64)
		count += n
	}
	return count
}
