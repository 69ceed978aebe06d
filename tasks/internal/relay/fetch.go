package relay

import (
	"context"
	"errors"
	"time"
)

// maxFetches is how many pieces are in flight to this node at a time, at most: 1.5 MiB. A Redis
// server closes subscribers for which 32 MiB wait, or 8 MiB for a minute.
const maxFetches = 8

var errGone = errors.New("message body discarded")

// A source is a body and the node that has it.
type source struct {
	node string
	bodyKey
}

// A fetching is the next piece of a body that is wanted.
type fetching struct {
	wake chan struct{} // holds one token when a piece has come

	// Guarded by Relay.mu:
	position, missing uint64
	piece             []byte
	gone              bool
}

// fetch reads a body of a node, piece by piece. It gives up when no piece has come for
// Config.Silence.
func (r *Relay) fetch(ctx context.Context, node string, key bodyKey, size uint64) ([]byte, error) {
	f := &fetching{wake: make(chan struct{}, 1)}
	r.mu.Lock()
	r.fetching[source{node, key}] = f
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.fetching, source{node, key})
	}()
	body := make([]byte, 0, size)
	pause, silent := firstPause, time.Duration(0)
	for uint64(len(body)) < size {
		if silent >= r.cfg.Silence {
			return nil, errSilent
		}
		piece, err := r.fetchPiece(ctx, node, key, f, uint64(len(body)), size, pause)
		if err != nil {
			return nil, err
		}
		body = append(body, piece...)
		silent += pause // without the time in which other fetches had all turns
		if pause *= 2; piece != nil {
			pause, silent = firstPause, 0
		}
		pause = min(pause, r.longestPause())
	}
	return body, nil
}

// fetchPiece requests a piece, and waits for it for a while. It returns nil if the piece does not
// come.
func (r *Relay) fetchPiece(ctx context.Context, node string, key bodyKey, f *fetching, position, size uint64, pause time.Duration) ([]byte, error) {
	select {
	case r.fetches <- struct{}{}:
		defer func() { <-r.fetches }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r.mu.Lock()
	f.position, f.missing, f.piece = position, size-position, nil
	r.queueLocked(node, &outgoing{kind: fetchFrame, rest: key.rest(nil, position)})
	r.mu.Unlock()
	timer := time.NewTimer(jitter(pause))
	defer timer.Stop()
	select {
	case <-f.wake:
		r.mu.Lock()
		defer r.mu.Unlock()
		if f.gone {
			return nil, errGone
		}
		return f.piece, nil
	case <-timer.C:
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// fetchLocked sends a piece of a body to the peer that requested it.
func (r *Relay) fetchLocked(p *peer, key bodyKey, position uint64) {
	var body []byte
	switch key.side {
	case callSide:
		if a := r.open[key.id]; a != nil && key.caller == r.cfg.Incarnation && a.node == p.node {
			body, a.sign = a.body, time.Now()
		}
	case answerSide:
		h := p.remembered[key.id]
		if key.caller != p.incarnation || h == nil || h.status != answered {
			r.sendReplyLocked(p, &reply{caller: key.caller, id: key.id, status: lost})
			return
		}
		body = h.answer
	}
	if position >= uint64(len(body)) {
		return
	}
	piece := body[position:min(position+pieceSize, uint64(len(body)))]
	r.queueLocked(p.node, &outgoing{kind: pieceFrame, rest: key.rest(nil, position), body: piece})
}

// pieceLocked stores a piece, if it is the requested one.
func (r *Relay) pieceLocked(p *peer, key bodyKey, position uint64, piece []byte) {
	f := r.fetching[source{p.node, key}]
	if f == nil || position != f.position || f.piece != nil || len(piece) == 0 || uint64(len(piece)) > f.missing {
		return
	}
	f.piece = piece
	signal(f.wake)
}
