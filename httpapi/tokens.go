package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gin-gonic/gin"
	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/tasks"
)

// A Scope is a part of the API that a token opens.
type Scope string

// The scopes. /healthz and /readyz need none.
const (
	// ScopeSchedule opens create, replace, move, cancel, fire, hold, resume, get and list of tasks,
	// also by group.
	ScopeSchedule Scope = "schedule"
	// ScopeReceive opens reserve, and settling of deliveries.
	ScopeReceive Scope = "receive"
	// ScopeRead opens everything that changes nothing, metrics and the dashboard included.
	ScopeRead Scope = "read"
	// ScopeAdmin opens everything.
	ScopeAdmin Scope = "admin"
)

// Scopes are all scopes there are.
var Scopes = []Scope{ScopeSchedule, ScopeReceive, ScopeRead, ScopeAdmin}

// MaxTokens bounds the tokens of a server: each request is compared with all.
const MaxTokens = 1000

// A Token lets its bearer call the server. The server stores only its digest, so that its settings
// do not reveal the token.
type Token struct {
	Name   string            // shows in the log, 1 to 64 of A-Z a-z 0-9 . _ : @ -
	Scopes []Scope           // what it opens, at least one
	SHA256 [sha256.Size]byte // of the token's text

	// Topics are patterns of the topics to which the token is limited, up to 100: names, or the
	// beginning of names and an asterisk ("order.*"). Empty: all topics. Not with ScopeAdmin.
	Topics []string
	// MaxTopics and MaxPending bound how many topics, and how many waiting tasks, those topics may
	// have on each node before the token can create no more, see tasks.Grant. 0: no bound. Only
	// with ScopeSchedule, and not with ScopeAdmin.
	MaxTopics, MaxPending int
}

// grant returns the limits of the token's calls; nil if there are none.
func (t *Token) grant() *tasks.Grant {
	g := tasks.Grant{Topics: t.Topics, MaxTopics: t.MaxTopics, MaxPending: t.MaxPending, Reserved: slices.Contains(t.Scopes, ScopeAdmin)}
	if g.Equal(&tasks.Grant{}) {
		return nil
	}
	return &g
}

// allow says which scopes open a route. Admins may use every route, also one that names no scope.
type allow uint8

const (
	schedulers allow = 1 << iota
	receivers
	readers
	admins
	public    // no token is needed
	allTopics // it reports on all topics: not for tokens that are limited to some

	anyToken = schedulers | receivers | readers | admins // any token
)

func allowOf(scopes []Scope) (a allow) {
	for _, s := range scopes {
		a |= 1 << slices.Index(Scopes, s)
	}
	return a
}

// scopes returns the scopes in a, without admin if there are others.
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
	may   allow
	limit *tasks.Grant // nil: none
}

