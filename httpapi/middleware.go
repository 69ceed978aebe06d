package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
)

// requestIDHeader names a request, in its answer and in the log.
const requestIDHeader = "X-Request-Id"

// callerKey is the key under which a request keeps its caller. A server without tokens does not set
// it.
const callerKey = "caller"

// callerOf returns who makes a request that was admitted; nil where there are no tokens.
func callerOf(c *gin.Context) *edge.Caller {
	caller, _ := c.Get(callerKey)
	known, _ := caller.(*edge.Caller)
	return known
}

// tokenName returns the name of the token of a request that was admitted; "" if it has none.
func tokenName(c *gin.Context) string { return nameOf(callerOf(c)) }

// isOpenTo reports whether a request may use what needs one of the rights.
func isOpenTo(c *gin.Context, needs edge.Rights) bool {
	caller := callerOf(c)
	return caller == nil || caller.Rights.Open(needs)
}

// mayAdmin reports whether a request may use what is for admins.
func mayAdmin(c *gin.Context) bool { return isOpenTo(c, edge.MayAdmin) }

// middleware does what every request needs before and after its handler: a request id, limits,
// access control, an answer if the handler panics, and a line in the log.
func (s *Server) middleware(c *gin.Context) {
	started := time.Now()
	id := c.GetHeader(requestIDHeader)
	if !validRequestID(id) {
		id = fmt.Sprintf("%016x", rand.Uint64())
	}
	header := c.Writer.Header()
	header.Set(requestIDHeader, id)
	header.Set("X-Content-Type-Options", "nosniff")
	// The state of a task must not be cached. What a caller gets by the cookie of a session a proxy
	// would not know to be for that caller alone. Pages that are for all say so.
	header.Set("Cache-Control", "no-store")
	if c.Request.TLS != nil {
		header.Set("Strict-Transport-Security", "max-age=31536000")
	}

	if c.Request.ContentLength != 0 {
		// The deadline also holds for a body that no handler reads: the server waits for its end
		// before it answers. An error means that the connection has no deadlines.
		_ = http.NewResponseController(connection(c)).SetReadDeadline(time.Now().Add(bodyTimeout))
		b := &body{ReadCloser: http.MaxBytesReader(connection(c), c.Request.Body, s.maxBody), server: s, limit: s.maxBody}
		// net/http looks at its own body in the end: before it closes a connection on which the
		// rest of a body is still coming, it waits until the answer has arrived.
		defer func(r *http.Request, own io.ReadCloser) { r.Body = own }(c.Request, c.Request.Body)
		c.Request.Body = b
		answerOf(c).body = b
		defer b.release()
	}
	var caller *edge.Caller
	defer func() {
		if v := recover(); v != nil {
			s.panicked(c, id, v)
		}
		took := time.Since(started)
		s.times.observe(c, took)
		if s.log.Enabled(c.Request.Context(), slog.LevelDebug) {
			s.log.Debug("request", "request_id", id, "token", nameOf(caller), "method", c.Request.Method, "path", c.Request.URL.Path,
				"status", c.Writer.Status(), "bytes", max(c.Writer.Size(), 0), "took", took)
		}
	}()
	switch {
	case s.isCrossSite(c.Request):
		writeProblem(c, s.refuse(refusedSite, crossOrigin.with("")))
		return
	case s.isRebinding(c.Request):
		writeProblem(c, s.refuse(refusedHost, crossOrigin.with("the Host header is not a name of this server: --allowed-host adds names; with TLS none are needed, nor with tokens for callers that are no browser")))
		return
	}
	var refusal *Problem
	switch caller, refusal = s.admit(c); {
	case refusal != nil:
		writeProblem(c, refusal)
	case !acceptsJSON(c):
		writeProblem(c, notAcceptable.with(""))
	case !s.attached.Load() && !needNoScheduler[c.FullPath()]:
		writeProblem(c, starting.with(""))
	default:
		if caller != nil {
			c.Set(callerKey, caller)
			answerOf(c).payer = caller
			if b := answerOf(c).body; b != nil {
				b.revoked = func() error { return s.revoked(c, caller) }
			}
			if caller.Grant != nil {
				c.Request = c.Request.WithContext(caller.Within(c.Request.Context()))
			}
		}
		c.Next()
	}
}

