package respapi

import (
	"errors"
	"net"
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
	// no more than fewPushed. That is more than there is when deliveries begin to wait for one.
	mostPushedInAll = 256 << 20
	fewPushed       = 4 * backlogBytes
	// pieceBytes is how many bytes are written at once.
	pieceBytes = 256 << 10
	// mostAnswers is how many bytes of answers wait for a client when it is read from no more.
	mostAnswers = 16 << 20
	// flushAt is how many bytes of answers are sent although more commands have arrived.
	flushAt = 64 << 10
	// writeWithin bounds a write of which the client reads nothing.
	writeWithin = 10 * time.Second
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
	all  *budgets        // what waits for all connections
	slow func(bytes int) // called once, when the client is cut off with so many bytes that wait

	mu      sync.Mutex // guards what follows; it is never held while a write waits
	pending []byte
	answers int           // bytes of pending that are answers; the others are messages
	unread  *edge.Holding // by answers, also those that are being written
	writing inHand        // bytes that are being written
	stays   bool          // the goroutine does not end when all is written
	pushing bool          // there is a goroutine that writes
	wake    chan struct{} // 1: something is pending
	room    chan struct{} // closed when something was taken or written; nil: no one waits
	stalled bool          // full does not count it until the client has read something
	closing bool          // the goroutine ends when it has written everything
	failed  error
	done    chan struct{} // closed when the goroutine has ended
}

// inHand are bytes that the goroutine writes.
type inHand struct{ messages, answers int }

func newOutput(nc net.Conn, all *budgets, slow func(bytes int)) *output {
	o := &output{nc: nc, all: all, slow: slow, unread: all.unread.For(nil)}
	if c, ok := nc.(syscall.Conn); ok {
		o.raw, _ = c.SyscallConn()
	}
	o.stays = o.raw == nil
	return o
}

// send sends answers, from the goroutine of the connection. It waits for the client as long as many
// bytes are pending. It may keep b if that has room for more than restingOutput.
func (o *output) send(b []byte) error {
	whole := cap(b)
	o.mu.Lock()
	pushing := o.pushing
	o.mu.Unlock()
	if !pushing {
		var err error
		if b, err = o.writeNow(b); err != nil || len(b) == 0 {
			return err
		}
	}
	o.mu.Lock()
	o.beginLocked()
	// What is kept is counted by its length: it must not have much more room.
	if err := o.addLocked(b, whole > restingOutput && whole <= 2*len(b)); err != nil {
		o.mu.Unlock()
		return err
	}
	o.answers += len(b)
	most := mostAnswers
	if o.unread.Add(int64(len(b))); o.unread.Full() {
		most = 1
	}
	enough := len(o.pending) < most
	o.mu.Unlock()
	if !enough {
		o.wait(func() bool { return len(o.pending) < most })
	}
	return nil
}

// await waits until the client has left few answers unread, or is gone.
func (o *output) await() {
	o.wait(func() bool {
		n := o.unread.Bytes()
		return n == 0 || n <= mostAnswers && !o.unread.Full()
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
		n := 0
		broken := o.raw.Write(func(fd uintptr) bool {
			n, err = syscall.Write(int(fd), b)
			return true
		})
		switch {
		case broken != nil:
			return nil, broken
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return b, nil
		case err != nil:
			return nil, err
		default:
			b = b[n:]
		}
	}
	return nil, nil
}

// write writes to the client, as long as it reads something now and then.
func (o *output) write(b []byte) error {
	for len(b) > 0 {
		if err := o.nc.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
			return err
		}
		n, err := o.nc.Write(b[:min(len(b), pieceBytes)])
		o.wrote(n)
		if b = b[n:]; err != nil && (n == 0 || !isTimeout(err)) {
			return err
		}
	}
	return nil
}

// wrote takes back what was counted of messages and answers, of which so many bytes are written at
// most.
func (o *output) wrote(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	messages, answers := min(n, o.writing.messages), min(n, o.writing.answers)
	o.writing.messages -= messages
	o.writing.answers -= answers
	o.all.pushed.Add(-int64(messages))
	if o.unread.Add(-int64(answers)); answers > 0 {
		o.roomLocked()
	}
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
	if len(o.pending) == len(b) {
		poke(o.wake)
	}
	return nil
}

// beginPushing has the goroutine that writes start, and stay. push may be called from now on.
func (o *output) beginPushing() {
	o.mu.Lock()
	defer o.mu.Unlock()
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

// push adds a message, from any goroutine. It never waits. It reports whether the client is still
// there: one that has left too many messages unread is cut off.
func (o *output) push(b []byte) bool {
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
		return false
	}
	o.all.pushed.Add(int64(len(b)))
	return true
}

// run writes what is pending.
func (o *output) run() {
	defer close(o.done)
	var spare []byte
	for {
		o.mu.Lock()
		b := o.pending
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
			return
		case len(b) > 0:
			err := o.write(b)
			o.wrote(len(b))
			if err != nil {
				o.fail(err)
			}
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
	o.stalled = false
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
}

// stall has full not count the client until it has read something. room is what full has returned.
func (o *output) stall(room <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stalled = o.room == room
}

// full returns a channel if many bytes are pending: it is closed when the client has read some of
// them, or is gone. It returns nil if there is room, or the client is stalled.
func (o *output) full(bytes int) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stalled || o.failed != nil || len(o.pending) < bytes {
		return nil
	}
	return o.roomMadeLocked()
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
