//go:build fault

package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-json"
)

// TestOutage takes Redis away under load, for 5 s and for 60 s, killed or stopped, and gives it
// back. Tasks in memory are delivered and retried as usual. New tasks are answered 503 within 2 s.
// Acknowledgements count, and are not called recorded; afterwards they are recorded, and the tasks
// do not come back.
func TestOutage(t *testing.T) {
	t.Parallel()
	for _, length := range []time.Duration{5 * time.Second, 60 * time.Second} {
		for _, killed := range []bool{true, false} {
			how := map[bool]string{true: "killed", false: "stopped"}[killed]
			t.Run(fmt.Sprintf("%s for %v", how, length), func(t *testing.T) {
				t.Parallel()
				o := &outage{t: t, server: onRedis(t), history: NewHistory(), released: map[int]time.Time{}}
				o.run(length, killed)
			})
		}
	}
}

const (
	beforeOutage = 5 * time.Second
	stockEvery   = 10 * time.Millisecond // between the deadlines of two tasks
	retryAfter   = 500 * time.Millisecond
	answerWithin = 2 * time.Second
	// slack is the time that a busy machine may take beyond the server's promise.
	slack = 1500 * time.Millisecond
)

// An outage is a load, and its result.
type outage struct {
	t       *testing.T
	server  *server
	history *History
	numbers atomic.Int64

	down, up time.Time // Redis was surely away between them; set before they are read

	mu       sync.Mutex // guards everything below
	first    []arrival  // first attempts
	retries  []arrival
	released map[int]time.Time // when the next attempt may start, by task
	probes   []probe
}

// An arrival is an attempt that was due at one time and received at another.
type arrival struct{ due, end time.Time }

// A probe is the answer to the creation of one task.
type probe struct {
	Span
	status     int
	retryAfter string
}

func (o *outage) run(length time.Duration, killed bool) {
	r := o.server.start()
	r.ready(o.t)
	began := time.Now()
	down, up := began.Add(beforeOutage), began.Add(beforeOutage+length)
	o.stock(r, began.Add(time.Second), up.Add(20*time.Second))

	var probing, pulling, settling sync.WaitGroup
	asking, stopAsking := context.WithCancel(o.t.Context())
	defer stopAsking()
	for range 4 {
		probing.Go(func() { o.probe(asking, r) })
	}
	taking, stopTaking := context.WithCancel(o.t.Context())
	defer stopTaking()
	for range 2 {
		pulling.Go(func() { o.pull(taking, r, &settling) })
	}

	<-time.After(time.Until(down))
	if killed {
		o.server.redis.Kill()
	} else {
		o.server.redis.Pause()
	}
	o.down = time.Now()
	<-time.After(time.Until(up) - time.Second)
	var state struct{ Ledger struct{ OK bool } }
	if status, _, err := r.call(http.MethodGet, "/readyz", nil, &state); status != http.StatusOK || state.Ledger.OK {
		o.t.Errorf("/readyz in the outage: %d, %v, the ledger is well: %v", status, err, state.Ledger.OK)
	}
	<-time.After(time.Until(up))
	o.up = time.Now()
	if killed {
		o.server.redis.Start()
	} else {
		o.server.redis.Resume()
	}

	// Everything is recorded soon, and Lapse goes on.
	every(o.t, 20*time.Millisecond, 20*time.Second, func() bool {
		status, _, err := r.call(http.MethodPost, "/v1/tasks", []byte(`{"topic":"other","delay":"1h"}`), nil)
		return outcome(status, err) == Done
	})
	back := time.Since(o.up)
	<-time.After(3 * time.Second) // under load
	stopAsking()
	probing.Wait()
	stopTaking()
	pulling.Wait()
	settling.Wait()
	every(o.t, 20*time.Millisecond, 20*time.Second, func() bool {
		var stats struct{ Ledger struct{ Queued int } }
		status, _, err := r.call(http.MethodGet, "/v1/stats", nil, &stats)
		return outcome(status, err) == Done && stats.Ledger.Queued == 0
	})
	o.server.kill()
	o.server.start().ready(o.t)
	o.t.Logf("new tasks were taken again %v after the outage", back.Round(time.Millisecond))
	o.judgeAnswers()
	o.judgeLateness()
	o.judgeRest()
}

