package respapi

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/edge"
)

const (
	// mostPushed is how many bytes may wait for a subscriber, as in Redis
	// (client-output-buffer-limit pubsub 32mb).
	mostPushed = 32 << 20
	// mostPushedInAll is how many bytes may wait for all subscribers before each of them may have
	// no more than fewPushed.
	mostPushedInAll = 256 << 20
	fewPushed       = 1 << 20
	// pieceBytes is how many bytes are written at once.
	pieceBytes = 256 << 10
	// mostAnswers is how many bytes of answers wait for a client when it is read from no more.
	mostAnswers = 16 << 20
	// mostAhead is how many bytes of a long answer are made before the client has read them.
	mostAhead = 256 << 10
	// flushAt is how many bytes of answers are sent although more commands have arrived.
	flushAt = 64 << 10
	// writeWithin bounds a write of which the client reads nothing.
	writeWithin = 10 * time.Second
	// kernelBytes is how much the kernel keeps for a subscriber. It bounds what has to be read
	// before an event is, where a client is slow.
	kernelBytes = 128 << 10
	// stuckAfter is how long a client may read nothing of what waits for it.
	stuckAfter = 3 * time.Second
	// resetWithin is how long after a good-bye a reset can still come, and resetPause how often it
	// is looked for.
	resetWithin, resetPause = 100 * time.Millisecond, 10 * time.Millisecond
	// restingOutput is the largest buffer that is kept.
	restingOutput = 64 << 10
)

var errSlow = errors.New("the client does not read what it has subscribed to")

// An output is what goes to a client. What the kernel does not take at once is written by a
// goroutine of its own, which ends when all is written. So the connection goes on reading commands:
// many clients write a whole pipeline before they read the first answer. Once there are messages,
// the goroutine stays: a publisher never waits for a client.
type output struct {
	nc   net.Conn
	raw  syscall.RawConn // nil: the kernel cannot be asked, as of TLS
	now  writing         // what writeNow does; for the one goroutine that sends
	sock syscall.RawConn // of what TLS has beneath it, or of nc; nil: there is none
	all  *budgets        // what waits for all connections
	slow func(bytes int) // called once, when the client is cut off with so many bytes that wait

	mu      sync.Mutex // guards what follows; it is never held while a write waits
	pending []byte
	entries []unwritten   // of pending, in order
	answers int           // bytes of pending that are answers; the others are messages
	unread  *edge.Holding // by answers, also those that are being written
	writing inHand        // bytes that are being written
	stays   bool          // the goroutine does not end when all is written
	pushing bool          // there is a goroutine that writes
	wake    chan struct{} // 1: something is pending
	room    chan struct{} // closed when something was taken or written; nil: no one waits
	queued  int64         // bytes that were pending at some time
	written int64         // of them, that the kernel has
	edge    int64         // how far the client's machine has had room
	moved   time.Time     // when edge has grown last, or the first was pushed since idle
	idle    bool          // everything was taken
	closing bool          // the goroutine ends when it has written everything
	failed  error
	done    chan struct{} // closed when the goroutine has ended
}

// A writing is a call of the kernel.
type writing struct {
	call    func(fd uintptr) bool // makes it
	b       []byte
	written int
	err     error
}

// unwritten are entries of a group among bytes that are not written yet.
type unwritten struct {
	end      int    // where they end in these bytes
	giveBack func() // it is called without the lock
}

// inHand are bytes that the goroutine writes.
type inHand struct{ messages, answers int }

func newOutput(nc net.Conn, all *budgets, slow func(bytes int)) *output {
	o := &output{nc: nc, all: all, slow: slow, unread: all.unread.For(nil)}
	o.raw = rawConn(nc)
	o.now.call = func(fd uintptr) bool {
		o.now.written, o.now.err = syscall.Write(int(fd), o.now.b)
		return true
	}
	if secret, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = secret.NetConn()
	}
	o.sock = rawConn(nc)
	o.stays = o.raw == nil
	return o
}

// rawConn returns the socket of a connection; nil: it has none of its own.
func rawConn(nc net.Conn) (raw syscall.RawConn) {
	if c, ok := nc.(syscall.Conn); ok {
		raw, _ = c.SyscallConn()
	}
	return raw
}

// send sends answers, from the goroutine of the connection. It waits for the client as long as many
// bytes are pending. The rest is as of offer.
func (o *output) send(b []byte, entries []unwritten) error {
	most, err := o.offer(b, entries)
	if most > 0 {
		o.wait(func() bool { return len(o.pending) < most })
	}
	return err
}

