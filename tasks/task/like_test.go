package task

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLikeError(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 NoError,
		" \n ":                             NoError,
		"(none)":                           NoError,
		"refused":                          "refused",
		"  refused \r\n at line 7":         "refused",
		"order 4242: HTTP 503 after 1.25s": "order #: HTTP 503 after #.#",
		"order-4242x failed":               "order-# failed",
		"x509: bad 12345":                  "#: bad #",
		"099 600 100 599 1000":             "# # 100 599 #",
		"é7 ü":                             "# ü",
		"no such order 018f3c2a-7d1e-7abc-8def-0123456789ab here": "no such order # here",
		"dial tcp 10.0.0.7:5432":                                  "dial tcp #.#.#.#:#",
		strings.Repeat("a", 200):                                  strings.Repeat("a", MaxLike),
		strings.Repeat("a", MaxLike-3) + " 500 times":             strings.Repeat("a", MaxLike-3) + " #",
		strings.Repeat("a", MaxLike-1) + " 500":                   strings.Repeat("a", MaxLike-1),
		strings.Repeat("é", 100):                                  strings.Repeat("é", MaxLike/2),
		strings.Repeat("1 ", 10) + strings.Repeat("b", 90):        strings.Repeat("# ", 10) + strings.Repeat("b", 90),
	} {
		if got := LikeError(text); got != want {
			t.Errorf("LikeError(%q) = %q, want %q", text, got, want)
		}
	}
	if a, b := LikeError("the receiver answered 503"), LikeError("the receiver answered 404"); a == b {
		t.Error("two statuses are taken for one: ", a)
	}
}

// What LikeError returns is a pattern of itself, bounded, and valid text if the error was.
func TestLikeErrorRepeats(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	parts := []string{"503", "5", "1000", "a", "é", " ", "  ", "-", "#", "\n", "\t", "018f3c2a-7d1e-7abc-8def-0123456789ab", "order", "9f86d081", ":", "\x00"}
	for range 20_000 {
		var b strings.Builder
		for range rng.IntN(80) {
			b.WriteString(parts[rng.IntN(len(parts))])
		}
		like := LikeError(b.String())
		if again := LikeError(like); again != like || len(like) > MaxLike || like == "" || !utf8.ValidString(like) {
			t.Fatalf("LikeError(%q) = %q, and of that %q", b.String(), like, again)
		}
	}
}

func BenchmarkLikeError(b *testing.B) {
	text := fmt.Sprintf("Post \"https://example.com/hooks/%d\": the receiver answered 503 Service Unavailable after 1.25s", 123456)
	b.ReportAllocs()
	for b.Loop() {
		LikeError(text)
	}
}
