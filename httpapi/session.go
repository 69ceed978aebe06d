package httpapi

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
)

// A session lets the user of a browser show a token once. The server keeps no list of sessions:
// nothing needs a bound, is lost by a restart, or has to be shared among nodes. The cookie itself
// has the token and the end of the session, sealed with a key that is made of the token's digest.
// That has these consequences:
//
//   - Every server that has the token accepts the cookie, so that nodes behind a load balancer do.
//   - A token that is removed or replaced ends its sessions at once: no key opens the cookie.
//   - Knowledge of the settings is not enough to forge a session. What is sealed must have the
//     digest that the settings hold, so it must be the token.
//   - A stolen cookie serves until its end, also after a logout, but does not tell the token. A
//     browser sends cookies to all ports of a host, so that a token in plain text would be shown
//     to every other server on the machine.
type session struct {
	cookie string    // its text
	ends   time.Time // when it must be begun again
}

const (
	sessionPath   = "/v1/session"
	sessionCookie = "lapse_session"
	csrfHeader    = "X-Lapse-CSRF"
	confirmWith   = "the header " + csrfHeader + " must have the csrf of GET " + sessionPath

	sessionLength  = 12 * time.Hour
	maxLoginToken  = 1 << 10 // bytes of a token that fits into a cookie
	maxLoginBody   = 8 << 10
	loginTimeout   = 10 * time.Second // for the body of a login, which any caller may send
	maxCookie      = 2 << 10          // bytes of a cookie that is opened
	cookiesOfAName = 4                // cookies that are tried, one for each path of the host
)

// Session tells a page what its user may do.
type Session struct {
	Open     bool     `json:"open" doc:"The server has no tokens: every caller may do everything, and there is nothing to log in to."`
	Name     string   `json:"name,omitempty" doc:"Name of the caller's token. Left out: the request shows none."`
	Scopes   []Scope  `json:"scopes" nullable:"false" enum:"schedule,receive,read,admin" doc:"What the caller may do. Empty: the request shows no token, and the user has to log in."`
	Topics   []string `json:"topics,omitempty" nullable:"false" doc:"The topics to which the token is limited: names, or the beginning of names and an asterisk. Left out: all."`
	ReadOnly bool     `json:"read_only" doc:"The caller may change nothing: the token has the scope read alone, or came as a password of HTTP Basic."`
	CSRF     string   `json:"csrf,omitempty" doc:"What the header X-Lapse-CSRF must be in requests of this session that change something. Left out where none is needed: the request did not show the cookie of a session."`
	EndsAt   string   `json:"ends_at,omitempty" format:"date-time" doc:"When the session ends."`
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
		} else if text = strings.TrimSpace(body.str("token")); len(text) > maxLoginToken {
			body.fault("token", fmt.Sprintf("must be at most %d bytes", maxLoginToken))
		}
	}
	if text == "" {
		body.fault("token", "must not be empty")
	}
	if err := body.done(); err != nil {
		return nil, err
	}
	set := s.tokens.Load()
	if set == nil {
		return &sessionReply{Body: sessionOf(set, identity{})}, nil
	}
	token := set.find(text)
	if token == nil {
		return nil, s.challenge(in.gin, errUnknownToken)
	}
	begun := token.begin(text, time.Now().Add(sessionLength))
	s.log.Info("a session has begun", "token", token.Name)
	return &sessionReply{
		SetCookie: s.cookie(in.gin.Request, begun.cookie, sessionLength),
		Body:      sessionOf(set, identity{token: token, session: begun}),
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
	set := s.tokens.Load()
	if set == nil {
		return &sessionReply{Body: sessionOf(nil, identity{})}, nil
	}
	who, err := set.identify(in.gin.Request)
	if err != nil && in.gin.GetHeader("Authorization") != "" {
		return nil, s.challenge(in.gin, err)
	}
	return &sessionReply{Body: sessionOf(set, who)}, nil
}

type logoutReply struct {
	SetCookie string `header:"Set-Cookie" doc:"Takes the cookie away."`
}

