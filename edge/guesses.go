package edge

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

const (
	// freeGuesses is how many wrong tokens of an address are answered at once in a guessWindow. The
	// answer to each further one is kept back for guessPause.
	freeGuesses = 10
	guessWindow = time.Minute
	guessPause  = time.Second
	// mostGuessers is how many addresses are told apart in a window. The others count as one.
	mostGuessers = 10_000
	// loggedGuessers is how many addresses of a window get a line in the log.
	loggedGuessers = 5
)

// guesses are the tokens that callers have shown in a window and that the server does not know.
// A token cannot be guessed. But to try one costs the server work, and a program whose token was
// removed may try it without end.
type guesses struct {
	mu    sync.Mutex // guards what follows
	until time.Time  // the end of the window
	of    map[netip.Prefix]int
	all   int
	// Those of the window before, and their addresses.
	before, beforeFrom int
}

// Admit returns the caller whose token is shown from an address, as RemoteAddr gives it; nil if
// there is none. Then it notes that, and from the eleventh wrong token on of an address within a
// minute it waits for a second, or until ctx ends.
func (s *Callers) Admit(ctx context.Context, token, from string) *Caller {
	caller := s.Find(DigestOf(token))
	if caller != nil {
		return caller
	}
	var address netip.Prefix // not valid: of a socket file
	if at, err := netip.ParseAddrPort(from); err == nil {
		address = prefixOf(at.Addr())
	}
	if pause := s.guesses.wrong(address, time.Now(), s.Log); pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// wrong counts a wrong token, and returns how long its answer is kept back. It logs the first one
// of each of the first loggedGuessers addresses of a window, with what the window before had.
func (g *guesses) wrong(from netip.Prefix, now time.Time, log *slog.Logger) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.After(g.until) {
		g.before, g.beforeFrom = g.all, len(g.of)
		g.until, g.of, g.all = now.Add(guessWindow), make(map[netip.Prefix]int), 0
	}
	if g.of[from] == 0 {
		switch told := len(g.of); {
		case told < loggedGuessers:
			cmp.Or(log, slog.Default()).Warn("a caller shows a token that is unknown",
				"address", from, "in_the_last_window", g.before, "from_addresses", g.beforeFrom)
		case told >= mostGuessers:
			from = netip.Prefix{}
		}
	}
	g.all++
	if g.of[from]++; g.of[from] > freeGuesses {
		return guessPause
	}
	return 0
}
