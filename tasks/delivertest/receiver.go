package delivertest

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// An Arrival is one delivery, as its receiver saw it.
type Arrival struct {
	ID      string
	Attempt int               // 0 unless the way carries it
	Payload []byte            // nil unless the way carries it
	Headers map[string]string // of the task, names in lower case; others may be among them
	Receipt string            // empty unless the way carries it
	At      time.Time         // zero means now; a broker may have a better time
	Own     bool              // it came to a target of its task's own, see Targeted
}

// An Answer is the answer of a receiver to an arrival.
type Answer struct {
	Say   Say
	Why   string        // Fail, Bury: the reason
	Pause time.Duration // Wait: until the next attempt; whole seconds

	after <-chan struct{} // the answer is held back until it is closed
	deaf  bool            // also if the sender has given up
}

// Say is the sort of an answer.
type Say string

// The answers of a receiver.
const (
	Accept  Say = "accept" // it is done
	Fail    Say = "fail"   // not done; try again
	Wait    Say = "wait"   // not done; try again in Answer.Pause
	Bury    Say = "bury"   // not done; never try again
	Later   Say = "later"  // its receipt will settle it, see [Receipt]
	Panic   Say = "panic"  // nothing: the receiver breaks down in the middle
	Silence Say = "silent" // nothing: the sender has given up, or the receiver ends
)

// A Receiver decides the answers of a test's receiver, and records them. Its methods may be called
// from any goroutine.
type Receiver struct {
	h *history

	mu     sync.Mutex // guards everything below
	script func(a Arrival, n int) Answer
	busy   int // arrivals that have no answer yet
	most   int // the most that there were since the script was set

	own, plain map[string]bool // tasks that came to their targets, or to the topic's receiver
}

func accept(Arrival, int) Answer { return Answer{Say: Accept} }

// play sets the answer of the receiver to the n-th arrival of a task, 1 being the first.
func (r *Receiver) play(script func(a Arrival, n int) Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script, r.most = script, r.busy
}

// say makes the receiver answer everything alike.
func (r *Receiver) say(a Answer) { r.play(func(Arrival, int) Answer { return a }) }

// Receive records an arrival and returns the answer of the receiver, at once or in a while. ctx is
// that of the arrival: it ends when the sender has given up, or the receiver ends; then the answer
// is [Silence].
func (r *Receiver) Receive(ctx context.Context, a Arrival) Answer {
	if a.At.IsZero() {
		a.At = time.Now()
	}
	a.Payload, a.Headers = bytes.Clone(a.Payload), maps.Clone(a.Headers)
	seen, n := r.h.arrive(a)
	r.mu.Lock()
	if r.own == nil {
		r.own, r.plain = map[string]bool{}, map[string]bool{}
	}
	if a.Own {
		r.own[a.ID] = true
	} else {
		r.plain[a.ID] = true
	}
	script := r.script
	r.busy++
	r.most = max(r.most, r.busy)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.busy--
	}()
	answer := script(a, n)
	gaveUp := ctx.Done()
	if answer.deaf {
		gaveUp = nil
	}
	if answer.Say == Silence {
		<-gaveUp
	} else if answer.after != nil {
		select {
		case <-answer.after:
		case <-gaveUp:
			answer = Answer{Say: Silence}
		}
	}
	r.h.answer(seen, answer)
	return answer
}

// underWay returns how many arrivals have no answer yet.
func (r *Receiver) underWay() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy
}

// came returns how many tasks have come to their own targets, or to the topic's receiver.
func (r *Receiver) came(own bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own {
		return len(r.own)
	}
	return len(r.plain)
}

// misplaced returns how many tasks have come to the wrong one of these, by the beginnings of their
// ids.
func (r *Receiver) misplaced() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.own {
		if strings.HasPrefix(id, "plain") {
			n++
		}
	}
	for id := range r.plain {
		if !strings.HasPrefix(id, "plain") {
			n++
		}
	}
	return n
}

// mostAtOnce returns how many arrivals had no answer at the same time since the script was set.
func (r *Receiver) mostAtOnce() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

// verdicts are the settlements by receipt in place of an answer.
var verdicts = map[tasks.Verb]Say{tasks.Ack: Accept, tasks.Release: Fail, tasks.Bury: Bury}

// failsNow reports whether a flaky receiver fails an attempt: three of ten.
func failsNow(id string, n int) bool {
	sum := fnv.New32a()
	fmt.Fprint(sum, n, id)
	return sum.Sum32()%10 < 3
}
