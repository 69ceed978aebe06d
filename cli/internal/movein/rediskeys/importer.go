package rediskeys

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/cli/internal/movein"
	"github.com/lapsehq/lapse/client"
)

const (
	// batchSize is how many tasks are created with one request.
	batchSize = 1000
	// valueBatch is the same where values make them large.
	valueBatch = 100
	// writers is how many requests are under way at once.
	writers = 4
	// drift bounds by how much a deadline varies that follows from PTTL.
	drift = 100 * time.Millisecond
	// skew is by how much the clocks of a cluster's nodes may differ.
	skew = time.Second
	// toldSkew is the difference of clocks from which on the operator is told.
	toldSkew = time.Second
)

// Options say what to import. All but Rate, Rescan and the switches is required.
type Options struct {
	Redis  redis.UniversalClient
	Writer *movein.Writer
	Topic  string
	Match  string // a pattern of SCAN
	// Values: strings become a part of the payload.
	Values bool
	// Rate is how many keys are read a second at most. 0: no bound.
	Rate int
	// CancelGone: after a scan the tasks of earlier imports whose keys are gone before their
	// deadlines are cancelled.
	CancelGone bool
	// Watch: the import follows the source until its context ends.
	Watch bool
	// Rescan is how often the keys are scanned again with Watch.
	Rescan time.Duration
	// Configure: with Watch, the notifications of the source are switched on.
	Configure bool
	// Prepare is called with the topic before its tasks are written, and with Watch once nothing
	// speaks against the import. Several calls may run at once.
	Prepare func(ctx context.Context, topic string) error
	// Tell is called with lines for the operator.
	Tell func(format string, args ...any)
	// Size is called with about how many keys the source has, before each scan. It is called with
	// -1 behind a scan that is followed by waiting for notifications.
	Size func(keys int64)
}

// An importer is one import.
type importer struct {
	Options
	source *source
	limit  *rate.Limiter
	hands  *hands
	counts *movein.Counts
	// cancelled are keys whose tasks this import has cancelled. Only the goroutine that follows
	// the source uses it.
	cancelled map[string]struct{}
}

// Run imports. With Watch it returns nil when ctx ends, otherwise its cause. Errors: those of
// movein.Writer, movein.ErrSource, and without Watch movein.ErrNothing.
func Run(ctx context.Context, o Options) error {
	s, err := newSource(ctx, o.Redis)
	if err != nil {
		return err
	}
	m := &importer{Options: o, source: s, limit: limiterOf(o.Rate), hands: newHands(), counts: o.Writer.Counts,
		cancelled: make(map[string]struct{})}
	o.Writer.Moves = true
	if !s.absolute {
		o.Writer.Tolerance = drift
	}
	if d, ok := s.clockAhead(ctx); ok && (d > toldSkew || d < -toldSkew) {
		o.Tell("the clock of Redis differs from that of this machine by %s; tasks are due at the times that Redis says", d.Round(time.Millisecond))
	}
	if o.Watch {
		return m.follow(ctx)
	}
	if err := m.scan(ctx); err != nil {
		return err
	}
	if err := m.compare(ctx, func(context.Context) error { return nil }); err != nil {
		return err
	}
	return m.nothing(ctx)
}

// nothing returns a movein.ErrNothing if the import has found no key with a TTL, and no task of an
// earlier import to cancel.
func (m *importer) nothing(ctx context.Context) error {
	c := m.counts
	if c.Read.Load() > c.NoTTL.Load()+c.Gone.Load() || c.Cancelled.Load() > 0 {
		return nil
	}
	why := fmt.Sprintf("no key matches %q", m.Match)
	if c.NoTTL.Load() > 0 {
		why = fmt.Sprintf("no key that matches %q has a TTL", m.Match)
	}
	databases, err := m.source.databases(ctx)
	if err != nil {
		return err
	}
	return movein.Nothing(why, "databases with keys", databases)
}

// write creates or moves the tasks of keys that have a TTL.
func (m *importer) write(ctx context.Context, all []deadline) error {
	requests := make([]client.Request, 0, len(all))
	of := make([]int, 0, len(all)) // which deadline a request is for
	seen := make(map[string]struct{}, len(all))
	for i := range all {
		d := &all[i]
		if _, twice := seen[d.key]; twice {
			continue
		}
		seen[d.key] = struct{}{}
		if r, ok := m.request(d); ok {
			requests, of = append(requests, r), append(of, i)
		}
	}
	if len(requests) == 0 {
		return nil
	}
	if err := m.Prepare(ctx, m.Topic); err != nil {
		return err
	}
	outcomes, err := m.Writer.Write(ctx, requests)
	if err != nil {
		return err
	}
	var keys []string
	for k, o := range outcomes {
		if o == movein.Conflict {
			keys = append(keys, all[of[k]].key)
		}
	}
	return m.resolve(ctx, keys)
}

// request makes the task of a key that has a TTL; ok is false for others.
func (m *importer) request(d *deadline) (r client.Request, ok bool) {
	switch {
	case d.at < 0:
		return r, false
	case d.large:
		m.counts.Refuse(d.key, errors.New("its value is larger than 40 KiB; without --with-values it can be imported"))
		return r, false
	}
	return requestOf(m.Topic, d), true
}

// resolve decides about keys whose ids have tasks already with other content. What the keys say
// now counts.
func (m *importer) resolve(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	all, err := m.source.anywhere(ctx, keys, m.Values)
	if err != nil {
		return err
	}
	var requests []client.Request
	for i := range all {
		if r, ok := m.request(&all[i]); ok {
			requests = append(requests, r)
		} else if all[i].at < 0 {
			m.counts.Gone.Add(1)
		}
	}
	_, err = m.Writer.Resolve(ctx, requests)
	return err
}
