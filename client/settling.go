package client

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// settleEach settles deliveries with different judgements: one call for each judgement.
func (r *run) settleEach(batch []*held) {
	var order []judgement
	alike := make(map[judgement][]*held)
	for _, h := range batch {
		if alike[h.judgement] == nil {
			order = append(order, h.judgement)
		}
		alike[h.judgement] = append(alike[h.judgement], h)
	}
	for _, j := range order {
		r.settle(alike[j], j)
	}
}

// settle settles deliveries with equal judgements, and repeats the call until the server has
// answered: receipts stay valid over its restart. Deliveries that are not settled by the end of the
// run stay open.
func (r *run) settle(batch []*held, j judgement) {
	doubtful := false // an earlier attempt may have been carried out
	for failures := 0; ; failures++ {
		s, err := j.settle(r.settling, r.client, receipts(batch))
		if err == nil {
			if batch, err = r.settled(batch, j.verb, s, doubtful); err == nil {
				return
			}
		}
		switch {
		case r.settling.Err() != nil:
			return
		case !heals(err):
			r.fail(err)
			return
		case failures == 0:
			r.o.Log.Warn("deliveries cannot be settled; trying again until they can", "deliveries", len(batch), "error", err)
		}
		doubtful = doubtful || errors.Is(err, ErrUnknown)
		r.client.rest(r.settling, failures, err)
	}
}

// settled removes deliveries from the run, and returns those that the server could not judge yet,
// since it replays or its ledger is away, with the reason. After a doubtful attempt, that attempt
// may be what has ended a delivery.
func (r *run) settled(batch []*held, v verb, s *Settlement, doubtful bool) (again []*held, why error) {
	failed := refused(s)
	var lost []*held
	r.mu.Lock()
	for i, h := range batch {
		err, bad := failed[i]
		if bad && !over(err) {
			again, why = append(again, h), err
			continue
		}
		r.closeLocked(h)
		switch {
		case bad && !doubtful:
			r.totals.Lost++
			lost = append(lost, h)
		case h.end == nil:
			r.totals.Returned++
		case v == ack:
			r.totals.Acked++
		case v == bury:
			r.totals.Buried++
		default:
			r.totals.Released++
		}
	}
	r.mu.Unlock()
	r.warn("a lease was lost before its delivery was settled", lost)
	r.free()
	return again, why
}

// heals reports whether an error may pass by itself. It does not if the server, or a proxy in its
// place, refuses the request as such.
func heals(err error) bool {
	if p := (*Problem)(nil); errors.As(err, &p) && p.Status >= 300 && p.Status < 500 {
		return p.Status == http.StatusTooManyRequests || p.Status == http.StatusRequestTimeout
	}
	return !errors.Is(err, ErrInvalid) && !insecure(err)
}

// rest pauses before an attempt that follows on n failed ones: as long as the server asks for, at
// most MaxWait.
func (c *Client) rest(ctx context.Context, n int, err error) {
	pause, ok := c.pause(n, err)
	if !ok {
		pause = c.maxWait
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
