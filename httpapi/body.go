package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
)

// Bounds on reading a body.
const (
	bodyTimeout = time.Minute // for all of it, read or not
	bodiesAhead = 16          // bodies of full size that may be in memory at once
	firstRead   = 256 << 10   // memory given to a body at first
)

// Media types that are read.
const (
	mediaJSON   = "application/json"
	mediaNDJSON = "application/x-ndjson"
)

// A body is a request's body that is being read. It replaces Request.Body until the request ends,
// and then returns what it took of the budget of bodies.
type body struct {
	io.ReadCloser
	server *Server
	hold   *edge.Holding // what it takes of the budget; nil: nothing yet
	limit  int64         // of this body
	over   bool          // it was read to its end

	// revoked says why the caller's rights do not hold any more; nil: they do.
	revoked func() error
}

// Read fails once the rights of the caller have changed: no route uses rights that are older than
// the body.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.revoked != nil {
		if revoked := b.revoked(); revoked != nil {
			return 0, revoked
		}
	}
	return n, err
}

var errBodySize = tooLarge.with("the body is larger than this server accepts")

func (b *body) release() {
	if b.hold != nil {
		b.hold.Free()
	}
}

// grow doubles the room of buf.
func (b *body) grow(buf []byte, want int64) ([]byte, error) {
	size := max(2*int64(cap(buf)), min(want, firstRead), 512)
	if want >= 0 {
		size = min(size, want+1) // one more, to read the end of the body without growing
	}
	if size <= int64(cap(buf)) {
		size = int64(cap(buf)) + 512
	}
	if !b.hold.Take(size - int64(cap(buf))) {
		return nil, b.server.refuse(refusedBody, overloaded.with("too many bodies are being read at once"))
	}
	return append(make([]byte, 0, size), buf...), nil
}

// readBody reads all of a request's body. The memory is not reused for another request, so that the
// scheduler may keep parts of it after the answer.
func readBody(c *gin.Context) ([]byte, error) {
	b, ok := c.Request.Body.(*body)
	if !ok {
		return nil, nil // there is no body
	}
	for _, coding := range c.Request.Header.Values("Content-Encoding") {
		if coding != "" && !strings.EqualFold(coding, "identity") {
			return nil, wrongMedia.with("Content-Encoding must be identity, or be left out: send the body uncompressed")
		}
	}
	if c.Request.ContentLength > b.limit {
		return nil, errBodySize
	}
	if b.hold == nil {
		b.hold = b.server.bodies.For(answerOf(c).payer)
	}
	var buf []byte
	for {
		if len(buf) == cap(buf) {
			var err error
			if buf, err = b.grow(buf, c.Request.ContentLength); err != nil {
				return nil, err
			}
		}
		n, err := b.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			b.over = true
			hasArrived(c.Request)
			// The deadline set by middleware would end a long-poll as if the client had gone.
			_ = http.NewResponseController(connection(c)).SetReadDeadline(time.Time{})
			return buf, nil
		case errors.As(err, new(*Problem)):
			return nil, err
		case errors.As(err, new(*http.MaxBytesError)):
			return nil, errBodySize
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, tooSlow.with("")
		case err != nil:
			return nil, malformed.with("the body ended too early")
		}
	}
}

// mediaType checks the Content-Type against the types that a route reads. The header is required: a
// browser may send a body without one on behalf of another site.
func mediaType(c *gin.Context, accepted ...string) (string, error) {
	header := c.GetHeader("Content-Type")
	if header == mediaJSON { // nearly always
		return header, nil
	}
	media, params, err := mime.ParseMediaType(header)
	charset, given := params["charset"]
	if err == nil && (!given || strings.EqualFold(charset, "utf-8")) {
		for _, a := range accepted {
			if media == a {
				return a, nil
			}
		}
	}
	return "", wrongMedia.with("send " + strings.Join(accepted, " or "))
}

// jsonBody reads a body that must be JSON.
func jsonBody(c *gin.Context) (*scanner, error) {
	if _, err := mediaType(c, mediaJSON); err != nil {
		return nil, err
	}
	data, err := readBody(c)
	if err != nil {
		return nil, err
	}
	return scan(data), nil
}

// optionalBody reads a body that may be left out. A missing body counts as an empty object.
func optionalBody(c *gin.Context) (*scanner, error) {
	if c.Request.ContentLength == 0 {
		return scan([]byte("{}")), nil
	}
	return jsonBody(c)
}

// done ends the decoding of a body that was a single value. It returns why the request is refused,
// or nil.
func (s *scanner) done() error {
	s.end()
	if s.err != nil {
		return problemOf(s.err)
	}
	if len(s.faults) > 0 {
		return invalidFields(s.faults)
	}
	return nil
}