// stock schedules tasks with deadlines from one time to another.
func (o *outage) stock(r *run, from, to time.Time) {
	var orders []order
	for due := from; due.Before(to); due = due.Add(stockEvery) {
		orders = append(orders, order{n: int(o.numbers.Add(1)), due: due.Truncate(time.Millisecond)})
	}
	status, span, err := r.call(http.MethodPost, "/v1/tasks/batch", batchBody(orders), nil)
	if outcome(status, err) != Done {
		o.t.Fatalf("a batch of %d was answered %d, %v", len(orders), status, err)
	}
	for _, task := range orders {
		o.history.Change(task.n, Change{Span: span, Kind: Create, Outcome: Done, Due: task.due})
	}
}

// probe schedules one task after the other, and records the answers.
func (o *outage) probe(ctx context.Context, r *run) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		task := order{n: int(o.numbers.Add(1)), due: time.Now().Add(time.Second).Truncate(time.Millisecond)}
		body, _ := task.MarshalJSON() // never fails
		span := Span{Run: r.n, Start: time.Now()}
		resp, err := r.http.Post(r.base+"/v1/tasks", "application/json", strings.NewReader(string(body)))
		span.End = time.Now()
		if err != nil {
			o.t.Errorf("no answer: %v", err)
			return
		}
		var problem struct{ Type string }
		err = json.NewDecoder(resp.Body).Decode(&problem)
		resp.Body.Close()
		got := outcome(resp.StatusCode, err)
		if strings.HasSuffix(problem.Type, "/ledger_unavailable") {
			got = Refused
		}
		o.history.Change(task.n, Change{Span: span, Kind: Create, Outcome: got, Due: task.due})
		o.mu.Lock()
		o.probes = append(o.probes, probe{span, resp.StatusCode, resp.Header.Get("Retry-After")})
		o.mu.Unlock()
	}
}

// pull receives tasks. It does not wait for the answers to its acknowledgements.
func (o *outage) pull(ctx context.Context, r *run, settling *sync.WaitGroup) {
	for ctx.Err() == nil {
		var answer struct{ Tasks []pulled }
		status, span, err := r.call(http.MethodPost, "/v1/topics/"+topic+"/reserve", []byte(`{"max":100,"wait":"500ms","lease":"5s"}`), &answer)
		if outcome(status, err) != Done {
			o.t.Errorf("reserve answered %d, %v", status, err)
			return
		}
		var acks, releases []held
		var numbers []int
		for _, p := range answer.Tasks {
			d := &Delivery{Span: span, Due: p.DueAt, LeaseUntil: p.LeaseUntil, Attempt: p.Attempt}
			o.history.Deliver(p.Payload.N, d)
			o.arrive(p, span)
			switch {
			case p.Payload.N%10 == 0 && p.Attempt == 1:
				releases = append(releases, held{p.Receipt, d})
				numbers = append(numbers, p.Payload.N)
			case p.Payload.N%33 == 0 && p.Attempt == 1: // forgotten: its lease runs out
			default:
				acks = append(acks, held{p.Receipt, d})
			}
		}
		if len(releases) > 0 {
			o.release(numbers)
			settling.Go(func() { o.settle(r, "release", fmt.Sprintf(`,"delay":%q`, retryAfter), releases) })
		}
		if len(acks) > 0 {
			settling.Go(func() { o.settle(r, "ack", "", acks) })
		}
	}
}

// release records that tasks are about to be given back: their retry may arrive long before the
// answer to that.
func (o *outage) release(numbers []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range numbers {
		o.released[n] = time.Now().Add(retryAfter)
	}
}

// arrive records an attempt.
func (o *outage) arrive(p pulled, span Span) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.Attempt == 1 {
		o.first = append(o.first, arrival{p.DueAt, span.End})
	} else if due, ok := o.released[p.Payload.N]; ok {
		o.retries = append(o.retries, arrival{due, span.End})
	}
}

// settle settles deliveries, with more fields in the body.
func (o *outage) settle(r *run, verb, more string, list []held) {
	receipts := make([]string, len(list))
	for i, h := range list {
		receipts[i] = h.receipt
	}
	texts, _ := json.Marshal(receipts) // never fails
	var answer settledAnswer
	status, span, err := r.call(http.MethodPost, "/v1/receipts/"+verb, fmt.Appendf(nil, `{"receipts":%s%s}`, texts, more), &answer)
	if outcome(status, err) != Done || span.End.Sub(span.Start) > answerWithin+slack {
		o.t.Errorf("%s answered %d, %v after %v", verb, status, err, span.End.Sub(span.Start))
	}
	for i, a := range answer.outcomes(outcome(status, err), len(list)) {
		o.history.Settle(list[i].delivery, Settlement{Span: span, Verb: verbs[verb], Outcome: a.outcome, Recorded: a.recorded})
	}
}

