package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/hashicorp/go-multierror"
)

// A Scope is a part of the API that a token opens.
type Scope string

// The scopes. /healthz and /readyz are open to everybody.
const (
	ScopeSchedule Scope = "schedule" // create, replace, move, cancel, fire, get and list tasks, also by group
	ScopeReceive  Scope = "receive"  // reserve tasks, and settle deliveries
	ScopeRead     Scope = "read"     // everything that changes nothing, metrics and the dashboard included
	ScopeAdmin    Scope = "admin"    // everything
)

// Scopes are all scopes there are.
var Scopes = []Scope{ScopeSchedule, ScopeReceive, ScopeRead, ScopeAdmin}

// MaxTokens bounds the tokens of a server: each request is compared with all.
const MaxTokens = 1000

// A Token lets its bearer call the server. The server knows no more of it than its
// digest, so that whoever reads its settings cannot use them.
type Token struct {
	Name   string            // shows in the log, 1 to 64 of A-Z a-z 0-9 . _ : @ -
	Scopes []Scope           // what it opens, at least one
	SHA256 [sha256.Size]byte // of the token's text
}

// allow says who may use a route: bearers of any of these scopes. Admins may use
// every route, also one that says nothing.
type allow uint8

const (
	schedulers allow = 1 << iota
	receivers
	readers
	admins
	anybody // even without a token

	bearers = schedulers | receivers | readers | admins // any token
)

func allowOf(scopes []Scope) (a allow) {
	for _, s := range scopes {
		a |= 1 << slices.Index(Scopes, s)
	}
	return a
}

// scopes is the reverse, without admin where others do.
func (a allow) scopes() (list []Scope) {
	for i, s := range Scopes {
		if a&(1<<i) != 0 && (s != ScopeAdmin || len(list) == 0) {
			list = append(list, s)
		}
	}
	return list
}

func (a allow) String() string {
	var names []string
	for _, s := range a.scopes() {
		names = append(names, string(s))
	}
	return strings.Join(names, " or ")
}

// A tokenSet is what a server checks requests against. It does not change.
type tokenSet []knownToken

type knownToken struct {
	Token
	may allow
}

// SetTokens replaces the tokens of a server, for requests that begin from now on; a
// long-poll that waits already goes on. There must be at least one. On an error, which
// lists everything that is wrong, the tokens stay as they were.
func (s *Server) SetTokens(tokens []Token) error {
	if err := CheckTokens(tokens); err != nil {
		return err
	}
	set := make(tokenSet, len(tokens))
	for i, t := range tokens {
		set[i] = knownToken{t, allowOf(t.Scopes)}
	}
	s.tokens.Store(&set)
	return nil
}

// CheckTokens reports everything that is wrong with a list of tokens, each fault by
// the token's name or, where it has none, its place.
func CheckTokens(tokens []Token) error {
	var all *multierror.Error
	fault := func(format string, args ...any) { all = multierror.Append(all, fmt.Errorf(format, args...)) }
	if len(tokens) == 0 {
		fault("there must be at least one token")
	}
	if len(tokens) > MaxTokens {
		fault("there must be at most %d tokens", MaxTokens)
	}
	nothing := sha256.Sum256(nil)
	names, digests := make(map[string]bool), make(map[[sha256.Size]byte]string)
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
		switch other, twice := digests[t.SHA256]; {
		case t.SHA256 == [sha256.Size]byte{} || t.SHA256 == nothing:
			fault("%s: sha256 must be the digest of a token, not of nothing", who)
		case twice:
			fault("%s: sha256 is that of %s: one token cannot have two names", who, other)
		default:
			digests[t.SHA256] = who
		}
	}
	return all.ErrorOrNil()
}

func scopeList() string {
	var names []string
	for _, s := range Scopes {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func validTokenName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("._:@-", c) >= 0) {
			return false
		}
	}
	return len(name) >= 1 && len(name) <= 64
}

// find returns the token with this text. It takes as long whether there is one or not,
// and whichever it is.
func (set tokenSet) find(text string) *knownToken {
	digest := sha256.Sum256([]byte(text))
	found := -1
	for i := range set {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], set[i].SHA256[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	return &set[found]
}

// A routeKey names a route as gin does.
type routeKey struct{ method, path string }

// admit tells who calls, and why the call is refused, if it is.
func (s *Server) admit(c *gin.Context) (caller string, refusal *Problem) {
	set := s.tokens.Load()
	if set == nil || c.FullPath() == "" { // no tokens, or no such route
		return "", nil
	}
	may := s.access[routeKey{c.Request.Method, c.FullPath()}]
	if may&anybody != 0 {
		return "", nil
	}
	text, err := credential(c.Request)
	if err != nil {
		return "", challenge(c, err.Error())
	}
	token := set.find(text)
	switch {
	case token == nil:
		return "", challenge(c, "the token is unknown")
	case token.may&(may|admins) == 0:
		c.Header("WWW-Authenticate", fmt.Sprintf(`Bearer realm="Lapse", error="insufficient_scope", scope=%q`, (may | admins).scopes()[0]))
		return token.Name, forbidden.with("it needs the scope " + (may | admins).String())
	}
	return token.Name, nil
}

// mayRead tells whether a request to a route that is open to everybody comes from
// somebody who may read the others too.
func (s *Server) mayRead(r *http.Request) bool {
	set := s.tokens.Load()
	if set == nil {
		return true
	}
	text, err := credential(r)
	token := set.find(text)
	return err == nil && token != nil && token.may&(readers|admins) != 0
}

// challenge asks for a token. Where people open a page, their browser is told that it
// may ask for it; behind a page that is open already, it must not.
func challenge(c *gin.Context, detail string) *Problem {
	header := c.Writer.Header()
	if !strings.HasPrefix(c.Request.URL.Path, "/v1/") {
		header.Add("WWW-Authenticate", `Basic realm="Lapse", charset="UTF-8"`)
	}
	header.Add("WWW-Authenticate", `Bearer realm="Lapse"`)
	return unauthorized.with(detail)
}

// credential returns the token of a request. As a password of HTTP Basic it counts for
// reading only: a browser adds that by itself, whoever made the page that asks.
func credential(r *http.Request) (string, error) {
	given := r.Header.Values("Authorization")
	if len(given) == 0 {
		return "", errors.New("the request brought none")
	}
	if len(given) > 1 {
		return "", errors.New("there must be one Authorization header")
	}
	scheme, text, _ := strings.Cut(given[0], " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(text), nil
	}
	if _, password, ok := r.BasicAuth(); ok {
		if r.Method != http.MethodGet {
			return "", errors.New("as a password it serves for reading only; send Authorization: Bearer")
		}
		return password, nil
	}
	return "", errors.New("send Authorization: Bearer")
}
