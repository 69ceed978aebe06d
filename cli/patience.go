package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lapsehq/lapse/client"
)

// patience is how long a command that is about one task waits for its server without a word.
var patience = time.Second

// patiently makes a call. If that takes longer than patience, it says once on standard error what
// the server waits for, as far as the server tells. It returns what the call returns.
func patiently[T any](ctx context.Context, s *session, call func(ctx context.Context) (T, error)) (T, error) {
	asking, cancel := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-timer.C:
			s.tellWait(asking)
		case <-asking.Done():
		}
	})
	defer told.Wait()
	defer cancel()
	return call(ctx)
}

// tellWait says what the server waits for, unless ctx has ended.
func (s *session) tellWait(ctx context.Context) {
	r, err := s.aside.Ready(ctx)
	if ctx.Err() != nil {
		return
	}
	for _, line := range waitsFor(r, err) {
		fmt.Fprintln(s.std.err, "lapse: waiting: "+plain(line))
	}
}

// mostWaits is how many things that a server waits for are told.
const mostWaits = 5

// waitsFor returns why a call may take long, by the server's readiness or why that is not known.
func waitsFor(r *client.Readiness, err error) (lines []string) {
	switch {
	case err != nil:
		return []string{err.Error()}
	case r.Ledger.Condition != "":
		lines = append(lines, "the ledger: "+r.Ledger.Condition)
	}
	for _, w := range r.Waiting[:min(len(r.Waiting), mostWaits)] {
		line := w.What
		if w.Detail != "" {
			line += ": " + w.Detail
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		lines = append(lines, "the server has not answered yet; lapse nodes and /readyz say how it is")
	}
	return lines
}
