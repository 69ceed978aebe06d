package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/goccy/go-json"
)

// Error names the receipt and the reason.
func (e *ReceiptError) Error() string {
	if e.ID == "" {
		return fmt.Sprintf("receipt %d: %v", e.Index+1, e.Problem)
	}
	return fmt.Sprintf("%s: %v", e.ID, e.Problem)
}

// Unwrap returns the problem: ErrStale, ErrReceipt or ErrUnavailable.
func (e *ReceiptError) Unwrap() error { return e.Problem }

// Err joins Errors; nil if there are none.
func (s *Settlement) Err() error {
	all := make([]error, len(s.Errors))
	for i := range s.Errors {
		all[i] = &s.Errors[i]
	}
	return errors.Join(all...)
}

// Ack finishes deliveries: the tasks are done. Up to 1,000 receipts are settled with one
// call, here and below; each has its own outcome in the Settlement.
//
// The error is about the call as a whole: ErrInvalid, ErrUnavailable, ErrUnknown,
// ErrUnreachable.
func (c *Client) Ack(ctx context.Context, receipts ...string) (*Settlement, error) {
	return c.settle(ctx, "ack", same, verdict{Receipts: receipts})
}

// Return gives back deliveries that were not begun: their tasks are ready again at once, and the
// attempt does not count.
func (c *Client) Return(ctx context.Context, receipts ...string) (*Settlement, error) {
	return c.settle(ctx, "return", again, verdict{Receipts: receipts})
}

// Release ends deliveries without success, and the attempt counts: another one follows after the
// delay, or after the topic's backoff if delay is nil. The reason is kept as the task's LastError.
func (c *Client) Release(ctx context.Context, delay *time.Duration, reason string, receipts ...string) (*Settlement, error) {
	return c.settle(ctx, "release", again, verdict{Receipts: receipts, Delay: (*Duration)(delay), Reason: reason})
}

// Extend begins the leases of deliveries again, from now on; 0 means the topic's lease.
func (c *Client) Extend(ctx context.Context, lease time.Duration, receipts ...string) (*Settlement, error) {
	return c.settle(ctx, "extend", same, verdict{Receipts: receipts, Lease: Duration(lease)})
}

// Bury gives deliveries up: the tasks are dead. The reason is kept as LastError.
func (c *Client) Bury(ctx context.Context, reason string, receipts ...string) (*Settlement, error) {
	return c.settle(ctx, "bury", again, verdict{Receipts: receipts, Reason: reason})
}

type verdict struct {
	Receipts []string  `json:"receipts"`
	Delay    *Duration `json:"delay,omitempty"`
	Lease    Duration  `json:"lease,omitempty"`
	Reason   string    `json:"reason,omitempty"`
}

func (c *Client) settle(ctx context.Context, verb string, e effect, v verdict) (*Settlement, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	s := &Settlement{}
	q := call{method: http.MethodPost, path: "/v1/receipts/" + verb, body: body, effect: e}
	if _, err := c.do(ctx, q, s); err != nil {
		return nil, err
	}
	for _, e := range s.Errors {
		if e.Problem == nil {
			return nil, errors.New("the answer does not say why a receipt settled nothing")
		}
	}
	return s, nil
}
