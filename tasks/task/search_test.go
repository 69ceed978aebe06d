package task

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestMatchOf(t *testing.T) {
	for _, c := range []struct {
		text, name string
		want       Match
	}{
		{"order-1", "order-1", MatchExact},
		{"Order-1", "order-1", MatchBegin}, // but for its letters it is the text
		{"order", "order-1", MatchBegin},
		{"ORDER", "order-1", MatchBegin},
		{"r-1", "order-1", MatchPart},
		{"R-1", "order-1", MatchPart},
		{"1", "order-1", MatchPart},
		{"aab", "aaab", MatchPart},
		{"order-11", "order-1", 0},
		{"order-2", "order-1", 0},
		{"@", "`", 0}, // 32 apart, but no letters
		{"x", "", 0},
	} {
		if m := MatchOf(c.text, c.name); m != c.want || MatchOf(c.text, []byte(c.name)) != m {
			t.Errorf("%q in %q: %v, want %v", c.text, c.name, m, c.want)
		}
	}
}

// What is wrong with a search is named, with what may be given.
func TestSearchQueryChecked(t *testing.T) {
	q, err := SearchQuery{Text: ".-"}.Checked()
	if err != nil || q.Limit != SearchFound || q.Within != SearchWithin {
		t.Errorf("%+v, %v", q, err)
	}
	for want, q := range map[string]SearchQuery{
		"q must not be empty":               {},
		"q must be at most 128 bytes":       {Text: strings.Repeat("a", 129)},
		"q must be characters that ids":     {Text: "a b"},
		"limit must be from 1 to 1000":      {Text: "a", Limit: 1001},
		"within must be from 50ms to 10s":   {Text: "a", Within: time.Minute},
		"within must be from 50ms to 10s, ": {Text: "a", Within: -1},
	} {
		if _, err := q.Checked(); !errors.Is(err, ErrInvalid) || !strings.Contains(strings.ReplaceAll(err.Error(), ":", "")+", ", want) {
			t.Errorf("%+v: %v, want %q", q, err, want)
		}
	}
}
