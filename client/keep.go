package client

import (
	"context"
	"errors"
	"slices"
	"time"
)

// keep extends the leases of all open deliveries, including those that wait for a handler or for
// the answer to their settlement. Six times in a lease it looks for deliveries whose lease is a
// third over, so that each is extended between a third and half of its time, many with one call. It
// looks more often while calls fail.
func (r *run) keep(ctx context.Context) {
	timer := time.NewTimer(r.o.Lease / 6)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		next := r.o.Lease / 6
		for part := range slices.Chunk(r.expiring(time.Now()), maxReceipt) {
			if !r.extend(ctx, part) {
				next = r.o.Lease / 30
			}
		}
		timer.Reset(next)
	}
}

// expiring returns the deliveries whose leases need an extension. If a lease has run out all the
// same, the handler learns it; the server decides whether the lease is still valid.
func (r *run) expiring(now time.Time) (list []*held) {
	var late []*held
	r.mu.Lock()
	for h := range r.open {
		left := h.until.Sub(now)
		if h.lost || left > r.o.Lease/3*2 {
			continue
		}
		list = append(list, h)
		if left <= 0 && !h.ended && h.end != nil && !h.late {
			h.late = true
			h.end(ErrLeaseLost)
			late = append(late, h)
		}
	}
	r.mu.Unlock()
	r.warn("a lease ran out, since it could not be extended", late)
	return list
}

// extend extends leases with one call. The call takes at most half of the time left to the first of
// them, so that there is time for another call.
func (r *run) extend(ctx context.Context, list []*held) bool {
	first := slices.MinFunc(list, func(a, b *held) int { return a.until.Compare(b.until) })
	asked := time.Now()
	within, cancel := context.WithTimeout(ctx, max(first.until.Sub(asked)/2, r.o.Lease/12))
	defer cancel()
	s, err := r.client.Extend(within, r.o.Lease, receipts(list)...)
	switch {
	case err == nil:
		r.extended(list, s, asked.Add(r.o.Lease))
	case ctx.Err() == nil && !heals(err):
		r.fail(err)
	default:
		r.o.Log.Debug("leases could not be extended; trying again", "leases", len(list), "error", err)
	}
	return err == nil
}

// extended records the result of a call.
func (r *run) extended(list []*held, s *Settlement, until time.Time) {
	failed := refused(s)
	var lost []*held
	r.mu.Lock()
	for i, h := range list {
		switch err, bad := failed[i]; {
		case !bad:
			h.until, h.late = until, false
			r.totals.Extended++
		case over(err) && r.loseLocked(h):
			lost = append(lost, h)
		}
	}
	r.mu.Unlock()
	r.warn("a lease was lost", lost)
	r.free()
}

// loseLocked records that the server says a delivery is over. It ignores a delivery that is judged:
// the call that settles it may just have been faster.
func (r *run) loseLocked(h *held) bool {
	if h.ended || h.lost {
		return false
	}
	h.lost = true
	if h.end != nil {
		h.end(ErrLeaseLost)
		return true
	}
	r.queue = slices.DeleteFunc(r.queue, func(q *held) bool { return q == h })
	r.totals.Lost++
	r.closeLocked(h)
	return true
}

// warn logs messages about deliveries. It is not called under a lock, since a log handler is code
// of the application.
func (r *run) warn(text string, list []*held) {
	for _, h := range list {
		r.o.Log.Warn(text, "task", h.ID, "attempt", h.Attempt)
	}
}

// over reports whether a receipt is refused for good.
func over(err error) bool { return errors.Is(err, ErrStale) || errors.Is(err, ErrReceipt) }

// refused returns the errors by the place of their receipts.
func refused(s *Settlement) map[int]error {
	all := make(map[int]error, len(s.Errors))
	for i := range s.Errors {
		all[s.Errors[i].Index] = &s.Errors[i]
	}
	return all
}

func receipts(list []*held) []string {
	all := make([]string, len(list))
	for i, h := range list {
		all[i] = h.Receipt
	}
	return all
}
