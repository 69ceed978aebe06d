package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// messageSize is about how long a message grows while others are in flight.
const messageSize = 256 << 10

// sendTimeout is how long the bus may take for one message.
const sendTimeout = 2 * time.Second

// MaxNotification is the longest body that Send takes, in bytes.
const MaxNotification = pieceSize

// The size of a frame besides its rest: its kind and length, at most; and about its size besides
// its body.
const (
	frameHead = 1 + binary.MaxVarintLen64
	frameSize = 128
)

// An outgoing frame waits to be sent. Calls and answers become frames only when it is their
// turn: a call carries its age, a withdrawn one is not sent, and an execution may have ended by
// then.
type outgoing struct {
	kind       kind
	call       *openCall   // of a call frame
	remembered *remembered // of an answer to a call that is remembered
	rest, body []byte
	size       int // about
}

// A lane sends the frames for one node, or for all; it exists while there are any.
type lane struct {
	node  string
	queue []*outgoing // guarded by Relay.mu
}

// inline returns the part of a body that goes into a frame: all of it, or nothing.
func inline(body []byte) []byte {
	if len(body) > pieceSize {
		return nil
	}
	return body
}

// Send sends a message to a node, or to all other nodes if node is empty; it may get lost. The
// other side's Answer gets it, with Call.Told set. Send copies the body. An error means that it
// was not sent: it is too long (192 KiB are possible), too much waits to be sent, or the relay is
// closed.
func (r *Relay) Send(node, method string, body []byte) error {
	if node == r.cfg.Node || len(node) > maxText || len(method) > maxText || len(body) > pieceSize {
		return fmt.Errorf("send %s to node %s: invalid target node, or method name or body too long", method, node)
	}
	rest := append(appendText(make([]byte, 0, 1+len(method)+len(body)), method), body...)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return ErrClosed
	case !r.queueLocked(node, &outgoing{kind: notificationFrame, rest: rest}):
		return errors.New("send queue full")
	}
	return nil
}

// sendCallLocked queues a copy of a call, unless one is queued or in flight.
func (r *Relay) sendCallLocked(a *openCall) {
	if !a.queued {
		if a.untaken.IsZero() {
			a.untaken = time.Now()
		}
		a.queued = r.queueLocked(a.node, &outgoing{kind: callFrame, call: a, body: inline(a.body)})
	}
}

// sendAnswerLocked queues the state of a call.
func (r *Relay) sendAnswerLocked(h *remembered) {
	body := inline(h.answer)
	if o := h.queued; o != nil {
		more := len(body) - len(o.body)
		o.body = body
		o.size += more
		r.stats.Queued += more
		return
	}
	o := &outgoing{kind: answerFrame, remembered: h, body: body}
	if r.queueLocked(h.peer.node, o) {
		h.queued = o
	}
}

func (r *Relay) sendReplyLocked(p *peer, a *reply) {
	r.queueLocked(p.node, &outgoing{kind: answerFrame, rest: a.rest(nil), body: a.body})
}

// queueLocked queues a frame for a node, or reports that it cannot. Once the relay is closed, it
// takes only answers: Close waits for the messages and executions that they come from.
func (r *Relay) queueLocked(node string, o *outgoing) bool {
	o.size = frameSize + len(o.rest) + len(o.body)
	if r.closed && o.kind != answerFrame {
		return false
	}
	if r.stats.Queued+o.size > r.cfg.MaxBytes {
		r.stats.Dropped++
		return false
	}
	r.stats.Queued += o.size
	l := r.lanes[node]
	if l == nil {
		l = &lane{node: node}
		r.lanes[node] = l
		r.work.Go(func() { r.run(l) })
	}
	l.queue = append(l.queue, o)
	return true
}

// run sends until the lane is empty.
func (r *Relay) run(l *lane) {
	for {
		// Callers that have just been answered are about to call again: one message takes all.
		runtime.Gosched()
		frames, sent := r.next(l)
		if len(frames) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(r.sending, sendTimeout)
		err := r.cfg.Bus.Send(ctx, l.node, r.message(frames, sent))
		cancel()
		r.sent(frames, sent, err)
	}
}

// next returns the frames of the next message and its time, or ends the lane.
func (r *Relay) next(l *lane) (frames []*outgoing, now uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now = r.clock()
	for len(frames) == 0 {
		if frames = r.takeLocked(l); len(frames) == 0 {
			delete(r.lanes, l.node)
			return nil, 0
		}
		frames = slices.DeleteFunc(frames, func(o *outgoing) bool { return !r.readyLocked(o, now) })
	}
	return frames, now
}

// takeLocked removes from the queue as many frames as fit into a message, and at least one if there
// is one.
func (r *Relay) takeLocked(l *lane) []*outgoing {
	n, size := 0, 0
	for _, o := range l.queue {
		if n > 0 && size+o.size > messageSize {
			break
		}
		size += o.size
		n++
	}
	frames := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	r.stats.Queued -= size
	return frames
}

// readyLocked completes a frame, or reports that it need not be sent any more.
func (r *Relay) readyLocked(o *outgoing, now uint64) bool {
	if h := o.remembered; h != nil {
		h.queued = nil
		a := reply{caller: h.peer.incarnation, id: h.id, status: h.status, size: uint64(len(h.answer))}
		o.rest, o.body = a.rest(nil), inline(h.answer)
	}
	a := o.call
	if a == nil {
		return true
	}
	ttl := time.Until(a.deadline).Milliseconds()
	if r.open[a.id] != a || ttl <= 0 || r.closed {
		a.queued = false
		return false
	}
	q := call{id: a.id, ttl: uint64(ttl), echo: a.echo, method: a.method, size: uint64(len(a.body))}
	if a.arrivedAt != 0 {
		q.age = max(now-a.arrivedAt, 1)
	}
	o.rest = q.rest(nil)
	a.sending, a.echo = true, 0
	if a.copies++; a.copies > 1 {
		r.stats.Resent++
	}
	return true
}

func (r *Relay) message(frames []*outgoing, sent uint64) []byte {
	size := maxHeader
	for _, o := range frames {
		size += frameHead + len(o.rest) + len(o.body)
	}
	m := appendHeader(make([]byte, 0, size), header{process{r.cfg.Node, r.cfg.Incarnation}, sent})
	for _, o := range frames {
		m = appendFrame(m, o.kind, o.rest, o.body)
	}
	return m
}

// isUnheard reports whether no node has received a message.
func isUnheard(err error) bool {
	var u interface{ Unheard() bool }
	return errors.As(err, &u) && u.Unheard()
}

// sent notes the outcome of sending a message.
func (r *Relay) sent(frames []*outgoing, at uint64, err error) {
	unheard := isUnheard(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.stats.Failed++
		r.log.Debug("the bus did not take a message", "error", err)
	} else {
		r.stuck = false
	}
	for _, o := range frames {
		if a := o.call; a != nil {
			a.queued, a.sending = false, false
			if err == nil {
				a.untaken = time.Time{}
			}
			if a.arrivedAt == 0 && !unheard {
				a.arrivedAt = at
			}
		}
	}
}
