package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
)

// A session lets the user of a browser show a token once. Its cookie is the ticket of an
// edge.Session.

const (
	sessionPath   = "/v1/session"
	sessionCookie = "lapse_session"
	csrfHeader    = "X-Lapse-CSRF"
	confirmWith   = "the header " + csrfHeader + " must have the csrf of GET " + sessionPath

	sessionLength  = 12 * time.Hour
	maxLoginBody   = 8 << 10
	loginTimeout   = 10 * time.Second // for the body of a login, which any caller may send
	cookiesOfAName = 4                // cookies that are tried, one for each path of the host
)

// Session tells a page what its user may do.
type Session struct {
	Open     bool         `json:"open" doc:"The server has no tokens: every caller may do everything, and there is nothing to log in to."`
	Name     string       `json:"name,omitempty" doc:"Name of the caller's token. Left out: the request shows none."`
	Scopes   []edge.Scope `json:"scopes" nullable:"false" enum:"schedule,receive,read,admin" doc:"What the caller may do. Empty: the request shows no token, and the user has to log in."`
	Topics   []string     `json:"topics,omitempty" nullable:"false" doc:"The topics to which the token is limited: names, or the beginning of names and an asterisk. Left out: all."`
	ReadOnly bool         `json:"read_only" doc:"The caller may change nothing: the token has the scope read alone, or came as a password of HTTP Basic."`
	CSRF     string       `json:"csrf,omitempty" doc:"What the header X-Lapse-CSRF must be in requests of this session that change something. Left out where none is needed: the request did not show the cookie of a session."`
	EndsAt   string       `json:"ends_at,omitempty" format:"date-time" doc:"When the session ends."`
}

// Login is the request that begins a session.
type Login struct {
	Token string `json:"token" minLength:"1" maxLength:"1024" doc:"The text of a token."`
}

type sessionReply struct {
	SetCookie string `header:"Set-Cookie" doc:"The cookie of the session."`
	Body      Session
}

// login answers POST /v1/session. A wrong token costs as much as in any other request, and is
// answered as there. Guesses are not delayed: a token that lapse token makes has 128 random bits.
func (s *Server) login(_ context.Context, in *request) (*sessionReply, error) {
	limitLogin(in.gin)
	body, err := jsonBody(in.gin)
	if err != nil {
		return nil, err
	}
	text := ""
	for key := range body.object("") {
		if string(key) != "token" {
			body.unknown(key)
		} else if text = strings.TrimSpace(body.str("token")); len(text) > edge.MaxSessionToken {
			body.fault("token", fmt.Sprintf("must be at most %d bytes", edge.MaxSessionToken))
		}
	}
	if text == "" {
		body.fault("token", "must not be empty")
	}
	if err := body.done(); err != nil {
		return nil, err
	}
	if s.callers == nil {
		return &sessionReply{Body: s.describeSession(identity{})}, nil
	}
	caller := s.callers.Admit(in.gin.Request.Context(), text, in.gin.Request.RemoteAddr)
	if caller == nil {
		return nil, s.challenge(in.gin, errUnknownToken)
	}
	begun := caller.Begin(text, time.Now().Add(sessionLength))
	s.log.Info("a session has begun", "token", caller.Name)
	return &sessionReply{
		SetCookie: s.cookie(in.gin.Request, begun.Ticket, sessionLength),
		Body:      s.describeSession(identity{caller: caller, session: begun}),
	}, nil
}

// limitLogin bounds the body of a login: callers without a token may send one.
func limitLogin(c *gin.Context) {
	if b, ok := c.Request.Body.(*body); ok {
		b.limit = min(b.limit, maxLoginBody)
		b.ReadCloser = http.MaxBytesReader(connection(c), b.ReadCloser, b.limit)
		_ = http.NewResponseController(connection(c)).SetReadDeadline(time.Now().Add(loginTimeout))
	}
}

// session answers GET /v1/session. A request without a token is not refused, so that a page can ask
// before its user has logged in.
func (s *Server) session(_ context.Context, in *request) (*sessionReply, error) {
	if s.callers == nil {
		return &sessionReply{Body: s.describeSession(identity{})}, nil
	}
	who, err := s.identify(in.gin.Request)
	if err != nil && in.gin.GetHeader("Authorization") != "" {
		return nil, s.challenge(in.gin, err)
	}
	return &sessionReply{Body: s.describeSession(who)}, nil
}

type logoutReply struct {
	SetCookie string `header:"Set-Cookie" doc:"Takes the cookie away."`
}

// logout answers DELETE /v1/session. Without a session it has nothing to do.
func (s *Server) logout(_ context.Context, in *request) (*logoutReply, error) {
	if s.callers != nil {
		if who, _ := s.openSession(in.gin.Request); !who.confirms(in.gin.Request) {
			return nil, unconfirmed.with(confirmWith)
		}
	}
	return &logoutReply{s.cookie(in.gin.Request, "", -time.Second)}, nil
}

// describeSession describes what a caller may do.
func (s *Server) describeSession(who identity) Session {
	switch {
	case s.callers == nil:
		return Session{Open: true, Scopes: []edge.Scope{edge.ScopeAdmin}}
	case who.caller == nil:
		return Session{Scopes: []edge.Scope{}, ReadOnly: true}
	}
	rights := who.caller.Rights
	v := Session{
		Name: who.caller.Name, Scopes: rights.List(), Topics: who.caller.Topics,
		ReadOnly: who.password || !rights.Open(edge.MaySchedule|edge.MayReceive),
	}
	if rights.Open(edge.MayAdmin) {
		v.Scopes = []edge.Scope{edge.ScopeAdmin}
	}
	if who.session != nil {
		v.CSRF, v.EndsAt = who.session.Proof(), formatInstant(who.session.Ends)
	}
	return v
}

// cookie makes the header that sets the cookie of a session for all paths of the server. It goes
// over TLS only if it came so: a proxy that ends TLS shows that by the origin of the page.
func (s *Server) cookie(r *http.Request, value string, age time.Duration) string {
	c := http.Cookie{
		Name: sessionCookie, Value: value, Path: s.prefix.path("/"), MaxAge: int(age.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://"),
	}
	return c.String()
}

// confirms reports whether a request may change something as far as its session is concerned.
func (who *identity) confirms(r *http.Request) bool {
	return who.session == nil || r.Method == http.MethodGet || who.session.Proves(r.Header.Get(csrfHeader))
}

// openSession returns who makes a request by the cookie of a session, an identity without a caller
// if none serves. It then reports whether there was a cookie.
func (a *access) openSession(r *http.Request) (who identity, ended bool) {
	cookies := r.CookiesNamed(sessionCookie)
	for _, c := range cookies[:min(len(cookies), cookiesOfAName)] {
		if session := a.callers.Open(c.Value, time.Now()); session != nil {
			return identity{caller: session.Caller, session: session}, false
		}
	}
	return identity{}, len(cookies) > 0
}
