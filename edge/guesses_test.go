package edge

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Wrong tokens of one address are answered late after some, and the first one of a minute is
// logged, for a few addresses. Those of others are not late, and the right token never is.
func TestWrongTokensAreSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		callers, err := NewCallers([]Token{{Name: "a", SHA256: DigestOf("secret"), Scopes: []Scope{ScopeRead}}})
		if err != nil {
			t.Fatal(err)
		}
		callers.Log = slog.New(slog.NewTextHandler(&log, nil))
		took := func(ctx context.Context, token, from string) time.Duration {
			begun := time.Now()
			if got := callers.Admit(ctx, token, from); (got != nil) != (token == "secret") {
				t.Errorf("%s is admitted as %v", token, got)
			}
			return time.Since(begun)
		}
		for range freeGuesses {
			if d := took(t.Context(), "wrong", "10.0.0.1:1000"); d != 0 {
				t.Errorf("one of the first takes %v", d)
			}
		}
		for _, c := range []struct {
			token, from string
			want        time.Duration
		}{
			{"wrong", "10.0.0.1:1001", guessPause}, {"secret", "10.0.0.1:1000", 0}, {"wrong", "10.0.0.2:1000", 0}, {"wrong", "@", 0}, {"wrong", "[2001:db8::1]:1", 0},
		} {
			if got := took(t.Context(), c.token, c.from); got != c.want {
				t.Errorf("%s from %s takes %v, want %v", c.token, c.from, got, c.want)
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if d := took(gone, "wrong", "10.0.0.1:1000"); d != 0 {
			t.Errorf("a caller that has gone is waited for for %v", d)
		}
		for i := range 2 * mostGuessers {
			took(gone, "wrong", fmt.Sprintf("10.%d.%d.1:1", 1+i/256, i%256))
		}
		if n := len(callers.guesses.of); n > mostGuessers+1 {
			t.Errorf("%d addresses are told apart", n)
		}
		time.Sleep(guessWindow + time.Second)
		if d := took(t.Context(), "wrong", "10.0.0.1:1000"); d != 0 {
			t.Errorf("after the window one takes %v", d)
		}
		if lines := strings.Count(log.String(), "\n"); lines != loggedGuessers+1 {
			t.Errorf("%d lines were logged: %s", lines, log.String())
		}
		for _, text := range []string{
			"address=10.0.0.1/32 in_the_last_window=0 from_addresses=0", "address=10.0.0.2/32 ", "address=2001:db8::/64 ",
			"address=10.0.0.1/32 in_the_last_window=20015 from_addresses=10000",
		} {
			if !strings.Contains(log.String(), text) {
				t.Errorf("%q is not in the log: %s", text, log.String())
			}
		}
	})
}
