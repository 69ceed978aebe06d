package respapi

import (
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// mostPushed is how many bytes may wait for a subscriber, as in Redis
	// (client-output-buffer-limit pubsub 32mb).
	mostPushed = 32 << 20
	// mostAnswers is how many bytes of answers wait for a subscriber when it is read from no more.
	mostAnswers = 1 << 20
	// flushAt is how many bytes of answers are sent although more commands have arrived.
	flushAt = 64 << 10
	// writeWithin bounds a write of which the client reads nothing.
	writeWithin = 10 * time.Second
	// restingOutput is the largest buffer that is kept.
	restingOutput = 64 << 10
)

var errSlow = errors.New("the client does not read what it has subscribed to")

// An output is what goes to a client. Until the first push, the goroutine of the connection writes
// by itself. After it a goroutine of its own writes, so that a publisher never waits for a client.
type output struct {
	nc   net.Conn
	slow func() // called once, when the client is cut off

	mu      sync.Mutex // guards what follows; it is never held while a write waits
	pending []byte
	pushing bool          // there is a goroutine that writes
	wake    chan struct{} // 1: something is pending
	room    chan struct{} // closed when the goroutine has taken what was pending; nil: no one waits
	stalled bool          // full does not count it until the client has read something
	closing bool          // the goroutine ends when it has written everything
	failed  error
	done    chan struct{} // closed when the goroutine has ended
}

// send sends answers. It waits for the client as long as many bytes are pending.
func (o *output) send(b []byte) error {
	o.mu.Lock()
	if !o.pushing {
		o.mu.Unlock()
		return o.write(b)
	}
	err := o.addLocked(b)
	room := o.fullLocked(mostAnswers)
	o.mu.Unlock()
	if room != nil {
		<-room
	}
	return err
}

// write writes to the client, as long as it reads something now and then.
func (o *output) write(b []byte) error {
	for len(b) > 0 {
		if err := o.nc.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
			return err
		}
		n, err := o.nc.Write(b)
		if b = b[n:]; err != nil && (n == 0 || !isTimeout(err)) {
			return err
		}
	}
	return nil
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// addLocked adds to what is pending. It fails if the client was cut off, or is from now on.
func (o *output) addLocked(b []byte) error {
	if o.failed == nil && len(o.pending)+len(b) > mostPushed {
		o.failed = errSlow
		o.pending = nil
		o.roomLocked()
		poke(o.wake)
		o.slow()
		o.nc.Close()
	}
	if o.failed != nil {
		return o.failed
	}
	if o.pending = append(o.pending, b...); len(o.pending) == len(b) {
		poke(o.wake)
	}
	return nil
}

// beginPushing starts the goroutine that writes. push may be called from now on.
func (o *output) beginPushing() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pushing {
		return
	}
	o.pushing, o.wake, o.done = true, make(chan struct{}, 1), make(chan struct{})
	go o.run()
}

// push adds a message, from any goroutine. It never waits. It reports whether the client is still
// there.
func (o *output) push(b []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.addLocked(b) == nil
}

// run writes what is pending.
func (o *output) run() {
	defer close(o.done)
	var spare []byte
	for {
		o.mu.Lock()
		b := o.pending
		o.pending = spare[:0]
		o.roomLocked()
		failed, closing := o.failed, o.closing
		o.mu.Unlock()
		switch {
		case failed != nil:
			return
		case len(b) > 0:
			if err := o.write(b); err != nil {
				o.fail(err)
				return
			}
			if spare = b; cap(spare) > restingOutput {
				spare = nil
			}
		case closing:
			return
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
	if o.failed == nil {
		o.failed = err
	}
	o.roomLocked()
	o.pending = nil
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
	if o.stalled {
		return nil
	}
	return o.fullLocked(bytes)
}

// fullLocked is full, whether the client is stalled or not.
func (o *output) fullLocked(bytes int) <-chan struct{} {
	if o.failed != nil || len(o.pending) < bytes {
		return nil
	}
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
