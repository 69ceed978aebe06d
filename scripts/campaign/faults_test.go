//go:build fault

package campaign

import (
	"net/http"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// runRounds goes through the rounds of a plan.
func (f *fleet) runRounds(rounds []Round) {
	for _, r := range rounds {
		f.rest(r.Rest)
		f.note("round %s", r)
		first := r.Faults[0]
		end := f.inject(first)
		if len(r.Faults) > 1 {
			second := r.Faults[1]
			f.rest(first.Length / 2)
			endSecond := f.inject(second)
			f.rest(first.Length / 2)
			end()
			f.rest(max(0, second.Length-first.Length/2))
			endSecond()
		} else {
			f.rest(first.Length)
			end()
		}
	}
}

// inject begins a fault, and returns the function that ends it: after it the node is ready again,
// and Redis is there.
func (f *fleet) inject(m PlannedFault) (end func()) {
	if m.Node >= 0 {
		return f.injectAtNode(f.nodes[m.Node], m)
	}
	switch m.Trouble {
	case crash.Down:
		over := f.history.Begin(m.Trouble, "")
		f.redis.kill()
		return func() { f.redis.start(); over() }
	case crash.Hung:
		over := f.history.Begin(m.Trouble, "")
		f.redis.pause()
		return func() { f.redis.resume(); over() }
	case crash.Rewound, crash.FailedOver:
		return f.loss(m)
	case Rolled:
		return f.roll
	}
	panic("nothing that befalls Redis: " + m.Trouble)
}

// loss makes Redis lose the writes that it confirms from now on. It begins when all nodes are
// ready, and is over when they have had time to notice.
func (f *fleet) loss(m PlannedFault) (end func()) {
	for _, n := range f.nodes {
		n.waitUp()
	}
	f.rest(Notice(f.failoverAfter) / 2) // the faults before it are over for all nodes, too
	since := time.Now()
	lost := f.redis.lose()
	return func() {
		over := f.history.BeginLoss(m.Trouble, "", since)
		lost()
		over()
		f.rest(Notice(f.failoverAfter))
	}
}

// roll restarts one node after the other.
func (f *fleet) roll() {
	for _, n := range f.nodes {
		n.life.Lock()
		over := f.history.Begin(f.restarts(), n.name)
		n.end(syscall.SIGTERM)
		n.bringUp()
		over()
		n.life.Unlock()
		f.rest(300 * time.Millisecond)
	}
}

// restarts is the name of an orderly restart.
func (f *fleet) restarts() crash.Trouble {
	if f.handsOver {
		return crash.HandedOver
	}
	return crash.Restarted
}

func (f *fleet) injectAtNode(n *node, m PlannedFault) (end func()) {
	down := func(how func()) (end func()) {
		n.life.Lock()
		trouble := m.Trouble
		if trouble == crash.HandedOver {
			trouble = f.restarts()
		}
		over := f.history.Begin(trouble, n.name)
		how()
		return func() {
			n.bringUp()
			over()
			n.life.Unlock()
		}
	}
	switch m.Trouble {
	case crash.Killed:
		return down(func() { n.end(syscall.SIGKILL) })
	case crash.Restarted, crash.HandedOver:
		return down(func() { n.end(syscall.SIGTERM) })
	case crash.Drained:
		return down(func() { f.drain(n) })
	case crash.Stopped:
		over := f.history.Begin(m.Trouble, n.name)
		r := n.latest()
		r.signal(syscall.SIGSTOP)
		return func() { r.signal(syscall.SIGCONT); over() }
	}
	over := f.history.Begin(m.Trouble, n.name)
	var heal []func()
	for _, p := range n.proxies {
		heal = append(heal, breakProxy(p, m))
	}
	return func() {
		for _, h := range heal {
			h()
		}
		over()
	}
}

// breakProxy does a fault of the way to Redis to one proxy.
func breakProxy(p *redistest.Proxy, m PlannedFault) (heal func()) {
	switch m.Trouble {
	case crash.CutOff:
		how := redistest.Stall
		if m.Reset {
			how = redistest.Reset
		}
		p.Sever(how)
		return p.Heal
	case crash.HalfOpen:
		return p.HalfOpen()
	case crash.Slow:
		p.SetDelay(m.Length / 40)
		return func() { p.SetDelay(0) }
	case crash.Deaf:
		p.SetUnheard(true)
		return func() { p.SetUnheard(false) }
	}
	panic("nothing that befalls a way to Redis: " + m.Trouble)
}

// drain asks another node to drain this one.
func (f *fleet) drain(n *node) {
	r := n.latest()
	r.expect()
	begun := rig.Within(20*time.Millisecond, 20*time.Second, func() bool {
		for _, other := range f.nodes {
			if other == n {
				continue
			}
			if a := f.ask(other.latest(), http.MethodPost, "/v1/nodes/"+n.name+"/drain", nil); a.status == http.StatusAccepted {
				return true
			}
		}
		return r.over()
	})
	if !begun {
		f.wrong("drain refused", "no node begins to drain %s", n.name)
		r.signal(syscall.SIGTERM)
	}
	select {
	case <-r.exited:
	case <-time.After(stopWithin):
		f.wrong("drain without an end", "%s has not ended %s after it began to drain", n.name, stopWithin)
		n.end(syscall.SIGKILL)
	}
}
