package httpapi

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/gin-gonic/gin"
	"github.com/klauspost/compress/gzip"

	"github.com/lapsehq/lapse/edge"
)

const (
	// sharedFor is the greatest age of an answer that is shared.
	sharedFor = 2 * time.Second
	// Bounds of what is kept for others: answers, the bytes of each as it is sent, and of its
	// address. An answer of more bytes than mostShared, before it is packed, is not collected.
	sharedAtMost  = 64
	mostShared    = 256 << 10
	mostKept      = 64 << 10
	sharedAddress = 1 << 10
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
	begun time.Time     // what it tells is not older
	done  chan struct{} // closed when it is there
	// body is nil if there is none to share: it failed, or is too large. It is set before done.
	body []byte
	// packed: body is packed. It is set before done.
	packed bool
}

func (a *sharedAnswer) isDone() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// find returns the answer of a key that is at most so old, or is being made. Otherwise it returns
// one that the caller has to make, or nil if there is no room.
func (s *sharing) find(key sharedKey, age time.Duration) (a *sharedAnswer, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if a = s.of[key]; a != nil && (!a.isDone() || now.Sub(a.begun) < age) {
		return a, false
	}
	if len(s.of) >= sharedAtMost {
		for k, old := range s.of {
			if old.isDone() && now.Sub(old.begun) >= sharedFor {
				delete(s.of, k)
			}
		}
		if len(s.of) >= sharedAtMost {
			return nil, false
		}
	}
	a = &sharedAnswer{begun: now, done: make(chan struct{})}
	if s.of == nil {
		s.of = make(map[sharedKey]*sharedAnswer)
	}
	s.of[key] = a
	return a, true
}

// end shares an answer, or forgets it if there is none.
func (s *sharing) end(key sharedKey, a *sharedAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if close(a.done); a.body == nil {
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
	a, mine := s.shared.find(key, age)
	switch {
	case a == nil:
		next(ctx)
	case mine:
		s.makeShared(c, key, a, func() { next(ctx) })
	default:
		select {
		case <-a.done:
		case <-c.Request.Context().Done():
		}
		if !a.isDone() || a.body == nil {
			next(ctx)
			return
		}
		c.Header("Age", strconv.Itoa(int(time.Since(a.begun)/time.Second)))
		a.write(c)
	}
}

// makeShared answers a request, and shares the answer.
func (s *Server) makeShared(c *gin.Context, key sharedKey, a *sharedAnswer, answer func()) {
	collects := &collector{ResponseWriter: c.Writer}
	c.Writer = collects
	defer s.shared.end(key, a) // whatever happens: others wait for it
	func() {
		defer func() { c.Writer = collects.ResponseWriter }() // also for who answers after a panic
		answer()
	}()
	switch body := collects.body; {
	case collects.passes:
	case c.Writer.Status() != http.StatusOK:
		_, _ = c.Writer.Write(body) // an error means that the caller has gone
	default:
		made := sharedAnswer{body: body}
		if key.packed && len(body) >= minPacked {
			made.body, made.packed = squeeze(body), true
		}
		if len(made.body) <= mostKept {
			a.body, a.packed = made.body, made.packed
		}
		made.write(c)
	}
}

// write writes the answer. An error means that the caller has gone.
func (a *sharedAnswer) write(c *gin.Context) {
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
	passes bool // it keeps nothing back any more
}

func (w *collector) Write(p []byte) (int, error) {
	if !w.passes && len(w.body)+len(p) <= mostShared {
		w.body = append(w.body, p...)
		return len(p), nil
	}
	if !w.passes {
		w.passes = true
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

// packers are used again: each has some 300 kB of memory.
var packers = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// squeeze packs a text, fast.
func squeeze(text []byte) []byte {
	w := packers.Get().(*gzip.Writer)
	defer packers.Put(w)
	var to bytes.Buffer
	w.Reset(&to)
	_, _ = w.Write(text) // a Buffer takes everything
	_ = w.Close()
	return slices.Clip(to.Bytes())
}

// maxAge returns the max-age of a Cache-Control header, 0 if it has none.
func maxAge(header string) time.Duration {
	for part := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if n, err := strconv.Atoi(value); err == nil && n > 0 && strings.EqualFold(name, "max-age") {
			return time.Duration(min(n, 60)) * time.Second
		}
	}
	return 0
}
