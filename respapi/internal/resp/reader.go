package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Bounds of every command.
const (
	// MaxArgs is how many arguments a command has at most, as in Redis.
	MaxArgs = 1 << 20
	// MaxInline is how long a line is at most that is no array of bulk strings, as in Redis.
	MaxInline = 64 << 10
	// argBytes is what an argument takes up besides its bytes.
	argBytes = 32
	// leastBuffer is the size of the buffer of a connection that is at rest.
	leastBuffer = 512
	// restingBuffer is the largest buffer that a connection at rest keeps.
	restingBuffer = 16 << 10
	// pipelineBuffer is how far a buffer grows because more commands have arrived than it holds.
	pipelineBuffer = 64 << 10
)

// Bounds of the commands of callers who have not said who they are, as in Redis.
const (
	unknownArgs = 10
	unknownBulk = 16 << 10
)

// A ProtocolError says why bytes are no command. Its text is that of Redis.
type ProtocolError struct{ Text string }

func (e *ProtocolError) Error() string { return "Protocol error: " + e.Text }

func protocolError(format string, args ...any) error {
	return &ProtocolError{fmt.Sprintf(format, args...)}
}

// ErrTooLarge is returned for a command that is longer than Limits allows, or for which Limits.Take
// has no room.
var ErrTooLarge = errors.New("the command is too large")

// Limits bound what the commands of a connection take up.
type Limits struct {
	// Command is how many bytes a command has at most, its arguments counted with 32 bytes each.
	Command int
	// Take is called with the bytes by which the buffer of the connection grows beyond 16 KiB, and
	// with a negative number when it shrinks. It returns false if there is no room. Nil: there is.
	Take func(bytes int) bool
}

// A span is where an argument lies, counted from the beginning of the command.
type span struct{ from, to int }

// A Reader reads the commands of one connection. One goroutine at a time may use it.
type Reader struct {
	from    io.Reader
	limits  Limits
	unknown bool // the caller has not said who it is
	taken   int  // bytes of Limits.Take
	failed  error

	buf   []byte
	full  bool // the last read has filled buf: more has arrived
	start int  // of the command that is being read
	at    int  // how far it was read, from start

	// Of an array that was not read to its end:
	spans []span
	args  [][]byte // of the commands that the buffer has
	left  int      // arguments that are missing; 0: no array was begun
	bulk  int      // length of the argument that is missing, -1 before its length was read
}

// NewReader returns a reader of the commands that a connection sends.
func NewReader(from io.Reader, limits Limits) *Reader {
	return &Reader{from: from, limits: limits, bulk: -1}
}

// SetUnknown says whether the narrow bounds hold for callers who have not said who they are.
func (r *Reader) SetUnknown(unknown bool) { r.unknown = unknown }

// Next returns the next command: its name and its arguments. It waits for more bytes if need be.
// The command is never empty. It is valid until the Next that follows the last command for which
// Ready reported true.
//
// Errors: *ProtocolError, ErrTooLarge, those of the connection; all of them are final.
func (r *Reader) Next() ([][]byte, error) {
	for {
		args, err := r.parsed()
		if args != nil || err != nil {
			return args, err
		}
		if err := r.fill(); err != nil {
			return nil, err
		}
	}
}

// Ready returns a command that has arrived already, nil if there is none. It does not wait.
// Commands that it has returned stay valid until the next call of Next that has to wait. Errors: as
// of Next.
func (r *Reader) Ready() ([][]byte, error) { return r.parsed() }

// parsed returns the next command in the buffer, nil if there is none.
func (r *Reader) parsed() ([][]byte, error) {
	for r.failed == nil {
		whole, err := r.parse()
		if err != nil {
			r.failed = err
			break
		}
		if !whole {
			return nil, nil
		}
		command := r.buf[r.start : r.start+r.at]
		first := len(r.args)
		for _, s := range r.spans {
			r.args = append(r.args, command[s.from:s.to:s.to])
		}
		args := r.args[first:len(r.args):len(r.args)]
		r.start += r.at
		r.at, r.spans = 0, r.spans[:0]
		if len(args) > 0 {
			return args, nil
		}
	}
	return nil, r.failed
}

// line returns the next line, without its end. It reports false if it has not arrived.
func (r *Reader) line() ([]byte, bool) {
	rest := r.buf[r.start+r.at:]
	n := bytes.IndexByte(rest, '\n')
	if n < 0 {
		return nil, false
	}
	r.at += n + 1
	return bytes.TrimSuffix(rest[:n], []byte{'\r'}), true
}

// parse reads on in the command that has begun. It reports whether it is whole.
func (r *Reader) parse() (whole bool, err error) {
	if r.left == 0 {
		if r.start == len(r.buf) {
			return false, nil
		}
		if r.buf[r.start] != '*' {
			return r.parseInline()
		}
		line, ok := r.line()
		if !ok {
			return false, r.tooLong("too big mbulk count string")
		}
		n, ok := ParseInt(line[1:])
		switch {
		case !ok || n > MaxArgs:
			return false, protocolError("invalid multibulk length")
		case n > unknownArgs && r.unknown:
			return false, protocolError("unauthenticated multibulk length")
		case n <= 0:
			return true, nil
		}
		r.left = int(n)
	}
	for ; r.left > 0; r.left-- {
		if r.bulk < 0 {
			if err := r.parseLength(); err != nil || r.bulk < 0 {
				return false, err
			}
		}
		end := r.at + r.bulk + 2
		if len(r.buf)-r.start < end {
			return false, nil
		}
		r.spans = append(r.spans, span{r.at, end - 2})
		r.at, r.bulk = end, -1
	}
	return true, nil
}

