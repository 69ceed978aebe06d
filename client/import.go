package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/goccy/go-json"
)

// Errors of exports that are read.
var (
	// ErrNoExport: the text does not begin with the line that an export begins with.
	ErrNoExport = errors.New("not an export of Lapse")
	// ErrTruncated: the text ends before the export does.
	ErrTruncated = errors.New("the export is cut off: its last line is missing")
)

// Import imports lines of an export, up to 10,000 topics and tasks, with one request. Each stands
// for itself: Imported.Errors has those that were not imported. A task that is there already is not
// imported again, so the same lines may be sent again. With replaceTopics the settings of topics
// that exist are replaced. It needs a token with the scope admin.
//
// The error is about all lines. Then none was imported, or with ErrUnknown perhaps some. Errors:
// ErrInvalid, ErrUnauthorized, ErrTooLarge, ErrOverloaded, ErrUnavailable, ErrUnknown,
// ErrUnreachable.
func (c *Client) Import(ctx context.Context, lines []byte, replaceTopics bool) (*Imported, error) {
	q := call{method: http.MethodPost, path: "/v1/import", body: lines, media: "application/x-ndjson", effect: same, extra: importTime}
	if replaceTopics {
		q.query = url.Values{"replace_topics": {"true"}}
	}
	done := &Imported{}
	if _, err := c.do(ctx, q, done); err != nil {
		return nil, err
	}
	return done, nil
}

const (
	importTime = 30 * time.Second // on top of the timeout

	importLines = 10_000   // of a request: the API's limit
	importBytes = 4 << 20  // of a request, about
	importLine  = 64 << 20 // of a line

	importPatience = time.Minute
)

// ImportOptions say how ImportFrom imports. The zero value is ready to use.
type ImportOptions struct {
	// ReplaceTopics has the settings of topics that exist replaced.
	ReplaceTopics bool
	// Skip is how many lines at the beginning were imported before: the Lines of an ImportProgress.
	Skip int64
	// AtOnce is how many requests are under way at the same time, 1 to 16. 0: 3.
	AtOnce int
	// Patience is how long ImportFrom goes on while the server takes nothing, because it is
	// overloaded, unavailable or cannot be reached. 0: a minute.
	Patience time.Duration
	// Progress is called, from one goroutine at a time, whenever more lines are done. nil: never.
	Progress func(ImportProgress)
}

// ImportProgress is how far an import has come.
type ImportProgress struct {
	// Lines is how many lines at the beginning are done, those included that were skipped.
	Lines int64
	// Bytes is how long these lines are together.
	Bytes int64
	// Imported, Present, Topics and TopicsPresent are as of Imported, without what was skipped.
	Imported, Present, Topics, TopicsPresent int64
	// Refused is how many lines were not imported.
	Refused int64
}