// offer sends answers without a wait for the client. Only one goroutine at a time may send. It may
// keep b if that has room for more than restingOutput. entries are those among b: what the client
// does not get of them is given back, now or when the output ends. most is how few bytes must be
// pending before more are sent; 0: none are pending.
func (o *output) offer(b []byte, entries []unwritten) (most int, err error) {
	whole, all := cap(b), len(b)
	o.mu.Lock()
	pushing := o.pushing
	o.mu.Unlock()
	if !pushing {
		rest, err := o.writeNow(b)
		if b, entries = rest, after(entries, all-len(rest)); err != nil {
			giveBack(entries)
			return 0, err
		}
		if len(b) == 0 {
			return 0, nil
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.beginLocked()
	// What is kept is counted by its length: it must not have much more room.
	if err := o.addLocked(b, whole > restingOutput && whole <= 2*len(b)); err != nil {
		go giveBack(entries)
		return 0, err
	}
	o.entries = append(o.entries, after(entries, len(b)-len(o.pending))...)
	o.answers += len(b)
	if o.unread.Add(int64(len(b))); o.unread.Full() {
		return 1, nil
	}
	return mostAnswers, nil
}

// isClear reports whether nothing is pending, nor being written.
func (o *output) isClear() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.pending) == 0 && o.writing == inHand{}
}

// await waits until the client has left little of a long answer unread, or is gone.
func (o *output) await() {
	o.wait(func() bool {
		n := o.unread.Bytes()
		return n == 0 || n <= mostAhead && !o.unread.Full()
	})
}

// wait waits until something holds, under the lock, that comes true as the client reads, or the
// client is gone.
func (o *output) wait(holds func() bool) {
	for {
		o.mu.Lock()
		if o.failed != nil || holds() {
			o.mu.Unlock()
			return
		}
		room := o.roomMadeLocked()
		o.mu.Unlock()
		<-room
	}
}

// pass counts the answers as those of another caller from now on.
func (o *output) pass(c *edge.Caller) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unread.Pass(c)
}

// writeNow writes what the kernel takes at once, and returns the rest.
func (o *output) writeNow(b []byte) (rest []byte, err error) {
	if o.raw == nil {
		return b, nil
	}
	for len(b) > 0 {
		o.now.b = b
		broken := o.raw.Write(o.now.call)
		o.now.b = nil
		switch err := o.now.err; {
		case broken != nil:
			return b, broken
		case err == nil:
			b = b[o.now.written:]
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return b, nil
		default:
			return b, err
		}
	}
	return nil, nil
}

// write writes to the client, as long as it reads something now and then. It returns how much.
func (o *output) write(b []byte) (written int, err error) {
	for written < len(b) {
		if err := o.nc.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
			return written, err
		}
		n, err := o.nc.Write(b[written:min(len(b), written+pieceBytes)])
		o.wrote(n)
		if written += n; err != nil && (n == 0 || !isTimeout(err)) {
			return written, err
		}
	}
	return written, nil
}

// after returns the entries that end after so many bytes, with their ends counted from there.
func after(entries []unwritten, n int) (rest []unwritten) {
	for _, e := range entries {
		if e.end > n {
			rest = append(rest, unwritten{e.end - n, e.giveBack})
		}
	}
	return rest
}

func giveBack(entries []unwritten) {
	for _, e := range entries {
		e.giveBack()
	}
}

// wrote takes back what was counted of messages and answers, of which so many bytes are written at
// most.
func (o *output) wrote(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	messages, answers := min(n, o.writing.messages), min(n, o.writing.answers)
	o.writing.messages -= messages
	o.writing.answers -= answers
	o.written = min(o.written+int64(n), o.queued-int64(len(o.pending)))
	o.all.pushed.Add(-int64(messages))
	o.unread.Add(-int64(answers))
	o.roomLocked()
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// addLocked adds to what is pending; keep: it may keep b. It fails if the client was cut off.
func (o *output) addLocked(b []byte, keep bool) error {
	switch {
	case o.failed != nil:
		return o.failed
	case keep && len(o.pending) == 0:
		o.pending = b
	default:
		o.pending = append(o.pending, b...)
	}
	o.queued += int64(len(b))
	if len(o.pending) == len(b) {
		poke(o.wake)
	}
	return nil
}

// beginPushing has the goroutine that writes start, and stay. push may be called from now on.
func (o *output) beginPushing() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.stays {
		if o.sock != nil {
			_ = o.sock.Control(func(fd uintptr) {
				_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, kernelBytes)
			})
		}
	}
	o.stays = true
	o.beginLocked()
}

// beginLocked starts the goroutine that writes, if there is none.
func (o *output) beginLocked() {
	if o.pushing || o.failed != nil {
		return
	}
	o.pushing, o.wake, o.done = true, make(chan struct{}, 1), make(chan struct{})
	go o.run()
}

