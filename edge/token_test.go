package edge

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// tokenOf makes a token whose text is "secret-" and its name.
func tokenOf(name string, scopes ...Scope) Token {
	return Token{Name: name, Scopes: scopes, SHA256: DigestOf("secret-" + name)}
}

// All faults are reported at once, and none of them shows a digest.
func TestTokenFaults(t *testing.T) {
	many := make([]Token, MaxTokens+1)
	for i := range many {
		many[i] = tokenOf(fmt.Sprint("t", i), ScopeRead)
	}
	for _, c := range []struct {
		tokens []Token
		want   []string
	}{
		{nil, []string{"at least one token"}},
		{many, []string{"at most 1000"}},
		{[]Token{
			tokenOf("good", ScopeRead, ScopeReceive), tokenOf("a b", ScopeRead), tokenOf(strings.Repeat("n", 65), ScopeRead),
			tokenOf("none"), tokenOf("typo", "reed"), {Name: "zero", Scopes: []Scope{ScopeRead}},
			{Name: "void", Scopes: []Scope{ScopeRead}, SHA256: DigestOf("")},
			{Name: "twin", Scopes: []Scope{ScopeRead}, SHA256: DigestOf("secret-good")},
			{Name: "good", Scopes: []Scope{ScopeRead}, SHA256: DigestOf("other")},
		}, []string{"token 2: name", "token 3: name", "none: scopes", `typo: scopes: there is no "reed"`, "zero: sha256", "void: sha256",
			"twin: sha256 is that of good", "good: the name is given twice"}},
	} {
		err := CheckTokens(c.tokens)
		if err == nil {
			t.Errorf("%v was accepted", c.want)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not reported in %v", part, err)
			}
		}
	}
}

// Limits that make no sense are refused.
func TestLimitFaults(t *testing.T) {
	with := func(name string, limit func(*Token), scopes ...Scope) Token {
		token := tokenOf(name, scopes...)
		limit(&token)
		return token
	}
	err := CheckTokens([]Token{
		with("admin", func(t *Token) { t.Topics = []string{"a"} }, ScopeAdmin, ScopeRead),
		with("reader", func(t *Token) { t.MaxTopics = 1 }, ScopeRead),
		with("odd", func(t *Token) { t.Topics = []string{"a", "b c"} }, ScopeRead),
		with("many", func(t *Token) { t.Topics = slices.Repeat([]string{"a"}, 101) }, ScopeRead),
		with("minus", func(t *Token) { t.MaxPending = -1 }, ScopeSchedule),
		with("good", func(t *Token) { t.Topics, t.MaxTopics = []string{"a.*", "b"}, 7 }, ScopeSchedule),
	})
	if err == nil {
		t.Fatal("they are accepted")
	}
	for _, want := range []string{"admin: topics, max_topics", "reader: max_topics and max_pending need", "odd: topics: the entry 2", "many: topics must be at most 100",
		"minus: max_topics and max_pending must not be negative"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "good") {
		t.Error(err)
	}
}
