package relay

import (
	"context"
	"time"
)

// restartMargin is how much older than this relay a call must at least be younger: a copy may
// have aged in flight by more than its age says.
const restartMargin = 500 * time.Millisecond

// A remembered call was executed, is being executed, or will never be.
type remembered struct {
	peer     *peer
	id       uint64
	withdraw context.CancelFunc

	// Guarded by Relay.mu:
	status status
	answer []byte
	queued *outgoing // the frame that waits to be sent
	gone   bool      // it was forgotten
}

// callLocked handles one copy of a call.
func (r *Relay) callLocked(p *peer, q *call) {
	now := r.clock()
	q.ttl = min(q.ttl, uint64(MaxTime.Milliseconds()))
	if q.echo != 0 && q.echo <= now && now-q.echo < q.ttl {
		p.believe()
	}
	if h := p.remembered[q.id]; h != nil {
		r.stats.Repeats++
		r.sendAnswerLocked(h)
		return
	}
	if p.delay >= q.ttl {
		// Executing it would be wrong, and so would saying that it was not executed: an earlier
		// copy may have been, and be forgotten.
		r.stats.Expired++
		stamp := appendNumber(nil, now)
		r.sendReplyLocked(p, &reply{caller: p.incarnation, id: q.id, status: late, size: uint64(len(stamp)), body: stamp})
		return
	}
	if q.age > 0 && q.age+p.delay+uint64(restartMargin.Milliseconds()) >= now {
		r.sendReplyLocked(p, &reply{caller: p.incarnation, id: q.id, status: lost})
		return
	}
	h := r.rememberLocked(p, q, now)
	if h == nil {
		r.stats.Refused++
		return // a call without an entry might be executed twice, or after a refusal
	}
	size := int(q.size)
	if !r.admitLocked(size) {
		h.status = refused
		r.sendAnswerLocked(h)
		return
	}
	ctx, cancel := context.WithTimeout(r.life, time.Duration(q.ttl-p.delay)*time.Millisecond)
	h.withdraw = cancel
	from := p.node
	r.work.Go(func() {
		defer cancel()
		r.execute(ctx, h, from, q)
	})
}

// admitLocked reports whether there is room to execute one more call.
func (r *Relay) admitLocked(size int) bool {
	if r.stats.Answering >= r.cfg.MaxAnswering || r.working+size > r.cfg.MaxBytes {
		r.stats.Refused++
		return false
	}
	r.stats.Answering++
	r.working += size
	return true
}

func (r *Relay) doneLocked(size int) {
	r.stats.Answering--
	r.working -= size
}

// execute answers a call, once.
func (r *Relay) execute(ctx context.Context, h *remembered, from string, q *call) {
	body := q.body
	if body == nil && q.size > 0 {
		var err error
		if body, err = r.fetch(ctx, from, bodyKey{callSide, h.peer.incarnation, q.id}, q.size); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.doneLocked(int(q.size))
			h.status = refused
			r.sendAnswerLocked(h)
			return
		}
	}
	answer := r.cfg.Answer(ctx, Call{From: from, Method: q.method, Body: body})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doneLocked(int(q.size))
	r.stats.Answered++
	if len(answer) > MaxBody {
		r.log.Error("an answer is too long to be sent", "method", q.method, "bytes", len(answer), "from", from)
		h.status = lost
	} else {
		h.status, h.answer = answered, answer
		r.keepLocked(h)
	}
	r.sendAnswerLocked(h)
}

// maxInbox is how many notifications of one process may wait for their turn. So a handler that
// hangs keeps a bounded part of the room that all processes share.
const maxInbox = 1 << 14

// inboxShare is the share of Limits.MaxBytes that the notifications of one process may take.
const inboxShare = 8

// enterInboxLocked has a notification wait for its turn. size is the size of its message.
func (r *Relay) enterInboxLocked(p *peer, q Call, size int) {
	if p.unread >= maxInbox || p.bytes+len(q.Body) > r.cfg.MaxBytes/inboxShare || r.inTurn+len(q.Body) > r.cfg.MaxBytes {
		r.stats.Refused++
		return
	}
	q.Body = own(q.Body, size)
	r.inTurn += len(q.Body)
	p.bytes += len(q.Body)
	p.unread++
	p.inbox = append(p.inbox, q)
	if !p.reading {
		p.reading = true
		r.work.Go(func() { r.readInbox(p) })
	}
}

// readInbox answers the notifications of a process until there are no more. Once the relay is
// closed, it drops them.
func (r *Relay) readInbox(p *peer) {
	for {
		r.mu.Lock()
		batch := p.inbox
		p.inbox = nil
		p.reading = len(batch) > 0
		r.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, q := range batch {
			if r.life.Err() == nil {
				ctx, cancel := context.WithTimeout(r.life, MaxTime)
				r.cfg.Answer(ctx, q)
				cancel()
			}
			r.mu.Lock()
			r.inTurn -= len(q.Body)
			p.bytes -= len(q.Body)
			p.unread--
			r.stats.Answered++ // or dropped, at the end
			r.mu.Unlock()
		}
	}
}

// notificationLocked handles a notification. size is the size of its message.
func (r *Relay) notificationLocked(p *peer, method string, body []byte, size int) {
	if r.cfg.InOrder != nil && r.cfg.InOrder(method) {
		r.enterInboxLocked(p, Call{From: p.node, Method: method, Body: body, Told: true}, size)
		return
	}
	if !r.admitLocked(len(body)) {
		return
	}
	from := p.node
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(r.life, MaxTime)
		defer cancel()
		r.cfg.Answer(ctx, Call{From: from, Method: method, Body: body, Told: true})
		r.mu.Lock()
		defer r.mu.Unlock()
		r.doneLocked(len(body))
		r.stats.Answered++
	})
}
