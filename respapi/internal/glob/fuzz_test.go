package glob

import (
	"errors"
	"strings"
	"testing"
)

// slow matches as the description of the patterns says, byte by byte and without care for time.
func slow(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return slow(pattern[1:], text) || text != "" && slow(pattern, text[1:])
	case text == "":
		return false
	case pattern[0] == '[':
		rest, ok := slowClass(pattern[1:], text[0])
		return ok && slow(rest, text[1:])
	case pattern[0] == '\\' && len(pattern) > 1:
		pattern = pattern[1:]
	case pattern[0] == '?':
		return slow(pattern[1:], text[1:])
	}
	return pattern[0] == text[0] && slow(pattern[1:], text[1:])
}

// slowClass matches a byte with the class at the beginning of a pattern, and returns the pattern
// after it.
func slowClass(pattern string, c byte) (rest string, ok bool) {
	pattern, not := strings.CutPrefix(pattern, "^")
	for pattern != "" && pattern[0] != ']' {
		switch {
		case pattern[0] == '\\' && len(pattern) > 1:
			ok = ok || pattern[1] == c
			pattern = pattern[2:]
		case len(pattern) > 2 && pattern[1] == '-':
			low, high := min(pattern[0], pattern[2]), max(pattern[0], pattern[2])
			ok = ok || low <= c && c <= high
			pattern = pattern[3:]
		default:
			ok = ok || pattern[0] == c
			pattern = pattern[1:]
		}
	}
	return strings.TrimPrefix(pattern, "]"), ok != not
}

// match matches with a pattern that is short enough.
func match(t *testing.T, pattern, text string) bool {
	t.Helper()
	p, err := Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return p.Match(text)
}

// A match ends, whatever the pattern is, and agrees with a plain model where that ends soon.
func FuzzMatch(f *testing.F) {
	for _, c := range [][2]string{
		{"*", ""}, {"a*b?c", "axxbyc"}, {"[a-c]x", "bx"}, {"[^a]", "a"}, {`\*`, "*"}, {"[", "["}, {"[a", "a"}, {`[\]`, "]"}, {"[z-a]", "m"},
		{`\`, `\`}, {"[a-", "-"}, {"[]", "a"}, {"[^]", "a"}, {"[^", "a"}, {"**a**", "a"}, {"ab*ba", "aba"}, {"*ab*ab*", "ab"}, {"*[ab]c", "xbcac"}, {`[\a-\z]*`, "-"},
	} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		p, err := Compile(pattern)
		if tooLong := len(pattern) > MaxPattern; err != nil || tooLong {
			if !errors.Is(err, ErrTooLong) || !tooLong {
				t.Errorf("a pattern of %d bytes: %v", len(pattern), err)
			}
			return
		}
		got := p.Match(text)
		if len(pattern) > 12 || len(text) > 24 {
			return
		}
		if want := slow(pattern, text); got != want {
			t.Errorf("%q matches %q: %v, want %v", pattern, text, got, want)
		}
	})
}

// Many stars take no more steps than the product of both lengths: with backtracking at each star
// this would not end.
func TestManyStars(t *testing.T) {
	if match(t, strings.Repeat("*a", 100)+"b", strings.Repeat("a", 10_000)) {
		t.Error("a text without b has matched")
	}
	if match(t, strings.Repeat("*[ab]?", 600)+"c*", strings.Repeat("a", 10_000)) {
		t.Error("a text without c has matched")
	}
}

// A class takes one step for each byte of the text, however long it is, and a pattern as much
// memory as its bytes allow.
func TestPatternsAreBounded(t *testing.T) {
	if _, err := Compile("[" + strings.Repeat("a", MaxPattern) + "]"); !errors.Is(err, ErrTooLong) {
		t.Errorf("a long pattern: %v", err)
	}
	for _, pattern := range []string{strings.Repeat("[ab]", MaxPattern/4), "*[" + strings.Repeat("a", MaxPattern-3) + "]", strings.Repeat("a", MaxPattern), strings.Repeat("*", MaxPattern)} {
		p, err := Compile([]byte(pattern))
		if err != nil || p.Size() > 24*MaxPattern {
			t.Errorf("%.10q takes %d bytes: %v", pattern, p.Size(), err)
		}
	}
	p, _ := Compile("*[" + strings.Repeat("ab", MaxPattern/2-2) + "]")
	if steps := len(p.tokens); steps != 2 {
		t.Errorf("the class has %d steps", steps)
	}
}
