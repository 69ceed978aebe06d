package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// Bounds on answers.
const (
	// largeAnswer is the size from which an answer is counted. answerPiece is how much of it is
	// written at once. answerProgress is the time that each piece, or a smaller answer, has to
	// arrive. A caller that takes less is cut off.
	largeAnswer    = 4 << 10
	answerPiece    = 32 << 10
	answerProgress = 10 * time.Second
	// unreadBody is how long the server goes on reading the body of a refused request, so that the
	// refusal reaches a caller that is still sending.
	unreadBody = time.Second
	// taskAnswer is what an answer of one task counts for before its size is known.
	taskAnswer = 16 << 10
	// pagesAtOnce is how many pages of lists are made at the same moment. pagePatience is how long
	// a request waits for its turn.
	pagesAtOnce  = 8
	pagePatience = 2 * time.Second
)

// An answerWriter is the writer of one answer. It counts the bytes of the answer that are in
// memory, and extends the deadline as long as the caller reads. If the body of the request was not
// read, it has the connection closed after the answer.
type answerWriter struct {
	http.ResponseWriter
	server *Server
	last   time.Time // when the answer must have arrived, however fast its caller reads
	body   *body     // of the request; nil if it has none
	http1  bool
	stream bool // the handler sets deadlines itself, and writes pieces of bounded size
	wrote  bool

	payer  *edge.Caller  // whose bytes those of the request are; nil: a stranger's
	hold   *edge.Holding // of the budget of answers; nil: nothing yet
	listed *edge.Holding // of that of lists; nil: it is none
}

// answerOf returns the writer of a request's answer.
func answerOf(c *gin.Context) *answerWriter {
	a, _ := c.Writer.(interface{ Unwrap() http.ResponseWriter }).Unwrap().(*answerWriter)
	return a
}

// connection returns the writer of net/http, which lies beneath gin's writer and the answerWriter.
func connection(c *gin.Context) http.ResponseWriter {
	w := c.Writer.(interface{ Unwrap() http.ResponseWriter }).Unwrap()
	if a, ok := w.(*answerWriter); ok {
		return a.ResponseWriter
	}
	return w
}

// Unwrap is for http.ResponseController.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Flush implements http.Flusher.
func (a *answerWriter) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }

// WriteHeader begins the answer. net/http reads a body that the handler left unread before it
// answers, unless the connection is to be closed. It then reads on after the answer. Without a
// bound the sender of such a body would decide how long both take.
func (a *answerWriter) WriteHeader(status int) {
	if a.http1 && a.body != nil && !a.body.over {
		a.Header().Set("Connection", "close")
		_ = http.NewResponseController(a.ResponseWriter).SetReadDeadline(time.Now().Add(unreadBody))
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write writes a piece of the answer. The answer is in memory until all of it is written.
func (a *answerWriter) Write(p []byte) (written int, err error) {
	a.wrote = true
	switch {
	case a.stream:
		return a.ResponseWriter.Write(p)
	case len(p) <= largeAnswer:
		a.allowPiece()
		return a.ResponseWriter.Write(p)
	}
	if more := int64(len(p)) - a.held().Bytes(); more > 0 {
		a.hold.Add(more)
	}
	for err == nil && written < len(p) {
		a.allowPiece()
		var n int
		n, err = a.ResponseWriter.Write(p[written:min(len(p), written+answerPiece)])
		written += n
	}
	return written, err
}

// end is called after the handler. It writes the rest of the answer, or all of an answer without a
// body.
func (a *answerWriter) end() {
	if !a.wrote && !a.stream {
		a.allowPiece()
	}
}

// allowPiece sets the deadline of the next piece of the answer.
func (a *answerWriter) allowPiece() {
	until := time.Now().Add(answerProgress)
	if until.After(a.last) {
		until = a.last
	}
	// An error means that the connection has no deadlines.
	_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(until)
}

// held returns what the answer has of the budget of answers.
func (a *answerWriter) held() *edge.Holding {
	if a.hold == nil {
		a.hold = a.server.answers.For(a.payer)
	}
	return a.hold
}

// take counts bytes of an answer that is still to be made. It refuses them when the budget is used
// up.
func (a *answerWriter) take(n int64) error {
	if !a.held().Take(n) {
		return a.server.refuse(refusedAnswer, overloaded.with("too many answers are being written at once"))
	}
	return nil
}

// takeList is take for a list or an export. They have a budget of their own besides, half of that
// of answers, so that callers who do not read their lists leave room for receivers, and those of
// one token leave room for the lists of others.
func (a *answerWriter) takeList(n int64) error {
	if n > taskAnswer {
		listed := a.server.lists.For(a.payer)
		if !listed.Take(n) {
			return a.server.refuse(refusedAnswer, overloaded.with("too many lists and exports are not read yet, of this token or of all"))
		}
		a.listed = listed
	}
	return a.take(n)
}

// release gives back what was counted.
func (a *answerWriter) release() {
	for _, h := range []*edge.Holding{a.hold, a.listed} {
		if h != nil {
			h.Free()
		}
	}
}

// sizeOf returns about how many bytes a task has in an answer.
func sizeOf(t *tasks.Task) int64 {
	n := 400 + len(t.Payload) + len(t.LastError)
	for name, value := range t.Headers {
		n += len(name) + len(value)
	}
	if t.Target != nil {
		n += 150 + len(t.Target.Settings)
	}
	for i := range t.Attempts {
		n += 150 + len(t.Attempts[i].By) + len(t.Attempts[i].Error)
	}
	return int64(n)
}

// beginPage waits until one page more may be made at the same moment. endPage ends it.
func (s *Server) beginPage(ctx context.Context, busy string) error {
	patience := time.NewTimer(pagePatience)
	defer patience.Stop()
	select {
	case s.pages <- struct{}{}:
		return nil
	case <-patience.C:
		return s.refuse(refusedAnswer, overloaded.with(busy))
	case <-ctx.Done():
		return closing.with("the caller has gone")
	}
}

func (s *Server) endPage() { <-s.pages }

// listed answers with a page of tasks. The number of pages made at the same moment is bounded:
// a page has no size before it is made.
func (s *Server) listed(ctx context.Context, c *gin.Context, list func() (tasks.Page, error)) (*reply[TaskPage], error) {
	if err := s.beginPage(ctx, "too many lists are asked for at once"); err != nil {
		return nil, err
	}
	defer s.endPage()
	page, err := list()
	if err != nil {
		return nil, err
	}
	size := int64(0)
	for i := range page.Tasks {
		size += sizeOf(&page.Tasks[i])
	}
	if err := answerOf(c).takeList(size); err != nil {
		return nil, err
	}
	return &reply[TaskPage]{wirePage(page, seesAll(c))}, nil
}
