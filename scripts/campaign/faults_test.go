package campaign

import (
	"bytes"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// An occurrence is when a fault of a plan happened.
type occurrence struct {
	name       string
	start, end time.Time
}

// runRounds goes through the rounds of a plan. After a loss no node has a new fault until all nodes
// have had time to notice; the second fault of a round may be under way all the time.
func (f *fleet) runRounds(rounds []round) {
	for _, r := range rounds {
		f.rest(r.rest)
		f.note("round %s", r)
		f.prefer(r.features)
		var both sync.WaitGroup
		loses := false
		begun := make(chan struct{}) // when the first fault has
		for i, m := range r.faults {
			loses = loses || m.kind.loses
			both.Go(func() {
				if first := r.faults[0]; i > 0 && first.kind.loses && first.at <= m.at {
					<-begun // a server may have to be started first
					f.rest(m.at - first.at)
				} else {
					f.rest(m.at)
				}
				start := time.Now()
				end := m.kind.begin(f, m)
				if i == 0 {
					close(begun)
				}
				f.rest(m.length)
				end()
				f.mu.Lock()
				f.happened = append(f.happened, occurrence{m.kind.name, start, time.Now()})
				f.mu.Unlock()
			})
		}
		both.Wait()
		if loses {
			f.rest(notice(f.failoverAfter))
		}
	}
	f.prefer(nil)
}

// away notes that a node is down, and ends its process. The function that it returns starts it
// again.
func (f *fleet) away(m plannedFault, trouble crash.Trouble, how func(n *node)) (end func()) {
	n := f.nodes[m.node]
	n.life.Lock()
	over := f.history.Begin(trouble, n.name)
	how(n)
	return func() {
		n.bringUp()
		over()
		n.life.Unlock()
	}
}

func (f *fleet) kill(m plannedFault) (end func()) {
	return f.away(m, crash.Killed, func(n *node) { n.end(syscall.SIGKILL) })
}

func (f *fleet) handOver(m plannedFault) (end func()) { return f.terminate(m) }

func (f *fleet) restart(m plannedFault) (end func()) { return f.terminate(m) }

func (f *fleet) terminate(m plannedFault) (end func()) {
	return f.away(m, f.nodes[m.node].restarts(), func(n *node) { n.end(syscall.SIGTERM) })
}

// restarts is the name of an orderly restart of the node.
func (n *node) restarts() crash.Trouble {
	if n.handsOver {
		return crash.HandedOver
	}
	return crash.Restarted
}

// roll restarts one node after the other.
func (f *fleet) roll(plannedFault) (end func()) {
	for i, n := range f.nodes {
		f.away(plannedFault{node: i}, n.restarts(), func(n *node) { n.end(syscall.SIGTERM) })()
		f.rest(300 * time.Millisecond)
	}
	return func() {}
}

// otherSpool restarts a node with another spool directory, and later again with its own.
func (f *fleet) otherSpool(m plannedFault) (end func()) {
	n := f.nodes[m.node]
	restart := func(dir string) {
		n.life.Lock()
		defer n.life.Unlock()
		over := f.history.Begin(n.restarts(), n.name)
		defer over()
		n.end(syscall.SIGTERM)
		n.spoolDir = dir
		n.bringUp()
	}
	over := f.history.Begin(m.kind.trouble, n.name)
	own, other := n.spoolDir, filepath.Join(f.t.TempDir(), "spool")
	restart(other)
	return func() {
		restart(own)
		// It has ended while Redis was away or full, perhaps with tasks there.
		for began := time.Now(); n.lacksSpool() && time.Since(began) < startWithin; {
			restart(other)
			f.rest(time.Second)
			restart(own)
		}
		over()
	}
}

// lacksSpool reports whether a spool is missing at the node.
func (n *node) lacksSpool() bool {
	_, body, err := n.latest().send(http.MethodGet, "/v1/nodes/"+n.name, "", nil)
	return err == nil && bytes.Contains(body, []byte(`"missing_spools"`))
}

func (f *fleet) stop(m plannedFault) (end func()) {
	n := f.nodes[m.node]
	over := f.history.Begin(m.kind.trouble, n.name)
	r := n.latest()
	r.Signal(syscall.SIGSTOP)
	return func() { r.Signal(syscall.SIGCONT); over() }
}

// breakWay does a fault of the way to Redis to the proxies of one node.
func (f *fleet) breakWay(m plannedFault) (end func()) {
	n := f.nodes[m.node]
	over := f.history.Begin(m.kind.trouble, n.name)
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

func breakProxy(p *redistest.Proxy, m plannedFault) (heal func()) {
	switch m.kind.trouble {
	case crash.CutOff:
		how := redistest.Stall
		if m.reset {
			how = redistest.Reset
		}
		p.Sever(how)
		return p.Heal
	case crash.HalfOpen:
		return p.HalfOpen()
	case crash.Deaf:
		p.SetUnheard(true)
		return func() { p.SetUnheard(false) }
	}
	p.SetDelay(m.length / 40)
	return func() { p.SetDelay(0) }
}

// drain asks another node to drain this one.
func (f *fleet) drain(m plannedFault) (end func()) {
	return f.away(m, crash.Drained, func(n *node) {
		r := n.latest()
		r.expect()
		// A node that no other one relieves gives up, and goes on when it is asked again.
		asked := time.Time{}
		ended := rig.Within(20*time.Millisecond, stopWithin, func() bool {
			if !r.over() && time.Since(asked) > 5*time.Second {
				if f.askToDrain(n) {
					asked = time.Now()
				}
			}
			return r.over()
		})
		if !ended {
			f.wrong("drain without an end", "%s has not ended %s after it was to be drained", n.name, stopWithin)
			n.end(syscall.SIGKILL)
		}
	})
}

// askToDrain reports whether a node has said that it begins.
func (f *fleet) askToDrain(n *node) bool {
	return slices.ContainsFunc(f.nodes, func(other *node) bool {
		return other != n && f.ask(other.latest(), http.MethodPost, "/v1/nodes/"+n.name+"/drain", nil).status == http.StatusAccepted
	})
}

func (f *fleet) down(m plannedFault) (end func()) {
	release := f.redis.hold()
	over := f.history.Begin(m.kind.trouble, "")
	f.redis.server().Kill()
	return func() { f.redis.server().Start(); over(); release() }
}

func (f *fleet) hang(m plannedFault) (end func()) {
	release := f.redis.hold()
	over := f.history.Begin(m.kind.trouble, "")
	f.redis.server().Pause()
	return func() { f.redis.server().Resume(); over(); release() }
}

func (f *fleet) delay(m plannedFault) (end func()) {
	over := f.history.Begin(m.kind.trouble, "")
	set := func(delay time.Duration) {
		for _, n := range f.nodes {
			for _, p := range n.proxies {
				p.SetDelay(delay)
			}
		}
	}
	set(m.length / 40)
	return func() { set(0); over() }
}

// fill leaves Redis no memory. A server that is started again meanwhile has some.
func (f *fleet) fill(m plannedFault) (end func()) {
	set := func(limit string) {
		defer f.redis.hold()()
		f.redis.server().Do("config", "set", "maxmemory", limit)
	}
	over := f.history.Begin(m.kind.trouble, "")
	set("1mb")
	return func() { set("0"); over() }
}

func (f *fleet) flush(m plannedFault) (end func()) {
	release := f.redis.hold()
	over := f.history.BeginLoss(m.kind.trouble, "", f.started)
	f.redis.server().Do("flushall")
	release()
	return over
}

func (f *fleet) rewind(m plannedFault) (end func()) { return f.lose(m, f.redis.rewind) }

func (f *fleet) failOver(m plannedFault) (end func()) { return f.lose(m, f.redis.failOver) }

// lose makes Redis lose the writes that it confirms from now on.
func (f *fleet) lose(m plannedFault, how func() (lost func())) (end func()) {
	release := f.redis.hold()
	since := time.Now()
	lost := how()
	return func() {
		over := f.history.BeginLoss(m.kind.trouble, "", since)
		lost()
		over()
		release()
	}
}
