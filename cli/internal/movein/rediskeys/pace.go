package rediskeys

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/cli/internal/movein"
)

const (
	leastPage = 50
	firstPage = 250
	mostPage  = 1000
	// valuePage is the largest page where values are read, too.
	valuePage = 100
	// A page that takes longer than slowPage makes the next ones smaller, one that takes less than
	// quickPage makes them larger.
	slowPage  = 2 * time.Millisecond
	quickPage = time.Millisecond
	mostRest  = 250 * time.Millisecond
)

// A pacer keeps an import from harming its source: it bounds the pages, and rests for as long as
// the source was busy with one. One goroutine uses it.
type pacer struct {
	limit *rate.Limiter // nil: no bound
	page  int64         // COUNT of the next SCAN
	most  int64
}

// newPacer makes the pacer of a scan. All pacers of an import share the limiter.
func newPacer(limit *rate.Limiter, values bool) *pacer {
	if values {
		return &pacer{limit: limit, page: leastPage, most: valuePage}
	}
	return &pacer{limit: limit, page: firstPage, most: mostPage}
}

// limiterOf returns the limiter for so many keys a second, nil if there is no bound.
func limiterOf(perSecond int) *rate.Limiter {
	if perSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), mostPage)
}

// scanned notes how long a SCAN took.
func (p *pacer) scanned(took time.Duration) {
	switch {
	case took > slowPage:
		p.page = max(p.page/2, leastPage)
	case took < quickPage:
		p.page = min(p.page+p.page/4, p.most)
	}
}

// rest waits after a page of so many keys for which the source was busy for a while.
func (p *pacer) rest(ctx context.Context, keys int, took time.Duration) error {
	if p.limit != nil {
		for keys > 0 { // a page may have more keys than were asked for
			n := min(keys, mostPage)
			if err := p.limit.WaitN(ctx, n); err != nil {
				return err
			}
			keys -= n
		}
	}
	return movein.Wait(ctx, min(took, mostRest))
}
