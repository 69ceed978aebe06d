package glob

import (
	"strings"
	"testing"
)

// slow matches as the description of the patterns says, without care for time. It is right for
// patterns without classes and backslashes.
func slow(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return slow(pattern[1:], text) || text != "" && slow(pattern, text[1:])
	case text == "":
		return false
	}
	return (pattern[0] == '?' || pattern[0] == text[0]) && slow(pattern[1:], text[1:])
}

// A match ends, whatever the pattern is, and agrees with a plain model where that has an opinion.
func FuzzMatch(f *testing.F) {
	for _, c := range [][2]string{{"*", ""}, {"a*b?c", "axxbyc"}, {"[a-c]x", "bx"}, {"[^a]", "a"}, {`\*`, "*"}, {"[", "["}, {"[a", "a"}, {`[\]`, "]"}, {"[z-a]", "m"}, {`\`, `\`}, {"[a-", "-"}, {"[]", "a"}} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		got := Match(pattern, text)
		if strings.ContainsAny(pattern, `[\`) || len(pattern) > 12 || len(text) > 24 {
			return
		}
		if want := slow(pattern, text); got != want {
			t.Errorf("Match(%q, %q) is %v, want %v", pattern, text, got, want)
		}
	})
}

// Many stars take no more steps than the product of both lengths: with backtracking at each star
// this would not end.
func TestManyStars(t *testing.T) {
	if Match(strings.Repeat("*a", 100)+"b", strings.Repeat("a", 10_000)) {
		t.Error("a text without b has matched")
	}
}
