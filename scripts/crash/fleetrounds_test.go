//go:build fault

package crash

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
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

// A gang is goroutines that work until they are told to stop.
type gang struct {
	sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
}

func newGang(t *testing.T) *gang {
	g := &gang{}
	g.ctx, g.cancel = context.WithCancel(t.Context())
	t.Cleanup(g.stop)
	return g
}

func (g *gang) stop() {
	g.cancel()
	g.Wait()
}

// onOutage are the flags for what a node does that is cut off from Redis.
func onOutage(deliver bool) []string {
	if !flagsOfServe()["--on-outage"] {
		return nil
	}
	return []string{"--on-outage", map[bool]string{true: "deliver", false: "pause"}[deliver]}
}

// TestFleetRounds lets one mishap after the other befall three nodes while clients
// call and receivers take, and then judges what each was told. Its size is set by
// LAPSE_FLEET_NODES, LAPSE_FLEET_ROUNDS and LAPSE_FLEET_TASKS.
func TestFleetRounds(t *testing.T) {
	always := []string{"appendonly yes", "appendfsync always"}
	alone := func(t *testing.T) []entry {
		redis := redistest.Start(t, always...)
		return entries(t, func() entry { return proxied(t, redis) })
	}
	for name, deliver := range map[string]bool{"Pause": false, "Deliver": true} {
		t.Run(name, func(t *testing.T) {
			fleetRounds(t, newFleet(t, alone(t), append(onOutage(deliver), handover()...)...), deliver, nil)
		})
	}
	t.Run("Sentinel", func(t *testing.T) {
		s := redistest.StartSentinel(t)
		f := newFleet(t, entries(t, func() entry { return entry{url: s.URL()} }), append(onOutage(false), handover()...)...)
		fleetRounds(t, f, false, func() {
			over := f.history.Begin(FailedOver, "")
			s.FailOver()
			over()
		})
	})
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

// fleetRounds is one run. Half-way, something happens to Redis.
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
			<-time.After(time.Second) // so that the nodes know of one another again
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
