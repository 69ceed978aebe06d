package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// allow says which scopes open a route. Admins may use every route, also one that names no scope.
type allow uint16

const (
	schedulers = allow(edge.MaySchedule)
	receivers  = allow(edge.MayReceive)
	readers    = allow(edge.MayRead)
	admins     = allow(edge.MayAdmin)
	anyToken   = allow(edge.AnyRight)

	public    allow = 1 << 8 // no token is needed
	allTopics allow = 1 << 9 // it reports on all topics: not for tokens that are limited to some
)

// rights returns what a token needs to use the route, one of them at least.
func (a allow) rights() edge.Rights { return edge.Rights(a & anyToken) }

// nameOf returns the name of a caller, "" if it is nil.
func nameOf(c *edge.Caller) string {
	if c == nil {
		return ""
	}
	return c.Name
}

// access decides which requests are answered.
type access struct {
	callers *edge.Callers      // nil: every caller may use every route
	scopes  map[routeKey]allow // by route; it does not change once the routes are built
	hosts   []string           // see Config.AllowedHosts
	guard   *http.CrossOriginProtection
}

// A routeKey names a route as gin does.
type routeKey struct{ method, path string }

// admit returns the caller, nil if the route needs none, and why the call is refused, nil if it is
// not.
func (s *Server) admit(c *gin.Context) (caller *edge.Caller, refusal *Problem) {
	if s.callers == nil || c.FullPath() == "" { // no tokens, or no such route
		return nil, nil
	}
	may := s.scopes[routeKey{c.Request.Method, c.FullPath()}]
	if may&public != 0 {
		return nil, nil
	}
	who, err := s.identify(c.Request)
	switch {
	case err != nil:
		return nil, s.challenge(c, err)
	case !who.confirms(c.Request):
		return who.caller, unconfirmed.with(confirmWith)
	case !who.caller.Rights.Open(may.rights()):
		needs := may.rights() | edge.MayAdmin
		c.Header("WWW-Authenticate", fmt.Sprintf(`Bearer realm="Lapse", error="insufficient_scope", scope=%q`, needs.List()[0]))
		return who.caller, forbidden.with("it needs the scope " + needs.String())
	}
	return who.caller, refusedTopic(c, who.caller, may)
}

// revoked returns why a caller that was admitted may not go on with its request; nil: it may. The
// request has the grant of the caller as it was: new rights need a new request.
func (s *Server) revoked(c *gin.Context, caller *edge.Caller) error {
	if !caller.Withdrawn() {
		return nil
	}
	if _, refusal := s.admit(c); refusal != nil {
		return refusal
	}
	return forbidden.with("the rights of the token have changed while the request was read; repeat it")
}

// refusedTopic checks the topics in the path and the query against the token. The scheduler checks
// those in a body, and those of tasks.
func refusedTopic(c *gin.Context, caller *edge.Caller, may allow) *Problem {
	if len(caller.Topics) == 0 {
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
		if name != "" && !caller.MayUse(name) {
			return notGranted()
		}
	}
	return nil
}

// notGranted says that a topic, or the topic of a receipt's task, is not one of the token's. It
// does not say which, or whether it exists.
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
	if a.callers == nil {
		return identity{}, true
	}
	who, err := a.identify(r)
	if err != nil || !who.caller.Rights.Open(edge.MayRead) {
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
	caller   *edge.Caller  // nil: the request shows no token that is known
	session  *edge.Session // nil: the token did not come in the cookie of a session
	password bool          // the token came as a password of HTTP Basic, and is for reading only
}

// limit returns the limits of the caller's token; nil if it has none.
func (who *identity) limit() *tasks.Grant {
	if who.caller == nil {
		return nil
	}
	return who.caller.Grant
}

var errUnknownToken = errors.New("the token is unknown")

// identify returns who makes a request. A token in the header of the request comes first. A browser
// that has a session, and has once been given a password, sends both: then the session counts. As a
// password a token is for reading only: a browser adds it by itself, also to requests from pages of
// other sites.
func (a *access) identify(r *http.Request) (identity, error) {
	given := r.Header.Values("Authorization")
	if len(given) > 1 {
		return identity{}, errors.New("there must be one Authorization header")
	}
	_, text, basic := r.BasicAuth()
	if len(given) == 0 || basic {
		who, ended := a.openSession(r)
		switch {
		case who.caller != nil:
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
	caller := a.callers.Admit(r.Context(), text, r.RemoteAddr)
	if caller == nil {
		return identity{}, errUnknownToken
	}
	return identity{caller: caller, password: basic}, nil
}