// inOutage reports whether all of a request fell into the outage.
func (o *outage) inOutage(s Span) bool { return s.Start.After(o.down) && s.End.Before(o.up) }

func (o *outage) judgeAnswers() {
	refused, slowest, unrecorded := 0, time.Duration(0), 0
	for _, p := range o.probes {
		if !o.inOutage(p.Span) {
			continue
		}
		refused++
		took := p.End.Sub(p.Start)
		slowest = max(slowest, took)
		if p.status != http.StatusServiceUnavailable || p.retryAfter == "" || took > answerWithin+slack {
			o.t.Errorf("a task was answered %d in the outage, Retry-After %q, after %v", p.status, p.retryAfter, took)
		}
	}
	o.history.mu.Lock()
	defer o.history.mu.Unlock()
	for n, task := range o.history.tasks {
		for _, d := range task.Deliveries {
			for _, s := range d.Settlements {
				if s.Verb == Ack && s.Outcome == Done && o.inOutage(s.Span) {
					unrecorded++
					if s.Recorded {
						o.t.Errorf("task %d: its acknowledgement is called recorded in the outage", n)
					}
				}
			}
		}
	}
	o.t.Logf("%d tasks were refused in the outage, the slowest after %v; %d acknowledgements were not recorded", refused, slowest.Round(time.Millisecond), unrecorded)
	if refused == 0 || unrecorded == 0 {
		o.t.Error("no request was made in the outage")
	}
}

func (o *outage) judgeLateness() {
	before := lateness(o.first, time.Time{}, o.down)
	during, retried := lateness(o.first, o.down, o.up), lateness(o.retries, o.down, o.up)
	o.t.Logf("late before the outage %v; in it %v; retries in it %v", before, during, retried)
	if during.n == 0 || retried.n == 0 {
		o.t.Error("nothing was delivered, or nothing was retried, in the outage")
	}
	for _, late := range []delays{during, retried} {
		if late.p99 > before.p99+slack/2 || late.most > before.most+answerWithin {
			o.t.Errorf("the outage has held deliveries up: %v, before it %v", late, before)
		}
	}
}

// judgeRest receives the remaining tasks with the next run, and compares both runs.
func (o *outage) judgeRest() {
	taking, stop := context.WithCancel(o.t.Context())
	defer stop()
	var pulls sync.WaitGroup
	w := &receiver{t: o.t, rng: rand.New(rand.NewPCG(3, 0)), server: o.server, history: o.history, careful: true}
	pulls.Go(func() { w.work(taking) })
	drained(o.t, o.server, o.history, time.Minute)
	stop()
	pulls.Wait()
	v := Judge(o.history)
	o.t.Log(v)
	if len(v.Faults) > 0 {
		o.t.Errorf("%d promises were broken", len(v.Faults))
	}
	rest := 0
	for n, task := range o.history.tasks {
		acked := slices.ContainsFunc(task.Deliveries, func(d *Delivery) bool { return d.Run == 1 && d.find(Ack, Done) != nil })
		again := slices.ContainsFunc(task.Deliveries, func(d *Delivery) bool { return d.Run == 2 })
		if again {
			rest++
		}
		if acked && again {
			o.t.Errorf("task %d was acknowledged, recorded afterwards, and has come back", n)
		}
	}
	if rest == 0 {
		o.t.Error("nothing was left for the next run")
	}
}

// delays is how late arrivals were.
type delays struct {
	n              int
	p50, p99, most time.Duration
}

func (d delays) String() string {
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("p50 %v, p99 %v, max %v of %d", round(d.p50), round(d.p99), round(d.most), d.n)
}

// lateness is that of what was due in an interval.
func lateness(all []arrival, from, to time.Time) delays {
	var late []time.Duration
	for _, a := range all {
		if a.due.After(from) && a.due.Before(to) {
			late = append(late, a.end.Sub(a.due))
		}
	}
	if len(late) == 0 {
		return delays{}
	}
	slices.Sort(late)
	return delays{len(late), late[len(late)/2], late[len(late)*99/100], late[len(late)-1]}
}