// isCrossSite reports whether a browser makes the request for a page of another site. Such a page
// cannot read an answer, but could cause costly ones. A link to the dashboard is allowed.
func (a *access) isCrossSite(r *http.Request) bool {
	if (r.URL.Path == "/" || r.URL.Path == "") && r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
		return false
	}
	if r.Method != http.MethodGet || r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == "" {
		return a.guard.Check(r) != nil
	}
	as := *r
	as.Method = http.MethodPost // Check allows every GET
	return a.guard.Check(&as) != nil
}

// needNoScheduler has the routes that need no scheduler. The empty path stands for a request that
// matches no route.
var needNoScheduler = map[string]bool{
	"": true, "/healthz": true, "/readyz": true, "/": true, "/assets/:build/*file": true, sessionPath: true,
	"/docs": true, "/openapi.json": true, "/problems/:name": true,
}

// panicked answers a request whose handler has panicked. An answer that has begun cannot be taken
// back: the connection is cut, so that the caller notices.
func (s *Server) panicked(c *gin.Context, id string, v any) {
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v)
	}
	s.log.Error("a request handler panicked", "request_id", id, "path", c.FullPath(),
		"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if c.Writer.Written() {
		panic(http.ErrAbortHandler)
	}
	writeProblem(c, internal.with(""))
}

func validRequestID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// acceptsJSON reports whether the caller accepts the media types of the API: JSON, and on one route
// server-sent events. Pages and metrics are not negotiated.
func acceptsJSON(c *gin.Context) bool {
	accept := c.Request.Header["Accept"]
	if len(accept) == 0 || !strings.HasPrefix(c.Request.URL.Path, "/v1/") {
		return true
	}
	for _, line := range accept {
		for part := range strings.SplitSeq(line, ",") {
			media, params, _ := strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(media)) {
			case "", "*/*", "application/*", mediaJSON, problemMedia:
				if !hasZeroWeight(params) {
					return true
				}
			case "text/*", mediaEvents:
				if c.FullPath() == eventsPath && !hasZeroWeight(params) {
					return true
				}
			}
		}
	}
	return false
}

// hasZeroWeight reports whether the parameters of a media range have a weight of zero.
func hasZeroWeight(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		name, weight, _ := strings.Cut(strings.TrimSpace(p), "=")
		if strings.EqualFold(name, "q") {
			return strings.Trim(weight, "0.") == "" && weight != ""
		}
	}
	return false
}

// writeProblem answers with a problem outside of a huma operation.
func writeProblem(c *gin.Context, p *Problem) {
	for name, values := range p.GetHeaders() {
		c.Writer.Header()[name] = values
	}
	answerOf(c).server.prefix.place(p)
	p.RequestID = c.Writer.Header().Get(requestIDHeader)
	text, _ := json.Marshal(p) // strings and numbers only: it cannot fail
	c.Abort()
	c.Data(p.Status, problemMedia, append(text, '\n'))
}

// noRoute answers a request that matches no route.
func noRoute(c *gin.Context) { writeProblem(c, noSuchRoute.with("")) }

// noMethod answers for a path that exists with other methods, which gin has put into Allow.
func noMethod(c *gin.Context) {
	allow := c.Writer.Header().Get("Allow")
	if strings.Contains(allow, http.MethodGet) {
		allow += ", " + http.MethodHead
	}
	c.Header("Allow", allow+", "+http.MethodOptions)
	if c.Request.Method == http.MethodOptions {
		c.Status(http.StatusNoContent)
		c.Writer.WriteHeaderNow()
		return
	}
	writeProblem(c, wrongMethod.with(""))
}