// ImportFrom imports a whole export, with as many requests as it needs. refused is called for each
// line that was not imported, with its number; nil: it is not called. What the server cannot take
// at the moment is sent again.
//
// Errors: ErrNoExport; ErrTruncated when everything else is imported; as of Import. What was
// imported before an error stays: ImportFrom may be called again with the same text, from the
// beginning or with Skip.
func (c *Client) ImportFrom(ctx context.Context, r io.Reader, o ImportOptions, refused func(ImportError)) (ImportProgress, error) {
	if o.AtOnce == 0 {
		o.AtOnce = 3
	}
	if o.AtOnce < 1 || o.AtOnce > 16 {
		return ImportProgress{}, fmt.Errorf("%w: AtOnce must be from 1 to 16", ErrInvalid)
	}
	if o.Patience == 0 {
		o.Patience = importPatience
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := &importing{Client: c, o: o, refused: refused}
	queue := make(chan *importPart, o.AtOnce-1) // in the order of the text, each on its way
	done := make(chan error, 1)
	go func() {
		var failed error
		for part := range queue {
			<-part.done
			if failed == nil {
				if failed = part.err; failed != nil {
					cancel(failed)
				} else {
					m.add(part)
				}
			}
		}
		done <- failed
	}()
	reader := &exportReader{Reader: bufio.NewReaderSize(r, 1<<20), skip: o.Skip}
	var err error
	for err == nil {
		var part *importPart
		if part, err = reader.next(); part == nil {
			continue
		}
		select {
		case queue <- part:
			go part.send(ctx, m)
			if part.topics {
				<-part.done // its tasks come after it, and only then: a topic may be paused
				if err == nil {
					err = part.err
				}
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	close(queue)
	if failed := <-done; failed != nil {
		err = failed
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return m.progress, err
}

// An importing is an ImportFrom under way.
type importing struct {
	*Client
	o        ImportOptions
	refused  func(ImportError)
	progress ImportProgress
}

// add notes a part that is done.
func (m *importing) add(p *importPart) {
	w := &m.progress
	w.Lines, w.Bytes = p.lastLine, p.endsAt
	w.Imported += int64(p.sum.Imported)
	w.Present += int64(p.sum.Present)
	w.Topics += int64(p.sum.Topics)
	w.TopicsPresent += int64(p.sum.TopicsPresent)
	w.Refused += int64(len(p.sum.Errors))
	if m.refused != nil {
		for _, e := range p.sum.Errors {
			m.refused(e)
		}
	}
	if m.o.Progress != nil {
		m.o.Progress(*w)
	}
}

// An importPart is what one request imports.
type importPart struct {
	text     []byte
	lines    []importedLine // of the text
	topics   bool           // the text has settings of topics
	lastLine int64          // the number of the last line that is done with this part
	endsAt   int64          // and how many bytes of the export

	done chan struct{} // closed when it is imported, or cannot be
	sum  Imported      // its Errors have the numbers of lines of the export
	err  error
}

type importedLine struct {
	number   int64
	from, to int // in the text
}

// send imports a part.
func (p *importPart) send(ctx context.Context, m *importing) {
	defer close(p.done)
	if len(p.lines) > 0 {
		p.sendLines(ctx, m, p.text, p.lines)
	}
}

// sendLines imports some lines of a part, and sends again what the server cannot take at the
// moment. If all of them are too long for one request, it sends them with two.
func (p *importPart) sendLines(ctx context.Context, m *importing, text []byte, lines []importedLine) {
	began := time.Now()
	for n := 0; ; n++ {
		a, err := m.Import(ctx, text, m.o.ReplaceTopics)
		if errors.Is(err, ErrTooLarge) && ctx.Err() == nil && p.split(ctx, m, text, lines, err) {
			return
		}
		if ctx.Err() != nil || err != nil && (!Passing(err) || time.Since(began) > m.o.Patience) {
			p.err = err
			if err == nil {
				p.err = context.Cause(ctx)
			}
			return
		}
		if err == nil {
			text, lines = p.rest(a, text, lines)
			if len(lines) == 0 {
				return
			}
			if a.Imported+a.Present > 0 {
				began, n = time.Now(), 0
			}
			if time.Since(began) > m.o.Patience {
				p.err = fmt.Errorf("line %d: %w", lines[0].number, a.Errors[0].Problem)
				return
			}
		}
		pause, _ := m.pause(n, nil)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// split sends each half of some lines by itself. A line that is too long alone is refused. It
// reports false if the error has no problem that could be told of a line.
func (p *importPart) split(ctx context.Context, m *importing, text []byte, lines []importedLine, err error) bool {
	if len(lines) == 1 {
		problem, ok := errors.AsType[*Problem](err)
		if ok {
			p.sum.Errors = append(p.sum.Errors, ImportError{Line: int(lines[0].number), Problem: problem})
		}
		return ok
	}
	half := len(lines) / 2
	at := lines[half].from
	second := make([]importedLine, 0, len(lines)-half)
	for _, l := range lines[half:] {
		second = append(second, importedLine{l.number, l.from - at, l.to - at})
	}
	p.sendLines(ctx, m, text[:at], lines[:half])
	if p.err == nil {
		p.sendLines(ctx, m, text[at:], second)
	}
	return true
}

// rest adds the answer about some lines, and returns those that are to be sent again.
func (p *importPart) rest(a *Imported, text []byte, lines []importedLine) (again []byte, left []importedLine) {
	p.sum.Imported += a.Imported
	p.sum.Present += a.Present
	p.sum.Topics += a.Topics
	p.sum.TopicsPresent += a.TopicsPresent
	for _, e := range a.Errors {
		if e.Line < 1 || e.Line > len(lines) || e.Problem == nil {
			continue // a server of another version
		}
		l := lines[e.Line-1]
		if s := e.Problem.Status; s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable {
			from := len(again)
			again = append(again, text[l.from:l.to]...)
			left = append(left, importedLine{l.number, from, len(again)})
			continue
		}
		e.Line = int(l.number)
		p.sum.Errors = append(p.sum.Errors, e)
	}
	return again, left
}

// An exportReader takes the text of an export apart.
type exportReader struct {
	*bufio.Reader
	skip   int64
	line   int64 // the number of the last line that was read
	bytes  int64
	begun  bool // the first line was read
	head   []byte
	ended  bool // the last one was, and none since
	counts ExportCounts
}

// next returns the lines of the next request. Errors: ErrNoExport, ErrTruncated, io.EOF at the end.
func (r *exportReader) next() (*importPart, error) {
	p := &importPart{done: make(chan struct{})}
	for len(p.lines) <= importLines && len(p.text) < importBytes {
		line, err := r.readLine()
		if errors.Is(err, bufio.ErrBufferFull) {
			return p.upTo(r), fmt.Errorf("%w: line %d is longer than %d MiB", ErrInvalid, r.line+1, importLine>>20)
		}
		if err != nil && (!errors.Is(err, io.EOF) || len(bytes.TrimSpace(line)) > 0) {
			if errors.Is(err, io.EOF) {
				err = ErrTruncated
			}
			return p.upTo(r), fmt.Errorf("line %d: %w", r.line+1, err)
		}
		if err != nil {
			if !r.begun {
				return nil, ErrNoExport
			}
			if !r.ended {
				return p.upTo(r), ErrTruncated
			}
			return p.upTo(r), io.EOF
		}
		r.line++
		r.bytes += int64(len(line))
		topics := r.counts.Topics
		wanted, err := r.wants(line)
		if err != nil {
			return p.upTo(r), fmt.Errorf("line %d: %w", r.line, err)
		}
		if wanted && r.line > r.skip {
			if len(p.lines) == 0 { // the server checks the version of each request
				p.text = append(p.text, r.head...)
				p.lines = append(p.lines, importedLine{1, 0, len(p.text)})
			}
			p.topics = p.topics || r.counts.Topics > topics
			from := len(p.text)
			p.text = append(p.text, line...)
			p.lines = append(p.lines, importedLine{r.line, from, len(p.text)})
		}
	}
	return p.upTo(r), nil
}

// readLine is ReadBytes up to a newline. Its error is bufio.ErrBufferFull for a line that is too
// long.
func (r *exportReader) readLine() (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) || len(line) > importLine {
			return line, err
		}
	}
}

// upTo notes up to which line the part goes.
func (p *importPart) upTo(r *exportReader) *importPart {
	p.lastLine, p.endsAt = r.line, r.bytes
	return p
}

// wants reports whether a line has a topic or a task.
func (r *exportReader) wants(line []byte) (bool, error) {
	kind, rest := kindOf(line)
	if !r.begun && kind != "lapse_export" {
		return false, ErrNoExport
	}
	r.begun = true
	switch kind {
	case "lapse_export":
		r.ended, r.counts, r.head = false, ExportCounts{}, bytes.Clone(line)
		return false, nil
	case "next":
		return false, nil
	case "end":
		var c ExportCounts
		if err := json.Unmarshal(rest, &c); err != nil {
			return false, err
		}
		r.ended, c.Unreadable = true, 0
		if c != r.counts {
			return false, fmt.Errorf("%w: the export says that it has %d topics, %d tasks, %d dead and %d finished ones; there are %d, %d, %d and %d",
				ErrTruncated, c.Topics, c.Tasks, c.Dead, c.Finished, r.counts.Topics, r.counts.Tasks, r.counts.Dead, r.counts.Finished)
		}
		return false, nil
	case "topic":
		r.counts.Topics++
	case "task":
		r.counts.Tasks++
	case "dead":
		r.counts.Dead++
	case "finished":
		r.counts.Finished++
	case "":
		return len(bytes.TrimSpace(line)) > 0, nil // what it is, the server says
	}
	r.ended = false
	return true, nil
}

// kindOf returns the type of a line; empty if it has none.
func kindOf(line []byte) (kind string, text []byte) {
	const begins = `{"type":"`
	if rest, ok := bytes.CutPrefix(line, []byte(begins)); ok { // as a server writes it
		if i := bytes.IndexByte(rest, '"'); i >= 0 {
			return string(rest[:i]), line
		}
	}
	var l struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(line, &l) != nil {
		return "", line
	}
	return l.Type, line
}
