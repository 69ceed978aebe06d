package rediskeys

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/cli/internal/movein"
)

const (
	leastPage = 16
	// mostPage is how many keys a page has. Other clients wait while Redis is busy with one: with
	// 128 keys the 99th percentile of their waits grew by 0.6 of itself, with 512 by 2.5.
	mostPage = 128
	// valuePage is the same where values are read, too.
	valuePage = 32
	// burst is how many keys may be read at once under a rate.
	burst = 1000
	// A SCAN that takes slowPage longer than a PING makes the next pages smaller, and one that
	// takes less than quickPage longer makes them larger.
	slowPage  = 2 * time.Millisecond
	quickPage = time.Millisecond
	// pingEvery is after how many pages the PING is measured again.
	pingEvery = 128
	// Rests are gathered: a machine that is busy ends short ones late.
	leastRest = 2 * time.Millisecond
	mostRest  = 250 * time.Millisecond
)

// A pacer keeps an import from harming its source. It bounds the pages: other clients wait while
// Redis is busy with one. After each it rests for a quarter of the time that it took, and for all
// of it where that was long. One goroutine uses it.
type pacer struct {
	limit *rate.Limiter // nil: no bound
	page  int64         // COUNT of the next SCAN
	most  int64
	pages int           // so far
	ping  time.Duration // what a PING takes: the network, and the load of both machines
	slow  bool          // the last SCAN took long
	owed  time.Duration // rest that is due; less than zero after one that took too long
}

// newPacer makes the pacer of a scan. All pacers of an import share the limiter.
func newPacer(limit *rate.Limiter, values bool) *pacer {
	if values {
		return &pacer{limit: limit, page: valuePage, most: valuePage}
	}
	return &pacer{limit: limit, page: mostPage, most: mostPage}
}

// limiterOf returns the limiter for so many keys a second, nil if there is no bound.
func limiterOf(perSecond int) *rate.Limiter {
	if perSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), burst)
}

// pingDue reports whether a PING is to be measured before the next page.
func (p *pacer) pingDue() bool {
	p.pages++
	return p.pages%pingEvery == 1
}

// pinged notes how long a PING took.
func (p *pacer) pinged(took time.Duration) {
	if p.ping == 0 {
		p.ping = took
	}
	p.ping += (took - p.ping) / 4
}

// scanned notes how long a SCAN took.
func (p *pacer) scanned(took time.Duration) {
	took -= p.ping
	p.slow = took > slowPage
	switch {
	case p.slow:
		p.page = max(p.page/2, leastPage)
	case took < quickPage:
		p.page = min(p.page+p.page/4, p.most)
	}
}

// rest waits after a page of so many keys that took so long.
func (p *pacer) rest(ctx context.Context, keys int, took time.Duration) error {
	if p.limit != nil {
		for keys > 0 { // a page may have more keys than were asked for
			n := min(keys, burst)
			if err := p.limit.WaitN(ctx, n); err != nil {
				return err
			}
			keys -= n
		}
	}
	if !p.slow {
		took /= 4
	}
	p.owed += min(took, mostRest)
	if p.owed < leastRest {
		return ctx.Err()
	}
	began := time.Now()
	err := movein.Wait(ctx, p.owed)
	p.owed = max(p.owed-time.Since(began), -mostRest)
	return err
}
