package httpapi

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// The bodies of the five settling calls.
type (
	// AckReceipts finishes deliveries.
	AckReceipts struct {
		Receipts []string `json:"receipts" minItems:"1" maxItems:"1000" nullable:"false"`
	}
	// ReturnReceipts gives back deliveries that were not begun.
	ReturnReceipts struct {
		AckReceipts
	}
	// ReleaseReceipts ends deliveries without success.
	ReleaseReceipts struct {
		AckReceipts
		Delay  span   `json:"delay,omitempty" doc:"Until the next attempt. Left out: the topic's backoff."`
		Reason string `json:"reason,omitempty" doc:"Kept as the task's last_error, cut at 1 KiB."`
	}
	// ExtendReceipts begins leases again.
	ExtendReceipts struct {
		AckReceipts
		Lease span `json:"lease,omitempty" doc:"From now, 1s to 24h. Left out: the topic's lease."`
	}
	// BuryReceipts makes tasks dead.
	BuryReceipts struct {
		AckReceipts
		Reason string `json:"reason,omitempty" doc:"Kept as the task's last_error, cut at 1 KiB."`
	}
)

// SettleAnswer reports the outcome of each receipt.
type SettleAnswer struct {
	Settled    int            `json:"settled" doc:"How many deliveries were settled."`
	Recorded   bool           `json:"recorded" doc:"Whether the ledger has confirmed all of them. If not, they are valid all the same, and are recorded later."`
	LeaseUntil string         `json:"lease_until,omitempty" format:"date-time" doc:"After extend: when the first of the leases runs out."`
	Errors     []ReceiptError `json:"errors" nullable:"false" doc:"The receipts that settled nothing."`
}

// ReceiptError reports why a receipt settled nothing.
type ReceiptError struct {
	Index   int      `json:"index" doc:"Its place in the request, from 0."`
	ID      string   `json:"id,omitempty" doc:"The task's id, if the receipt could be read."`
	Problem *Problem `json:"problem"`
}

// settle answers POST /v1/receipts/ack, return, release, extend and bury.
func (s *Server) settle(verb tasks.Verb) func(context.Context, *request) (*reply[SettleAnswer], error) {
	return func(ctx context.Context, in *request) (*reply[SettleAnswer], error) {
		body, err := jsonBody(in.gin)
		if err != nil {
			return nil, err
		}
		v := tasks.Verdict{Verb: verb}
		receipts := body.verdict(&v)
		if err := body.done(); err != nil {
			return nil, err
		}
		results, err := s.scheduler.Settle(ctx, v, receipts)
		if err != nil {
			return nil, err
		}
		answer, err := settleAnswer(results)
		if err != nil {
			return nil, err
		}
		return &reply[SettleAnswer]{*answer}, nil
	}
}

// verdict reads the receipts, and those other fields that the verb has.
func (s *scanner) verdict(v *tasks.Verdict) (receipts []string) {
	given := false
	for key := range s.object("") {
		switch name := string(key); {
		case name == "receipts":
			receipts, given = s.strings("receipts", tasks.MaxReserve), true
		case name == "delay" && v.Verb == tasks.Release:
			d := s.span("delay", 0, tasks.MaxAhead)
			v.Delay = &d
		case name == "lease" && v.Verb == tasks.Extend:
			v.Lease = s.span("lease", tasks.MinLease, tasks.MaxLease)
		case name == "reason" && (v.Verb == tasks.Release || v.Verb == tasks.Bury):
			v.Reason = s.str("reason")
		default:
			s.unknown(key)
		}
	}
	if !given && s.err == nil {
		s.fault("receipts", "is required")
	}
	return receipts
}

func settleAnswer(results []tasks.Settled) (*SettleAnswer, error) {
	a := &SettleAnswer{Recorded: true, Errors: []ReceiptError{}}
	var first time.Time
	for i, r := range results {
		if r.Err != nil {
			p := problemOf(r.Err)
			if p == nil {
				return nil, fmt.Errorf("receipt %d: %w", i, r.Err)
			}
			a.Errors = append(a.Errors, ReceiptError{i, r.ID, p})
			continue
		}
		a.Settled++
		a.Recorded = a.Recorded && r.Recorded
		if !r.LeaseUntil.IsZero() && (first.IsZero() || r.LeaseUntil.Before(first)) {
			first = r.LeaseUntil
		}
	}
	a.Recorded = a.Recorded && a.Settled > 0
	a.LeaseUntil = formatInstant(first)
	return a, nil
}
