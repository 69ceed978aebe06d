//go:build fault

package crash

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// size is a number from the environment, or what is enough for `make fault`.
func size(t *testing.T, name string, enough int) int {
	text := os.Getenv(name)
	if text == "" {
		return enough
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s must be a number from 1: %q", name, text)
	}
	return n
}

// onOutage are the flags for what a node does that is cut off from Redis.
func onOutage(deliver bool) []string {
	if !flagsOfServe()["--on-outage"] {
		return nil
	}
	return []string{"--on-outage", map[bool]string{true: "deliver", false: "pause"}[deliver]}
}

// TestFleetRounds gives three nodes one fault after the other while clients call and receivers
// pull, and then judges the answers. Its size is set by LAPSE_FLEET_NODES, LAPSE_FLEET_ROUNDS and
// LAPSE_FLEET_TASKS.
func TestFleetRounds(t *testing.T) {
	t.Parallel()
	always := []string{"appendonly yes", "appendfsync always"}
	alone := func(t *testing.T) []entry {
		redis := redistest.Start(t, always...)
		return entries(t, func() entry { return proxied(t, redis) })
	}
	for name, deliver := range map[string]bool{"Pause": false, "Deliver": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fleetRounds(t, newFleet(t, alone(t), append(onOutage(deliver), handover()...)...), deliver, nil)
		})
	}
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t)
		behind := func() entry {
			url, proxies := s.Behind()
			return entry{url: url, proxies: proxies}
		}
		f := newFleet(t, entries(t, behind), append(onOutage(false), handover()...)...)
		fleetRounds(t, f, false, func() {
			over := f.history.Begin(FailedOver, "")
			s.FailOver()
			over()
		})
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, always...)
		behind := func() entry {
			url, proxies := c.Behind()
			return entry{url: url, proxies: proxies}
		}
		f := newFleet(t, entries(t, behind), append(onOutage(false), handover()...)...)
		moving := rig.NewWorkers(t)
		moving.Go(func() { f.moveSlots(moving.Ctx, c) })
		fleetRounds(t, f, false, nil)
		moving.Stop()
	})
}

// moveSlots moves one slot after the other that has keys, key by key, to another master.
func (f *fleet) moveSlots(ctx context.Context, c *redistest.Cluster) {
	clients := make([]*redis.Client, len(c.Masters))
	ids := make([]string, len(c.Masters))
	for i, m := range c.Masters {
		clients[i] = m.Client()
		defer clients[i].Close()
		ids[i], _ = clients[i].Do(ctx, "cluster", "myid").Text()
	}
	failed := func(what string, err error) bool {
		if err != nil && ctx.Err() == nil {
			f.t.Errorf("moving a slot: %s: %v", what, err)
		}
		return err != nil
	}
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	rng := rand.New(rand.NewPCG(5, 5))
	moved := 0
	defer func() { f.t.Logf("%d slots were moved", moved) }()
	// A move that has begun is completed.
	for background := context.WithoutCancel(ctx); ctx.Err() == nil; <-pause.C {
		from := rng.IntN(len(clients))
		to := (from + 1 + rng.IntN(len(clients)-1)) % len(clients)
		key, err := clients[from].RandomKey(ctx).Result()
		if err != nil {
			continue // it has none
		}
		slot := clients[from].ClusterKeySlot(background, key).Val()
		over := f.history.Begin(SlotsMoved, "")
		if failed("importing", clients[to].Do(background, "cluster", "setslot", slot, "importing", ids[from]).Err()) ||
			failed("migrating", clients[from].Do(background, "cluster", "setslot", slot, "migrating", ids[to]).Err()) {
			return
		}
		host, port, _ := net.SplitHostPort(c.Masters[to].Addr)
		for keys := []string{""}; len(keys) > 0; {
			if keys, err = clients[from].ClusterGetKeysInSlot(background, int(slot), 100).Result(); failed("keys", err) {
				return
			}
			for _, key := range keys {
				<-pause.C // requests meet a slot that is split between two masters
				if failed("migrate", clients[from].Do(background, "migrate", host, port, key, 0, 5000).Err()) {
					return
				}
			}
		}
		for i := range clients {
			// The new master comes first, or for an instant no master has the slot.
			c := clients[(to+i)%len(clients)]
			if failed("the new master", c.Do(background, "cluster", "setslot", slot, "node", ids[to]).Err()) {
				return
			}
		}
		over()
		moved++
	}
}

func handover() []string {
	if !flagsOfServe()["--handover"] {
		return nil
	}
	return []string{"--handover"}
}

// entries makes one for each node.
func entries(t *testing.T, one func() entry) []entry {
	list := make([]entry, size(t, "LAPSE_FLEET_NODES", 3))
	for i := range list {
		list[i] = one()
	}
	return list
}

// fleetRounds is one run. Half-way, it calls halfWay for a fault of Redis.
func fleetRounds(t *testing.T, f *fleet, deliver bool, halfWay func()) {
	rounds, tasks := size(t, "LAPSE_FLEET_ROUNDS", 7), size(t, "LAPSE_FLEET_TASKS", 9000)
	const (
		perRound   = 3.5 // seconds
		perRequest = 5.0 // tasks
		ahead      = 8 * time.Second
	)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	perSecond := int(float64(tasks)/perRequest/(float64(rounds)*perRound)) + 1
	l := f.work(t, seed, perSecond, ahead, false)

	rng := rand.New(rand.NewPCG(seed, 1000))
	began := time.Now()
	for n := range rounds {
		if n == rounds/2 && halfWay != nil {
			<-time.After(time.Second) // so that the nodes are in touch again
			halfWay()
			<-time.After(2 * time.Second) // so that they have seen it
		}
		f.round(rng)
	}
	took := time.Since(began)
	every(t, 100*time.Millisecond, 2*time.Minute, func() bool { return f.numbers.Load() >= int64(tasks) })
	l.stopCalling()
	f.drained(ahead + time.Minute)
	l.stopTaking()

	t.Logf("%d rounds in %s", rounds, took.Round(time.Second))
	v := f.verdict(deliver)
	if v.Accepted == 0 || v.Cancelled == 0 || v.Moved == 0 || len(v.Again) < 3 {
		t.Error("the clients have not tried everything that is to be judged")
	}
}
