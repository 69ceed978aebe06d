//go:build fault

package crash

import (
	"context"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/goccy/go-json"
)

// A receiver pulls tasks and settles them, most of them well.
type receiver struct {
	t       *testing.T
	rng     *rand.Rand
	server  *server
	history *History
	careful bool // it acknowledges all tasks
}

// A pulled task, in the answer to a reserve call.
type pulled struct {
	ID         string
	Attempt    int
	DueAt      time.Time `json:"due_at"`
	LeaseUntil time.Time `json:"lease_until"`
	Receipt    string
	Node       string
	Payload    struct{ N int }
}

func (w *receiver) work(ctx context.Context) {
	r := w.server.after(ctx, 0)
	for r != nil && ctx.Err() == nil {
		var answer struct{ Tasks []pulled }
		status, span, err := r.call(http.MethodPost, "/v1/topics/"+topic+"/reserve",
			[]byte(`{"max":200,"wait":"500ms","lease":"2s"}`), &answer)
		if outcome(status, err) != Done {
			if err == nil && status != http.StatusServiceUnavailable {
				w.t.Errorf("reserve answered %d", status)
			}
			r = w.server.again(ctx, r)
			continue
		}
		var acks, releases []held
		for _, p := range answer.Tasks {
			d := &Delivery{Span: span, Due: p.DueAt, LeaseUntil: p.LeaseUntil, Attempt: p.Attempt}
			w.history.Deliver(p.Payload.N, d)
			switch dice := w.rng.IntN(100); {
			case w.careful || dice < 94:
				acks = append(acks, held{p.Receipt, d})
			case dice < 97:
				releases = append(releases, held{p.Receipt, d})
			default: // forgotten: its lease runs out
			}
		}
		r = w.settle(ctx, r, "release", releases)
		if r != nil {
			r = w.settle(ctx, r, "ack", acks)
		}
	}
}

// held is a delivery that is to be settled.
type held struct {
	receipt  string
	delivery *Delivery
}

// settle settles deliveries and returns the run to go on with. An ack without an answer is sent
// again, to the next run if necessary: receipts outlive a restart.
func (w *receiver) settle(ctx context.Context, r *run, verb string, list []held) *run {
	for len(list) > 0 {
		receipts := make([]string, len(list))
		for i, h := range list {
			receipts[i] = h.receipt
		}
		body, err := json.Marshal(map[string]any{"receipts": receipts})
		if err != nil {
			w.t.Error(err)
		}
		var answer settledAnswer
		status, span, err := r.call(http.MethodPost, "/v1/receipts/"+verb, body, &answer)
		got := outcome(status, err)
		if err == nil && status != http.StatusOK && status != http.StatusServiceUnavailable {
			w.t.Errorf("%s answered %d", verb, status)
		}
		each := answer.outcomes(got, len(list))
		for i, h := range list {
			s := Settlement{Span: span, Verb: verbs[verb], Outcome: each[i].outcome, Recorded: each[i].recorded}
			w.history.Settle(h.delivery, s)
		}
		if got != Unknown {
			return r
		}
		if r = w.server.again(ctx, r); r == nil || verb != "ack" {
			return r
		}
	}
	return r
}

// verbs are what the calls that settle are named after.
var verbs = map[string]Verb{"ack": Ack, "release": Release}

// settledAnswer is the answer to a settling call.
type settledAnswer struct {
	Recorded bool
	Errors   []struct {
		Index   int
		Problem struct {
			Type   string
			Status int
		}
	}
}

// A settled is the answer to one receipt.
type settled struct {
	outcome  Outcome
	recorded bool
}

// outcomes returns what the answer means for each of n receipts.
func (a *settledAnswer) outcomes(whole Outcome, n int) []settled {
	each := make([]settled, n)
	for i := range each {
		each[i] = settled{whole, whole == Done && a.Recorded}
	}
	for _, e := range a.Errors {
		each[e.Index] = settled{outcome(e.Problem.Status, nil), false}
	}
	return each
}

// drained waits until nothing is owed any more and the server has no task left.
func drained(t *testing.T, s *server, h *History, limit time.Duration) {
	t.Helper()
	var list struct{ Tasks []pulled }
	over := time.After(limit)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		if h.Settled() {
			status, _, err := s.latest().call(http.MethodGet, "/v1/tasks?limit=5&topic="+topic, nil, &list)
			if outcome(status, err) == Done && len(list.Tasks) == 0 {
				return
			}
		}
		select {
		case <-tick.C:
		case <-over:
			t.Errorf("after %s, %d tasks are owed, and the server lists %+v", limit, h.Owed(), list.Tasks)
			return
		}
	}
}
