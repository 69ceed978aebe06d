package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Pauses between two copies of a call. Each is twice the one before; once the other side has
// reported that it is working, they are at least patientPause.
const (
	firstPause   = 100 * time.Millisecond
	patientPause = time.Second
	longestPause = 5 * time.Second
)

// copiesInSilence is how many copies are sent at least while Config.Silence passes: each may
// be lost.
const copiesInSilence = 4

// errSilent is why Call gives up before its context ends.
var errSilent = errors.New("no reply from the other node")

// abandonedTime is for how long a late answer is passed to Config.Late.
const abandonedTime = time.Minute

// stuckShare is the part of Config.Patience that a prompt call waits for while the bus is known to
// take nothing.
const stuckShare = 5

// An openCall is one whose caller waits.
type openCall struct {
	id           uint64
	node, method string
	body         []byte
	called       time.Time
	deadline     time.Time
	prompt       bool          // see CallPromptly
	wake         chan struct{} // holds one token when something has changed

	// Guarded by Relay.mu:
	queued    bool      // a copy waits to be sent, or is being sent
	sending   bool      // a copy is being sent
	copies    int       // how many were sent, or tried
	untaken   time.Time // since when the bus has taken no copy; zero if it took the last one
	arrivedAt uint64    // clock of the first copy that may have arrived; 0 if none
	echo      uint64    // the stamp of the last answer 'late'
	patient   bool      // the other side is working on it
	sign      time.Time // when the other side last sent something about it, or it was called
	reply     *reply    // the outcome; no caller waits any more
}

// An abandoned call may still be answered.
type abandoned struct {
	node, method string
	called       time.Time
	until        uint64 // on the clock
}

// Call calls another node and returns its answer. It waits until ctx ends, but not longer than
// MaxTime, nor for Config.Silence without a message of the other side about the call: that it
// is working, that it fetches the body, or a piece of its answer. The body must not change before
// Call returns. Errors: ErrUnheard, ErrOverloaded, ErrNoAnswer, and with one of them ErrClosed or
// the context's.
func (r *Relay) Call(ctx context.Context, node, method string, body []byte) ([]byte, error) {
	return r.call(ctx, node, method, body, false)
}

// CallPromptly is Call for a caller that others wait for. It gives up when the bus has not taken a
// copy of the call for Config.Patience, and earlier while the bus is known to take nothing. Then
// the error is ErrNotTaken too.
func (r *Relay) CallPromptly(ctx context.Context, node, method string, body []byte) ([]byte, error) {
	return r.call(ctx, node, method, body, true)
}

func (r *Relay) call(ctx context.Context, node, method string, body []byte, prompt bool) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	a, err := r.begin(ctx, node, method, body, prompt)
	if err != nil {
		return nil, fmt.Errorf("%s at %s: %w", method, node, err)
	}
	if err = r.await(ctx, a); err == nil {
		body, err = r.outcome(ctx, a)
	}
	if err != nil {
		return nil, fmt.Errorf("%s at %s: %w", method, node, err)
	}
	return body, nil
}

// begin registers a call and queues its first copy.
func (r *Relay) begin(ctx context.Context, node, method string, body []byte, prompt bool) (*openCall, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, fmt.Errorf("%w: %w", ErrUnheard, ErrClosed)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnheard, context.Cause(ctx))
	case node == "" || node == r.cfg.Node || len(node) > maxText || len(method) > maxText:
		return nil, fmt.Errorf("%w: invalid target node or method name too long", ErrUnheard)
	case len(body) > MaxBody:
		return nil, fmt.Errorf("%w: body of %d bytes, at most %d are possible", ErrUnheard, len(body), MaxBody)
	case len(r.open) >= r.cfg.MaxCalls:
		r.stats.Overloaded++
		return nil, fmt.Errorf("%w: %d of this node wait for answers", ErrOverloaded, len(r.open))
	}
	r.counter++
	deadline, _ := ctx.Deadline()
	a := &openCall{id: r.counter, node: node, method: method, body: body, called: time.Now(), deadline: deadline, prompt: prompt, wake: make(chan struct{}, 1)}
	a.sign = a.called
	r.open[a.id] = a
	r.stats.Asked++
	r.sendCallLocked(a)
	return a, nil
}