// push adds a message, from any goroutine. It never waits. entries are those among b, as of send.
// end is for state. It reports whether the client is still there: one that has left too many
// messages unread is cut off.
func (o *output) push(b []byte, entries ...unwritten) (end int64, there bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	most := mostPushed
	if o.all.pushed.Load()+int64(len(b)) > mostPushedInAll {
		most = fewPushed
	}
	if waiting := o.writing.messages + len(o.pending) - o.answers; o.failed == nil && waiting+len(b) > most {
		o.failLocked(errSlow)
		poke(o.wake)
		o.slow(waiting)
	}
	if o.addLocked(b, false) != nil {
		go giveBack(entries)
		return 0, false
	}
	o.entries = append(o.entries, after(entries, len(b)-len(o.pending))...)
	if o.idle {
		o.idle, o.moved = false, time.Now()
	}
	o.all.pushed.Add(int64(len(b)))
	return o.queued, true
}

// A state is how far a client has got with what it was pushed.
type state struct {
	taken int64 // its machine has confirmed everything before
	ahead int64 // bytes that it has not confirmed
	stuck bool  // there are such, and it has read nothing for stuckAfter
	gone  bool
}

// state returns how far the client has got.
func (o *output) state() (s state) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.gone = o.failed != nil
	unconfirmed, room := int64(0), int64(0)
	if o.sock != nil {
		var reset bool
		err := o.sock.Control(func(fd uintptr) { unconfirmed, room, reset = socketState(fd) })
		s.gone = s.gone || reset || err != nil
	}
	s.taken = o.written - unconfirmed
	s.ahead = o.queued - s.taken
	// The sum grows with what the client reads alone.
	o.idle = s.ahead == 0
	if now := time.Now(); o.idle || s.taken+room > o.edge {
		o.edge, o.moved = max(o.edge, s.taken+room), now
	} else {
		s.stuck = now.Sub(o.moved) >= stuckAfter
	}
	return s
}

// progress returns a channel that is closed when something was written, or the client is gone.
func (o *output) progress() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.roomMadeLocked()
}

// isRead reports whether a client that has left has read everything, as far as its machine tells:
// it resets the connection if something was unread.
func (o *output) isRead(left error) bool {
	s := o.state()
	switch {
	case s.gone:
		return false
	case left == nil: // the server ends the connection, and the client is there to read the rest
		return true
	case errors.Is(left, io.EOF):
		// It may have said so before its socket was closed, and before the last bytes count.
		for range resetWithin / resetPause {
			time.Sleep(resetPause)
			if s = o.state(); s.gone {
				return false
			}
		}
		return s.ahead == 0
	}
	return s.ahead == 0 && errors.Is(left, os.ErrDeadlineExceeded)
}

// run writes what is pending.
func (o *output) run() {
	defer close(o.done)
	var spare []byte
	for {
		o.mu.Lock()
		b, entries := o.pending, o.entries
		o.entries = nil
		o.writing.messages, o.writing.answers = len(b)-o.answers, o.answers
		o.pending, o.answers = spare[:0], 0
		o.roomLocked()
		over := o.failed != nil || len(b) == 0 && (o.closing || !o.stays)
		if over {
			o.pushing = false
			_ = o.nc.SetWriteDeadline(time.Time{}) // the next answers are written without one
		}
		o.mu.Unlock()
		switch {
		case over:
			o.wrote(len(b))
			giveBack(entries)
			return
		case len(b) > 0:
			n, err := o.write(b)
			if err != nil {
				o.fail(err)
				giveBack(after(entries, n))
			}
			o.wrote(len(b))
			if spare = b; cap(spare) > restingOutput {
				spare = nil
			}
		default:
			spare = b
			<-o.wake
		}
	}
}

// fail ends the output.
func (o *output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failLocked(err)
}

func (o *output) failLocked(err error) {
	if o.failed == nil {
		o.failed = err
	}
	o.roomLocked()
	o.unread.Add(-int64(o.answers))
	o.all.pushed.Add(int64(o.answers - len(o.pending)))
	o.pending, o.answers = nil, 0
	o.nc.Close()
}

// roomLocked wakes those that wait for room.
func (o *output) roomLocked() {
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
}

// roomMadeLocked returns a channel that is closed when the client has read something, or is gone.
func (o *output) roomMadeLocked() <-chan struct{} {
	if o.room == nil {
		o.room = make(chan struct{})
	}
	return o.room
}

// close writes what is pending, and ends the goroutine.
func (o *output) close() {
	o.mu.Lock()
	pushing := o.pushing
	o.closing = true
	if pushing {
		poke(o.wake)
	}
	o.mu.Unlock()
	if pushing {
		<-o.done
	}
}
