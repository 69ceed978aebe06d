package edge

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/tasks"
)

// MaxTokens bounds the tokens of a server: each that is shown is compared with all.
const MaxTokens = 1000

// A Digest is the SHA-256 of the text of a token.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a token.
func DigestOf(text string) Digest { return sha256.Sum256([]byte(text)) }

// A Token lets its bearer call the server. The server stores only its digest, so that its settings
// do not reveal the token.
type Token struct {
	Name   string  // shows in the log, 1 to 64 of A-Z a-z 0-9 . _ : @ -
	Scopes []Scope // what it opens, at least one
	SHA256 Digest  // of the token's text

	// Topics are patterns of the topics to which the token is limited, up to 100: names, or the
	// beginning of names and an asterisk ("order.*"). Empty: all topics. Not with ScopeAdmin.
	Topics []string
	// MaxTopics and MaxPending bound how many topics with tasks there may be, and how many tasks
	// those may have on each node, before the token can create no more, see tasks.Grant. 0: no
	// bound. Only with ScopeSchedule, and not with ScopeAdmin.
	MaxTopics, MaxPending int
}

// Equal reports whether two tokens have the same name, text, rights and limits.
func (t *Token) Equal(u *Token) bool {
	return t.Name == u.Name && t.SHA256 == u.SHA256 && slices.Equal(t.Scopes, u.Scopes) && slices.Equal(t.Topics, u.Topics) &&
		t.MaxTopics == u.MaxTopics && t.MaxPending == u.MaxPending
}

// grant returns the limits of the token's calls; nil if there are none.
func (t *Token) grant() *tasks.Grant {
	g := tasks.Grant{Topics: t.Topics, MaxTopics: t.MaxTopics, MaxPending: t.MaxPending, Reserved: slices.Contains(t.Scopes, ScopeAdmin)}
	if g.Equal(&tasks.Grant{}) {
		return nil
	}
	return &g
}

// CheckTokens returns everything that is wrong with a list of tokens. It names each token by its
// name or, where it has none, by its place.
func CheckTokens(tokens []Token) error {
	var all *multierror.Error
	fault := func(format string, args ...any) { all = multierror.Append(all, fmt.Errorf(format, args...)) }
	if len(tokens) == 0 {
		fault("there must be at least one token")
	}
	if len(tokens) > MaxTokens {
		fault("there must be at most %d tokens", MaxTokens)
	}
	nothing := DigestOf("")
	names, digests := make(map[string]bool), make(map[Digest]string)
	for i, t := range tokens {
		who := t.Name
		switch {
		case !validTokenName(t.Name):
			who = fmt.Sprint("token ", i+1)
			fault("%s: name must be 1 to 64 characters of A-Z a-z 0-9 . _ : @ -", who)
		case names[t.Name]:
			fault("%s: the name is given twice", who)
		}
		names[t.Name] = true
		if len(t.Scopes) == 0 {
			fault("%s: scopes must name at least one of %s", who, scopeList())
		}
		for _, s := range t.Scopes {
			if !slices.Contains(Scopes, s) {
				fault("%s: scopes: there is no %q; want %s", who, s, scopeList())
			}
		}
		t.checkLimits(func(problem string) { fault("%s: %s", who, problem) })
		switch other, twice := digests[t.SHA256]; {
		case t.SHA256 == Digest{} || t.SHA256 == nothing:
			fault("%s: sha256 must be the digest of a token, not of an empty text", who)
		case twice:
			fault("%s: sha256 is that of %s: one token cannot have two names", who, other)
		default:
			digests[t.SHA256] = who
		}
	}
	return all.ErrorOrNil()
}

// checkLimits reports what is wrong with what a token is limited to.
func (t *Token) checkLimits(fault func(problem string)) {
	if len(t.Topics) > tasks.MaxGrantTopics {
		fault(fmt.Sprintf("topics must be at most %d", tasks.MaxGrantTopics))
	}
	for i, p := range t.Topics {
		if wrong := tasks.CheckPattern(p); wrong != "" {
			fault(fmt.Sprintf("topics: the entry %d %s", i+1, wrong))
		}
	}
	if t.MaxTopics < 0 || t.MaxPending < 0 {
		fault("max_topics and max_pending must not be negative")
	}
	bounded := t.MaxTopics != 0 || t.MaxPending != 0
	switch {
	case slices.Contains(t.Scopes, ScopeAdmin) && (len(t.Topics) > 0 || bounded):
		fault("topics, max_topics and max_pending do not go with the scope admin, which opens everything")
	case bounded && !slices.Contains(t.Scopes, ScopeSchedule):
		fault("max_topics and max_pending need the scope schedule: others create no tasks")
	}
}

func validTokenName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("._:@-", c) >= 0) {
			return false
		}
	}
	return len(name) >= 1 && len(name) <= 64
}