// logout answers DELETE /v1/session. Without a session it has nothing to do.
func (s *Server) logout(_ context.Context, in *request) (*logoutReply, error) {
	if set := s.tokens.Load(); set != nil {
		if who, _ := set.openSession(in.gin.Request); !who.confirms(in.gin.Request) {
			return nil, unconfirmed.with(confirmWith)
		}
	}
	return &logoutReply{s.cookie(in.gin.Request, "", -time.Second)}, nil
}

// sessionOf describes what a caller may do.
func sessionOf(set *tokenSet, who identity) Session {
	switch {
	case set == nil:
		return Session{Open: true, Scopes: []Scope{ScopeAdmin}}
	case who.token == nil:
		return Session{Scopes: []Scope{}, ReadOnly: true}
	}
	v := Session{
		Name: who.token.Name, Scopes: who.token.may.scopes(), Topics: who.token.Topics,
		ReadOnly: who.password || who.token.may&(schedulers|receivers|admins) == 0,
	}
	if who.token.may&admins != 0 {
		v.Scopes = []Scope{ScopeAdmin}
	}
	if who.session != nil {
		v.CSRF, v.EndsAt = who.token.csrf(who.session), formatInstant(who.session.ends)
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
	if who.session == nil || r.Method == http.MethodGet {
		return true
	}
	given := r.Header.Get(csrfHeader)
	return hmac.Equal([]byte(given), []byte(who.token.csrf(who.session)))
}

// begin makes a session of a token, whose text the server does not know otherwise. The cookie is
//
//	<name> "." base64url( nonce, sealed( 8 bytes: end in seconds of Unix time; text ) )
func (t *knownToken) begin(text string, ends time.Time) *session {
	ends = ends.Truncate(time.Second)
	plain := binary.BigEndian.AppendUint64(nil, uint64(ends.Unix()))
	sealed := t.sealer().Seal(nil, nil, append(plain, text...), []byte(t.Name))
	return &session{t.Name + "." + base64.RawURLEncoding.EncodeToString(sealed), ends}
}

// openSession returns who makes a request by the cookie of a session, an identity without a token
// if none serves. It then reports whether there was a cookie.
func (set tokenSet) openSession(r *http.Request) (who identity, ended bool) {
	cookies := r.CookiesNamed(sessionCookie)
	for _, c := range cookies[:min(len(cookies), cookiesOfAName)] {
		if who, ok := set.open(c.Value, time.Now()); ok {
			return who, false
		}
	}
	return identity{}, len(cookies) > 0
}

// open returns whose session a cookie is of.
func (set tokenSet) open(cookie string, now time.Time) (identity, bool) {
	dot := strings.LastIndexByte(cookie, '.')
	if dot < 0 || len(cookie) > maxCookie {
		return identity{}, false
	}
	sealed, err := base64.RawURLEncoding.DecodeString(cookie[dot+1:])
	if err != nil {
		return identity{}, false
	}
	for i := range set {
		if set[i].Name != cookie[:dot] {
			continue
		}
		plain, err := set[i].sealer().Open(nil, nil, sealed, []byte(set[i].Name))
		if err != nil || len(plain) < 8 {
			return identity{}, false
		}
		ends := time.Unix(int64(binary.BigEndian.Uint64(plain)), 0)
		// Knowledge of the digest is enough to seal a cookie. What is sealed must be the token.
		if set.find(string(plain[8:])) != &set[i] || !now.Before(ends) {
			return identity{}, false
		}
		return identity{token: &set[i], session: &session{cookie, ends}}, true
	}
	return identity{}, false
}

// sealer returns what seals the sessions of a token.
func (t *knownToken) sealer() cipher.AEAD {
	block, err := aes.NewCipher(t.secret("lapse session 1"))
	if err != nil {
		panic(err) // the key has the right size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // the block has the right size
	}
	return aead
}

// csrf returns the text that a page must send beside the cookie of a session. Only pages of the
// same origin can read it.
func (t *knownToken) csrf(of *session) string {
	mac := hmac.New(sha256.New, t.secret("lapse csrf 1"))
	mac.Write([]byte(of.cookie))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// secret derives a key from the digest of a token.
func (t *knownToken) secret(use string) []byte {
	key, err := hkdf.Key(sha256.New, t.SHA256[:], nil, use, sha256.Size)
	if err != nil {
		panic(err) // the length is one that HKDF can make
	}
	return key
}
