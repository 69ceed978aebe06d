package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
)

const (
	// sharedFor is the greatest age of an answer that is shared.
	sharedFor = 2 * time.Second
	// Bounds of what is kept for others: answers, of one token half as many, the bytes of each as
	// it is sent, and of its address. An answer of more bytes than mostShared, before it is packed,
	// is not collected.
	sharedAtMost  = 64
	mostShared    = 256 << 10
	mostKept      = 64 << 10
	sharedAddress = 1 << 10
	// sharedTries is how many callers may leave before their answer is made for those that wait.
	sharedTries = 3
)

// sharing has the figures that were answered lately, for callers that say with Cache-Control:
// max-age how old they may be. However many pages are open, their figures are collected, written as
// JSON and packed once. Each request is admitted by itself before.
type sharing struct {
	mu sync.Mutex
	of map[sharedKey]*sharedAnswer // guarded by mu
}

// A sharedKey is all that an answer depends on.
type sharedKey struct {
	caller      *edge.Caller // whose grant it is; nil: there are no tokens
	path, query string
	packed      bool
}

// A sharedAnswer is one that is being made, or is there.
type sharedAnswer struct {
	begun      time.Time     // what it tells is not older; if it is too large: when that was seen
	done       chan struct{} // closed when it is there
	madeAnswer               // set before done
}

// A madeAnswer is what has become of a request.
type madeAnswer struct {
	body   []byte   // nil: none to share
	packed bool     // body is packed
	failed *Problem // what was answered instead
	large  bool     // too large to be shared
	left   bool     // its caller had gone before it was there
}

func (a *sharedAnswer) isDone() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// find returns the answer of a key that tells what was at most so long ago, be it there or being
// made. Otherwise it returns one that the caller has to make, or nil if there is no room, or it was
// too large lately: no caller waits for such a one.
func (s *sharing) find(key sharedKey, age time.Duration) (a *sharedAnswer, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	a = s.of[key]
	switch {
	case a == nil || now.Sub(a.begun) >= sharedFor:
	case a.isDone() && a.large:
		return nil, false
	case now.Sub(a.begun) < age:
		return a, false
	}
	if a == nil && !s.hasRoomLocked(key.caller, now) {
		return nil, false
	}
	a = &sharedAnswer{begun: now, done: make(chan struct{})}
	if s.of == nil {
		s.of = make(map[sharedKey]*sharedAnswer)
	}
	s.of[key] = a
	return a, true
}

// hasRoomLocked reports whether there is room for one answer more of a caller. What is old makes
// room.
func (s *sharing) hasRoomLocked(caller *edge.Caller, now time.Time) bool {
	if len(s.of) < sharedAtMost/2 {
		return true
	}
	own := 0
	for k, a := range s.of {
		switch {
		case a.isDone() && now.Sub(a.begun) >= sharedFor:
			delete(s.of, k)
		case caller != nil && k.caller == caller:
			own++
		}
	}
	return len(s.of) < sharedAtMost && own < sharedAtMost/2
}

// end shares what a request was answered, once. What has failed is shared with those that wait for
// it already, and forgotten; so is that there is nothing to share, unless it is too large.
func (s *sharing) end(key sharedKey, a *sharedAnswer, made madeAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.isDone() {
		return
	}
	a.madeAnswer = made
	if a.large {
		a.begun = time.Now()
	}
	close(a.done)
	if a.body == nil && !a.large && s.of[key] == a { // else a newer one is being made
		delete(s.of, key)
	}
}

// share answers a request with what another one was answered a moment ago, if its caller accepts
// that.
func (s *Server) share(ctx huma.Context, next func(huma.Context)) {
	c := humagin.Unwrap(ctx)
	age := min(maxAge(c.GetHeader("Cache-Control")), sharedFor)
	key := sharedKey{callerOf(c), c.Request.URL.Path, c.Request.URL.RawQuery, acceptsGzip(c.GetHeader("Accept-Encoding"))}
	if _, head := c.Request.Context().Value(headOnly{}).(bool); age <= 0 || head || len(key.path)+len(key.query) > sharedAddress {
		next(ctx)
		return
	}
	for range sharedTries {
		a, mine := s.shared.find(key, age)
		if mine {
			s.makeShared(c, key, a, func() { next(ctx) })
			return
		}
		if a == nil {
			break
		}
		answered, left := s.takeShared(c, key.caller, a)
		if answered {
			return
		}
		if !left {
			break
		}
	}
	next(ctx)
}