// parseLength reads the length of the next argument, if it has arrived.
func (r *Reader) parseLength() error {
	if r.start+r.at == len(r.buf) {
		return nil
	}
	if c := r.buf[r.start+r.at]; c != '$' {
		return protocolError("expected '$', got '%c'", c)
	}
	line, ok := r.line()
	if !ok {
		return r.tooLong("too big bulk count string")
	}
	n, ok := ParseInt(line[1:])
	switch {
	case !ok || n < 0 || n > 512<<20:
		return protocolError("invalid bulk length")
	case n > unknownBulk && r.unknown:
		return protocolError("unauthenticated bulk length")
	case r.at+int(n)+len(r.spans)*argBytes > r.limits.Command:
		return ErrTooLarge
	}
	r.bulk = int(n)
	return nil
}

// tooLong returns an error if the line that has not ended is too long.
func (r *Reader) tooLong(text string) error {
	if len(r.buf)-r.start-r.at > MaxInline {
		return &ProtocolError{text}
	}
	return nil
}

// parseInline reads a line that is a command.
func (r *Reader) parseInline() (whole bool, err error) {
	line, ok := r.line()
	if !ok {
		return false, r.tooLong("too big inline request")
	}
	words, ok := splitWords(line)
	if !ok {
		return false, protocolError("unbalanced quotes in request")
	}
	// The words are shorter than the line with its end, and take its place.
	at := 0
	for _, w := range words {
		n := copy(r.buf[r.start+at:r.start+r.at], w)
		r.spans = append(r.spans, span{at, at + n})
		at += n
	}
	return true, nil
}

// fill reads more bytes, and makes room for them first.
func (r *Reader) fill() error {
	if r.start > 0 { // the commands of before are no longer needed
		r.buf = r.buf[:copy(r.buf, r.buf[r.start:])]
		r.start = 0
		r.args = r.args[:0]
		r.shrink()
	}
	if err := r.grow(); err != nil {
		r.failed = err
		return err
	}
	n, err := r.from.Read(r.buf[len(r.buf):cap(r.buf)])
	r.buf = r.buf[:len(r.buf)+n]
	r.full = len(r.buf) == cap(r.buf)
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// Peek waits for bytes and keeps them for Next. It may move the commands that Next has returned.
// Errors: io.ErrShortBuffer if enough bytes are kept already, those of the connection.
func (r *Reader) Peek() error {
	if len(r.buf)-r.start >= restingBuffer {
		return io.ErrShortBuffer
	}
	return r.fill()
}

// grow makes room for more bytes: for the command that is being read, or, after a read that has
// filled the buffer, for as many commands of a pipeline as there may be. Commands that are read
// together wait for the ledger together.
func (r *Reader) grow() error {
	need := len(r.buf) + 1
	if r.bulk > 0 {
		need = max(need, min(r.at+r.bulk+2, 2*cap(r.buf)))
	}
	enough := need <= cap(r.buf)
	if enough && (!r.full || cap(r.buf) >= pipelineBuffer) {
		return nil
	}
	size := max(leastBuffer, 2*cap(r.buf), need)
	if r.full {
		size = max(size, min(8*cap(r.buf), pipelineBuffer))
	}
	size = min(size, r.limits.Command+MaxInline)
	if size <= cap(r.buf) || size > restingBuffer && !r.take(size-r.taken) {
		if enough {
			return nil
		}
		return ErrTooLarge
	}
	r.buf = append(make([]byte, 0, size), r.buf...)
	return nil
}

func (r *Reader) take(n int) bool {
	if r.limits.Take != nil && !r.limits.Take(n) {
		return false
	}
	r.taken += n
	return true
}

// shrink gives a large buffer up that is nearly empty. It leaves one for the next pipeline.
func (r *Reader) shrink() {
	if cap(r.buf) > restingBuffer && len(r.buf) <= leastBuffer {
		r.buf = append(make([]byte, 0, restingBuffer), r.buf...)
		r.take(-r.taken)
	}
	if cap(r.spans) > 1024 {
		r.spans = slices.Clone(r.spans)
	}
	if cap(r.args) > 1024 {
		r.args = nil
	}
}

// Close gives up what the reader has taken of its limits.
func (r *Reader) Close() {
	r.take(-r.taken)
	r.buf, r.failed = nil, io.ErrClosedPipe
}

// ParseInt reads an integer of 64 bits as Redis does: decimal digits without leading zeros, a plus
// or spaces. It returns 0 and false for what is none.
func ParseInt(text []byte) (int64, bool) {
	digits, negative := bytes.CutPrefix(text, []byte{'-'})
	if len(digits) == 0 || len(digits) > 19 || digits[0] == '0' && len(text) > 1 {
		return 0, false
	}
	n := uint64(0)
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0') // 19 digits fit
	}
	switch {
	case negative && n <= 1<<63:
		return -int64(n), true
	case !negative && n < 1<<63:
		return int64(n), true
	}
	return 0, false
}
