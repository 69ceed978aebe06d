//go:build fault

package respclients

import (
	"syscall"
	"testing"
	"time"
)

// TestMainJob is the main job: writers with three client libraries, a subscriber, and two workers
// that acknowledge, against a fleet of three nodes. One node, to which a writer and a worker are
// connected, is killed, and later a worker. Every expiry arrives, none early, and on time but for
// the time of the faults.
func TestMainJob(t *testing.T) {
	j, _ := newFleetJob(t)
	keys := keysOf(t, 20_000)
	j.createGroup()
	j.subscribe(1)
	j.work("python/worker.py", "w1", 0)
	second := j.work("node/worker.js", "w2", 2)
	written := j.write(keys)
	j.settled(keys / 2)
	j.fault("node a is killed", anyKey, func() { j.nodes[0].kill() })
	written()
	j.expired(keys / 3)
	j.fault("a worker is killed", isJob, func() {
		second.kill()
		j.work("node/worker.js", "w3", 2)
	})
	j.finish()
}

// TestStoppedSubscriber has the subscriber stand still while keys expire. It hears of all of them
// once it moves, and workers are not delayed.
func TestStoppedSubscriber(t *testing.T) {
	t.Parallel()
	j, _ := newFleetJob(t)
	const keys = 3000
	j.createGroup()
	s := j.subscribe(1)
	j.work("python/worker.py", "w1", 0)
	j.write(keys)()
	j.expired(keys / 10)
	j.fault("the subscriber stands still", isOrder, func() {
		s.signal(syscall.SIGSTOP)
		time.Sleep(6 * time.Second)
		s.signal(syscall.SIGCONT)
	})
	j.finish()
}

// TestStoppedNode has a node stand still for longer than the others wait for it, while keys are set
// and while they expire.
func TestStoppedNode(t *testing.T) {
	t.Parallel()
	j, _ := newFleetJob(t)
	j.stops("node a", func() { j.nodes[0].signal(syscall.SIGSTOP) }, func() { j.nodes[0].signal(syscall.SIGCONT) })
}

// TestStoppedLedger has the Redis that keeps the tasks stand still, while keys are set and while
// they expire.
func TestStoppedLedger(t *testing.T) {
	t.Parallel()
	j, ledger := newFleetJob(t)
	j.stops("Redis", ledger.Pause, ledger.Resume)
}

// stops has something stand still while keys are set and while they expire.
func (j *job) stops(what string, pause, resume func()) {
	const keys = 3000
	j.createGroup()
	j.subscribe(1)
	j.work("python/worker.py", "w1", 0)
	written := j.write(keys)
	still := func() {
		pause()
		time.Sleep(3 * failoverAfter)
		resume()
	}
	j.settled(keys / 2)
	j.fault(what+" stands still", anyKey, still)
	written()
	j.expired(keys / 10)
	j.fault(what+" stands still", anyKey, still)
	j.finish()
}

// TestSingle kills a single server, whose tasks are on disk, while writers set keys and while keys
// expire. Nothing that was answered is lost: all jobs are acknowledged, and all orders that were to
// expire after the last crash are heard of.
func TestSingle(t *testing.T) {
	j := newJob(t, newNode(t, "single", "--data", t.TempDir()))
	const keys = 6000
	j.createGroup()
	j.subscribe(0)
	j.work("python/worker.py", "w1", 0)
	written := j.write(keys)
	crash := func() {
		j.nodes[0].kill()
		j.nodes[0].start()
		j.nodes[0].ready()
	}
	for i := range 3 {
		j.settled(keys * (i + 1) / 4)
		j.fault("the server is killed", anyKey, crash)
	}
	written()
	for i := range 3 {
		j.expired(keys * (i + 1) / 6)
		j.fault("the server is killed", anyKey, crash)
	}
	j.finish()
}