// takeShared waits for an answer, and answers with it, or as it has failed, if there is something
// to share. Otherwise it reports whether that was for the caller that made it, who has left.
func (s *Server) takeShared(c *gin.Context, caller *edge.Caller, a *sharedAnswer) (answered, left bool) {
	select {
	case <-a.done:
	case <-c.Request.Context().Done():
		return false, false
	}
	if a.body == nil && (a.failed == nil || a.left) {
		return false, a.left
	}
	if caller != nil {
		if err := s.revoked(c, caller); err != nil {
			writeProblem(c, problemOf(err))
			return true, false
		}
	}
	if a.failed != nil {
		p := *a.failed // writeProblem gives it this request's id
		writeProblem(c, &p)
		return true, false
	}
	c.Header("Age", strconv.Itoa(int(time.Since(a.begun)/time.Second)))
	a.write(c)
	return true, false
}

// makeShared answers a request, and shares the answer before it is written, to a caller that may be
// slow.
func (s *Server) makeShared(c *gin.Context, key sharedKey, a *sharedAnswer, answer func()) {
	var made madeAnswer
	share := func() { s.shared.end(key, a, made) }
	collects := &collector{ResponseWriter: c.Writer, pass: func() { made.large = true; share() }}
	c.Writer = collects
	func() {
		defer share()  // whatever happens: others wait for it
		defer func() { // also for who answers after a panic
			c.Writer = collects.ResponseWriter
			made.left = c.Request.Context().Err() != nil
		}()
		answer()
		switch {
		case collects.pass == nil:
		case collects.failed != nil:
			made.failed = collects.failed
		case c.Writer.Status() == http.StatusOK:
			made = s.packShared(collects.body, key.packed)
		}
	}()
	switch {
	case collects.pass == nil:
	case made.body != nil:
		made.write(c)
	default:
		_, _ = c.Writer.Write(collects.body) // an error means that the caller has gone
	}
}

// packShared returns an answer as it is shared, packed if it is worth that and may be.
func (s *Server) packShared(body []byte, packed bool) (made madeAnswer) {
	made.body = body
	if packed && len(body) >= minPacked {
		made.body, made.packed = s.packing.squeeze(body), true
	}
	if len(made.body) > mostKept {
		return madeAnswer{large: true}
	}
	return made
}

// write writes the answer. An error means that the caller has gone.
func (a *madeAnswer) write(c *gin.Context) {
	if a.packed {
		c.Header("Content-Encoding", "gzip")
	}
	c.Header("Content-Type", mediaJSON)
	c.Status(http.StatusOK)
	_, _ = c.Writer.Write(a.body)
}

// A collector keeps an answer back, until it has more than mostShared.
type collector struct {
	gin.ResponseWriter
	body   []byte
	failed *Problem // that the answer tells
	pass   func()   // called when it no longer keeps anything back; then nil
}

func (w *collector) Write(p []byte) (int, error) {
	if w.pass != nil && len(w.body)+len(p) <= mostShared {
		w.body = append(w.body, p...)
		return len(p), nil
	}
	if w.pass != nil {
		w.pass()
		w.pass = nil
		if _, err := w.ResponseWriter.Write(w.body); err != nil {
			return 0, err
		}
	}
	return w.ResponseWriter.Write(p)
}

func (w *collector) WriteString(p string) (int, error) { return w.Write([]byte(p)) }

// Unwrap is for answerOf.
func (w *collector) Unwrap() http.ResponseWriter {
	return w.ResponseWriter.(interface{ Unwrap() http.ResponseWriter }).Unwrap()
}

// maxAge returns the max-age of a Cache-Control header, 0 if it has none or wants a new answer.
func maxAge(header string) (age time.Duration) {
	for part := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.ToLower(strings.TrimSpace(part)), "=")
		switch n, err := strconv.Atoi(value); {
		case name == "no-cache", name == "no-store":
			return 0
		case name == "max-age" && err == nil && n >= 0:
			age = time.Duration(min(n, 60)) * time.Second
		}
	}
	return age
}
