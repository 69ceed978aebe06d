package campaign

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A node is one server of the fleet over all its runs.
type node struct {
	name    string
	fleet   *fleet
	proxies []*redistest.Proxy // between it and Redis
	args    []string           // without the spool
	log     *os.File           // output of all runs

	handsOver bool          // when it is ended in order
	spoolDir  string        // of the next run
	port      *redis.Client // of its port for clients of Redis

	life sync.Mutex // held from the end of a run until the next one is ready

	mu  sync.Mutex // guards run
	run *run       // the latest
}

// A run is one process.
type run struct {
	*rig.Process
	node *node
	n    int
	base string // http://127.0.0.1:port
	http *http.Client

	mu       sync.Mutex // guards expected
	expected bool       // its end was requested
}

// Bounds of waits, for a busy machine.
const (
	startWithin = 60 * time.Second
	stopWithin  = 60 * time.Second
	callWithin  = 4 * time.Second // more than --answer-within, less than a long stop
)

func (n *node) latest() *run {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.run
}

// start starts the process, and reports whether it has printed its address. The caller has life.
func (n *node) start() bool {
	r := &run{node: n, n: 1}
	if before := n.latest(); before != nil {
		r.n = before.n + 1
		before.http.CloseIdleConnections()
	}
	fmt.Fprintf(n.log, "\n== run %d of %s, %s\n", r.n, n.name, rig.Stamp(time.Now()))
	cmd := rig.Command(binary, append(slices.Clone(n.args), "--spool", n.spoolDir)...)
	cmd.Stderr = n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if r.Process, err = rig.Serve(cmd, 1); err != nil {
		n.fleet.wrong("not started", "%s: %v", n.name, err)
		return false
	}
	if len(r.URLs) > 0 {
		r.base = r.URLs[0]
	}
	r.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: callWithin}
	n.mu.Lock()
	n.run = r
	n.mu.Unlock()
	n.fleet.watching.Go(func() {
		<-r.Exited
		n.fleet.ended(r)
	})
	return r.base != ""
}

// expect notes that the run is about to be ended.
func (r *run) expect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expected = true
}

func (r *run) wasExpected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.expected
}

func (r *run) over() bool {
	select {
	case <-r.Exited:
		return true
	default:
		return false
	}
}

// ready waits until the node answers that it has read its tasks. It records a fault and returns
// false if that takes too long, or the process ends.
func (n *node) ready() bool {
	r := n.latest()
	client := &http.Client{Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	said := "nothing"
	ok := rig.Within(20*time.Millisecond, startWithin, func() bool {
		resp, err := client.Get(r.base + "/readyz")
		if err != nil {
			return r.over() || n.fleet.stopping()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		said = string(body)
		return resp.StatusCode == http.StatusOK
	})
	if r.over() || n.fleet.stopping() {
		return false
	}
	if !ok {
		n.fleet.wrong("not ready", "%s, run %d, is not ready after %s: %s", n.name, r.n, startWithin, said)
	}
	return ok
}

// bringUp starts the process, again if it ends by itself before it is ready. The caller has
// life.
func (n *node) bringUp() {
	for range 5 {
		if n.start() && n.ready() || n.fleet.stopping() {
			return
		}
		if r := n.latest(); !r.over() {
			return // it goes on, and the fault is recorded
		}
	}
	n.fleet.wrong("not started", "%s does not come up", n.name)
}

// end sends a signal that ends the process, and waits for the end. The caller has life.
func (n *node) end(sig os.Signal) {
	r := n.latest()
	r.expect()
	r.Signal(sig)
	n.gone(r)
}

// gone waits for the end of a run, and kills it if that takes too long.
func (n *node) gone(r *run) {
	select {
	case <-r.Exited:
	case <-time.After(stopWithin):
		n.fleet.wrong("not stopped", "%s, run %d, has not ended within %s", n.name, r.n, stopWithin)
		r.Kill()
	}
}

// ended is called once a process has ended. If the campaign did not end it, that is a fault of the
// server, and the node is started again, as a service manager does.
func (f *fleet) ended(r *run) {
	if r.wasExpected() || f.stopping() {
		return
	}
	n := r.node
	over := f.history.Begin(crash.Killed, n.name)
	defer over()
	if !f.forgotten(n) {
		f.wrong("ended by itself", "%s, run %d, at %s: %v", n.name, r.n, rig.Stamp(time.Now()), r.Cmd.ProcessState)
	}
	n.life.Lock()
	defer n.life.Unlock()
	if n.latest() == r && !f.stopping() {
		n.bringUp()
	}
}

// forgotten reports whether a node was out of touch for as long as others wait for it, and Redis
// has lost who is registered: then it ends (docs/internals/decisions/0005-missing-token.md).
func (f *fleet) forgotten(n *node) bool {
	lately := time.Now().Add(-notice(f.failoverAfter))
	away, lost := false, false
	for _, x := range f.history.Faults() {
		over := !x.End.IsZero() && x.End.Before(lately)
		long := x.End.IsZero() || x.End.Sub(x.Start) > f.failoverAfter*8/10
		away = away || x.Node == n.name && long && !over
		lost = lost || !x.Lost.IsZero() && !over
	}
	return away && lost
}