// SetTokens replaces the tokens of a server for requests that begin from now on. A long-poll that
// is already waiting goes on. There must be at least one token. On an error, which lists everything
// that is wrong, the tokens were not replaced.
func (s *Server) SetTokens(tokens []Token) error {
	if err := CheckTokens(tokens); err != nil {
		return err
	}
	set := make(tokenSet, len(tokens))
	for i, t := range tokens {
		set[i] = knownToken{t, allowOf(t.Scopes), t.grant()}
	}
	s.tokens.Store(&set)
	return nil
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
		t.checkLimits(func(problem string) { fault("%s: %s", who, problem) })
		switch other, twice := digests[t.SHA256]; {
		case t.SHA256 == [sha256.Size]byte{} || t.SHA256 == nothing:
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

// find returns the token with this text, or nil. It takes the same time in every case.
func (set tokenSet) find(text string) *knownToken { return set.findDigest(sha256.Sum256([]byte(text))) }

func (set tokenSet) findDigest(digest [sha256.Size]byte) *knownToken {
	found := -1
	for i := range set {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], set[i].SHA256[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	return &set[found]
}

// Bearer returns the token with this digest of its text, and the limits of its calls, nil if there
// are none. It reports false if there is no such token. It takes the same time in every case.
func (s *Server) Bearer(digest [sha256.Size]byte) (t Token, limit *tasks.Grant, ok bool) {
	set := s.tokens.Load()
	if set == nil {
		return Token{}, nil, false
	}
	known := set.findDigest(digest)
	if known == nil {
		return Token{}, nil, false
	}
	return known.Token, known.limit, true
}

// name returns the name of the token, "" if t is nil.
func (t *knownToken) name() string {
	if t == nil {
		return ""
	}
	return t.Name
}

// access decides which requests are answered.
type access struct {
	tokens atomic.Pointer[tokenSet] // nil: every caller may use every route
	scopes map[routeKey]allow       // by route; it does not change once the routes are built
	hosts  []string                 // see Config.AllowedHosts
	guard  *http.CrossOriginProtection
}

// A routeKey names a route as gin does.
type routeKey struct{ method, path string }

// admit returns the token of the caller, nil if the route needs none, and why the call is refused,
// nil if it is not.
func (s *Server) admit(c *gin.Context) (caller *knownToken, refusal *Problem) {
	set := s.tokens.Load()
	if set == nil || c.FullPath() == "" { // no tokens, or no such route
		return nil, nil
	}
	may := s.scopes[routeKey{c.Request.Method, c.FullPath()}]
	if may&public != 0 {
		return nil, nil
	}
	who, err := set.identify(c.Request)
	token := who.token
	switch {
	case err != nil:
		return nil, s.challenge(c, err)
	case !who.confirms(c.Request):
		return token, unconfirmed.with(confirmWith)
	case token.may&(may|admins) == 0:
		c.Header("WWW-Authenticate", fmt.Sprintf(`Bearer realm="Lapse", error="insufficient_scope", scope=%q`, (may | admins).scopes()[0]))
		return token, forbidden.with("it needs the scope " + (may | admins).String())
	}
	return token, token.refuses(c, may)
}

// refuses checks the topics in the path and the query against the token. The scheduler checks those
// in a body, and those of tasks.
func (t *knownToken) refuses(c *gin.Context, may allow) *Problem {
	if len(t.Topics) == 0 {
		return nil
	}
	if may&allTopics != 0 {
		return forbidden.with("it reports on all topics, and the token is limited to some")
	}
	names := c.Request.URL.Query()["topic"]
	if name, named := c.Params.Get("topic"); named {
		names = append(names, name)
	}
	for _, name := range names {
		if name != "" && !t.limit.Allows(name) {
			return notGranted()
		}
	}
	return nil
}

// notGranted says that a topic, or the topic of a task, is not one of the token's. It does not say
// which, or whether it exists.
func notGranted() *Problem {
	p := invalidField("topic", "must be one that the token may use")
	q := forbidden.with(tasks.ErrNotGranted.Error())
	q.Errors = p.Errors
	return q
}

// mayRead reports whether a request brings a token that opens what is for reading.
func (a *access) mayRead(r *http.Request) bool {
	_, may := a.reader(r)
	return may
}

// reader is mayRead, and also returns who the caller is. Where there are no tokens it has none.
func (a *access) reader(r *http.Request) (who identity, may bool) {
	set := a.tokens.Load()
	if set == nil {
		return identity{}, true
	}
	who, err := set.identify(r)
	if err != nil || who.token.may&(readers|admins) == 0 {
		return identity{}, false
	}
	return who, true
}

// challenge asks for a token. For pages it tells the browser that it may ask the user for one. For
// calls from an open page it must not.
func (s *Server) challenge(c *gin.Context, why error) *Problem {
	header := c.Writer.Header()
	if !strings.HasPrefix(c.Request.URL.Path, "/v1/") {
		header.Add("WWW-Authenticate", `Basic realm="Lapse", charset="UTF-8"`)
	}
	header.Add("WWW-Authenticate", `Bearer realm="Lapse"`)
	p := unauthorized.with(why.Error())
	if errors.Is(why, errUnknownToken) {
		return s.refuse(refusedToken, p)
	}
	return p
}

// An identity is what a request shows of its caller.
type identity struct {
	token    *knownToken // nil: the request shows none that is known
	session  *session    // nil: the token did not come in the cookie of a session
	password bool        // the token came as a password of HTTP Basic, and is for reading only
}

// limit returns the limits of the caller's token; nil if it has none.
func (who *identity) limit() *tasks.Grant {
	if who.token == nil {
		return nil
	}
	return who.token.limit
}

var errUnknownToken = errors.New("the token is unknown")

// identify returns who makes a request. A token in the header of the request comes first. A browser
// that has a session, and has once been given a password, sends both: then the session counts. As a
// password a token is for reading only: a browser adds it by itself, also to requests from pages of
// other sites.
func (set tokenSet) identify(r *http.Request) (identity, error) {
	given := r.Header.Values("Authorization")
	if len(given) > 1 {
		return identity{}, errors.New("there must be one Authorization header")
	}
	_, text, basic := r.BasicAuth()
	if len(given) == 0 || basic {
		who, ended := set.openSession(r)
		switch {
		case who.token != nil:
			return who, nil
		case ended && !basic:
			return identity{}, errors.New("the session has ended: log in again")
		case !basic:
			return identity{}, errors.New("the request has none")
		case r.Method != http.MethodGet:
			return identity{}, errors.New("as a password it is for reading only; send Authorization: Bearer")
		}
	} else {
		scheme, rest, _ := strings.Cut(given[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return identity{}, errors.New("send Authorization: Bearer")
		}
		text = strings.TrimSpace(rest)
	}
	token := set.find(text)
	if token == nil {
		return identity{}, errUnknownToken
	}
	return identity{token: token, password: basic}, nil
}
