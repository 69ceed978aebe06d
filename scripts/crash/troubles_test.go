//go:build fault

package crash

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// inject gives a node a fault, and returns the function that ends it: after it the node is ready
// again.
func (f *fleet) inject(n *node, trouble Trouble, rng *rand.Rand) (end func()) {
	f.t.Helper()
	over := f.history.Begin(trouble, n.node)
	again := func() {
		n.start().ready(f.t)
		over()
	}
	switch trouble {
	case Killed:
		n.kill()
		return again
	case Restarted, HandedOver:
		n.term()
		return again
	case Stopped:
		n.latest().Signal(syscall.SIGSTOP)
		return func() {
			n.latest().Signal(syscall.SIGCONT)
			over()
			f.survived(n)
		}
	case CutOff:
		how := []redistest.Severance{redistest.Stall, redistest.Reset}[rng.IntN(2)]
		for _, p := range n.proxies {
			p.Sever(how)
		}
		return func() {
			for _, p := range n.proxies {
				p.Heal()
			}
			over()
			f.survived(n)
		}
	}
	panic("nothing that befalls a node: " + trouble)
}

// survived checks that a node's process still runs, and starts it again if not: other nodes may
// adopt its tasks, but no other process has taken its name.
func (f *fleet) survived(n *node) {
	r := n.latest()
	if !r.ended() {
		return
	}
	f.t.Errorf("%s has ended by itself: %v\n%s", n.node, r.Cmd.ProcessState, tail(r.stderr.Bytes()))
	over := f.history.Begin(Killed, n.node)
	n.start().ready(f.t)
	over()
}

// A plannedTrouble is one node's part in a round.
type plannedTrouble struct {
	node    *node
	trouble Trouble
	length  time.Duration
	end     func()
}

// planTrouble chooses one. Half of those that a process survives are over before other nodes may
// adopt its shards.
func (f *fleet) planTrouble(rng *rand.Rand, n *node) *plannedTrouble {
	troubles := []Trouble{Killed, Killed, Stopped, Stopped, HandedOver}
	if len(n.proxies) > 0 {
		troubles = append(troubles, CutOff, CutOff)
	}
	m := &plannedTrouble{node: n, trouble: troubles[rng.IntN(len(troubles))]}
	if m.trouble == HandedOver && !n.handsOver() {
		m.trouble = Restarted
	}
	switch short := rng.IntN(2) == 0; {
	case !short:
		m.length = failoverAfter + failoverAfter/2 + rand.N(failoverAfter)
	case m.trouble == Stopped || m.trouble == CutOff:
		m.length = rand.N(failoverAfter * 6 / 10)
	case m.trouble == Killed:
		m.length = rand.N(failoverAfter / 5)
	}
	return m
}

func (n *node) handsOver() bool {
	for _, flag := range n.flags {
		if flag == "--handover" {
			return true
		}
	}
	return false
}

// round gives one or two nodes a fault, so that at least one of three goes on.
func (f *fleet) round(rng *rand.Rand) {
	f.t.Helper()
	order := rng.Perm(len(f.nodes))
	first := f.planTrouble(rng, f.nodes[order[0]])
	var second *plannedTrouble
	if len(f.nodes) > 2 && rng.IntN(3) == 0 {
		second = f.planTrouble(rng, f.nodes[order[1]])
	}
	first.end = f.inject(first.node, first.trouble, rng)
	if second != nil {
		// The length of a fault is the subject of this test, not a wait.
		<-time.After(first.length / 2)
		second.end = f.inject(second.node, second.trouble, rng)
		<-time.After(first.length / 2)
		first.end()
		<-time.After(max(0, second.length-first.length/2))
		second.end()
	} else {
		<-time.After(first.length)
		first.end()
	}
	<-time.After(time.Duration(200+rng.IntN(1200)) * time.Millisecond)
}

// load is clients that call and receivers that pull, at all nodes.
type load struct {
	stopCalling, stopTaking func() // each waits until it is done
}

// work starts a load of so many requests a second, with deadlines up to ahead.
func (f *fleet) work(t *testing.T, seed uint64, perSecond int, ahead time.Duration, gentle bool) load {
	const callers, receivers = 6, 2
	pace := make(chan struct{})
	calling, taking := rig.NewWorkers(t), rig.NewWorkers(t)
	calling.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-calling.Ctx.Done():
				return
			}
			select {
			case pace <- struct{}{}:
			case <-calling.Ctx.Done():
				return
			}
		}
	})
	for i := range callers {
		c := &caller{fleet: f, name: i, rng: rand.New(rand.NewPCG(seed, uint64(i))), ahead: ahead, mild: gentle, pace: pace}
		calling.Go(func() { c.work(calling.Ctx) })
	}
	for i := range receivers * len(f.nodes) {
		w := &fleetReceiver{fleet: f, home: f.nodes[i/receivers], rng: rand.New(rand.NewPCG(seed, uint64(100+i))), careful: gentle}
		taking.Go(func() { w.work(taking.Ctx) })
	}
	return load{calling.Stop, taking.Stop}
}