// await sends copies until there is an outcome, and returns nil when the other side has answered.
func (r *Relay) await(ctx context.Context, a *openCall) error {
	pause := firstPause
	timer := time.NewTimer(jitter(pause))
	defer timer.Stop()
	silence := time.NewTimer(r.cfg.Silence)
	defer silence.Stop()
	taken := time.NewTimer(r.patience(a))
	defer taken.Stop()
	for {
		select {
		case <-a.wake:
			r.mu.Lock()
			if a.reply != nil {
				r.mu.Unlock()
				return nil
			}
			if patient := min(patientPause, r.longestPause()); a.patient && pause < patient {
				pause = patient
				timer.Reset(jitter(pause))
			}
			if a.echo != 0 {
				r.sendCallLocked(a)
			}
			r.mu.Unlock()
		case <-timer.C:
			pause = min(2*pause, r.longestPause())
			timer.Reset(jitter(pause))
			r.mu.Lock()
			r.sendCallLocked(a)
			r.mu.Unlock()
		case <-silence.C:
			r.mu.Lock()
			left := r.cfg.Silence - time.Since(a.sign)
			r.mu.Unlock()
			if left <= 0 {
				return r.giveUp(a, errSilent)
			}
			silence.Reset(left)
		case <-taken.C:
			left := r.patience(a)
			if left <= 0 {
				return r.giveUp(a, ErrNotTaken)
			}
			taken.Reset(left)
		case <-ctx.Done():
			return r.giveUp(a, context.Cause(ctx))
		case <-r.life.Done():
			return r.giveUp(a, ErrClosed)
		}
	}
}

// patience returns how long a call still waits for the bus to take a copy of it. If that time is
// over, the bus is known to take nothing from now on.
func (r *Relay) patience(a *openCall) time.Duration {
	if !a.prompt {
		return MaxTime
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.cfg.Patience
	if r.stuck {
		left /= stuckShare
	}
	if !a.untaken.IsZero() {
		left -= time.Since(a.untaken)
	}
	r.stuck = r.stuck || left <= 0
	return left
}

// longestPause is the longest pause between two copies.
func (r *Relay) longestPause() time.Duration {
	return min(longestPause, r.cfg.Silence/copiesInSilence)
}

// jitter spreads the repeats of calls that were called together.
func jitter(pause time.Duration) time.Duration {
	return pause*3/4 + rand.N(pause/2)
}

// giveUp ends a call without an outcome, unless there is one by now.
func (r *Relay) giveUp(a *openCall, cause error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.reply != nil {
		return nil
	}
	delete(r.open, a.id)
	if a.arrivedAt == 0 && !a.sending {
		r.stats.Unheard++
		return fmt.Errorf("%w: %w", ErrUnheard, cause)
	}
	r.stats.Unanswered++
	if r.cfg.Late != nil && len(r.abandoned) < r.cfg.MaxCalls {
		r.abandoned[a.id] = abandoned{a.node, a.method, a.called, r.clock() + uint64(abandonedTime.Milliseconds())}
	}
	if time.Until(a.deadline) > 0 {
		r.queueLocked(a.node, &outgoing{kind: withdrawalFrame, rest: appendNumber(nil, a.id)})
	}
	return fmt.Errorf("%w: %w", ErrNoAnswer, cause)
}

// outcome turns the other side's reply into the result of Call.
func (r *Relay) outcome(ctx context.Context, a *openCall) ([]byte, error) {
	switch a.reply.status {
	case answered:
		body, err := r.answerBody(ctx, a.node, a.reply)
		if err == nil {
			return body, nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stats.Unanswered++
		if ctx.Err() != nil || errors.Is(err, errSilent) {
			r.lateLocked(&abandoned{node: a.node, method: a.method, called: a.called}, a.reply)
		}
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	case refused:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stats.Overloaded++
		return nil, fmt.Errorf("%w there", ErrOverloaded)
	default:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stats.Unanswered++
		return nil, fmt.Errorf("%w: answer discarded, or the called process has ended", ErrNoAnswer)
	}
}

// answerBody returns the body of an answer, and fetches it if need be.
func (r *Relay) answerBody(ctx context.Context, node string, a *reply) ([]byte, error) {
	if a.body != nil || a.size == 0 {
		return a.body, nil
	}
	return r.fetch(ctx, node, bodyKey{answerSide, r.cfg.Incarnation, a.id}, a.size)
}

// replyLocked handles an answer.
func (r *Relay) replyLocked(p *peer, a reply) {
	if a.caller != r.cfg.Incarnation {
		return // for an earlier process of this name
	}
	if q := r.open[a.id]; q != nil && q.node == p.node {
		q.sign = time.Now()
		switch a.status {
		case working:
			q.patient = true
		case late:
			q.echo, _ = binary.Uvarint(a.body)
		default:
			q.reply = &a
			delete(r.open, a.id)
		}
		signal(q.wake)
		return
	}
	if f := r.fetching[source{p.node, bodyKey{answerSide, a.caller, a.id}}]; f != nil && a.status == lost {
		f.gone = true
		signal(f.wake)
	}
	if q, ok := r.abandoned[a.id]; ok && a.status == answered {
		delete(r.abandoned, a.id)
		r.lateLocked(&q, &a)
	}
}

// lateLocked passes an answer that no caller waits for to Config.Late.
func (r *Relay) lateLocked(q *abandoned, a *reply) {
	if r.cfg.Late == nil || r.closed {
		return
	}
	r.stats.LateAnswers++
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(r.life, abandonedTime)
		defer cancel()
		if body, err := r.answerBody(ctx, q.node, a); err == nil {
			r.cfg.Late(q.node, q.method, body, q.called)
		}
	})
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
