package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// A shard changes hands only after its next owner has its content in memory. Until then the
// previous owner has all of it, and writes it again if the ledger loses something. From then on the
// next owner does. So the way of a hand-over is:
//
//	previous owner                            next owner
//	begins nothing new, finishes its writes
//	asks: read the shard at position p   -->  reads it beside its own tasks: a readAhead
//	asks again, until it has             <--  it has everything, and it was at p to the end
//	transfers the shard, unless it is
//	no longer at p: then the ledger has
//	lost writes, and nothing is given
//	evicts the shard                     -->  accepts, and loads what it has read
//
// What a readAhead needs in memory is bounded by the shards that one node hands over at a time:
// one, and by readAheads of them if several nodes do so.

const (
	// readAheads is how many shards are read ahead at a time, or wait to be accepted.
	readAheads = 4
	// readAheadKept is for how long a shard that was read ahead waits for its transfer, since the
	// previous owner has last asked for it.
	readAheadKept = 30 * time.Second
)

// ErrHandingOver is the answer to a node while a hand-over takes longer than one call. It calls
// again.
var ErrHandingOver = task.KindOf(task.ErrUnavailable, "shard is being handed over; call again")

// errShardChanged ends a hand-over: the shard, or what the ledger has of it, has changed.
var errShardChanged = errors.New("the shard was lost, or the ledger has lost confirmed writes of it")

// A readAhead is the content of a shard of another node that is about to be this node's. All but
// its end is guarded by Engine.mu once that is closed; before, only its reader uses it.
type readAhead struct {
	position string
	pending  [][]recovery.Entry
	dead     []recovery.Entry
	whole    bool // the ledger's index of pending tasks agrees with the records
	err      error
	end      chan struct{} // closed when reading has ended

	asked time.Duration // when the previous owner has last asked for it
}

// ReadAhead reads a shard that its owner is about to transfer to this node, at a position. It
// returns nil when memory has the content: then the owner may transfer the shard. Errors:
// ErrHandingOver while it is being read; ErrOverloaded, ErrUnavailable, ErrDraining or ErrClosed if
// this node takes no shard; why it cannot be read.
func (s *Engine) ReadAhead(ctx context.Context, shardID recovery.ShardID, position string) error {
	r, err := s.readingAhead(shardID, position)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Config.AnswerWithin/4)
	defer cancel()
	select {
	case <-r.end:
	case <-ctx.Done():
		return ErrHandingOver
	case <-s.Life.Closing:
		return task.ErrClosed
	}
	if r.err != nil {
		s.dropAhead(shardID, r)
	}
	return r.err
}

// readingAhead returns the readAhead of a shard at a position, and begins it if there is none. A
// node that believes to hold the shard reads it as well: it was cut off when another one adopted
// it, and what it has in memory is older.
func (s *Engine) readingAhead(shardID recovery.ShardID, position string) (*readAhead, error) {
	s.mu.Lock()
	defer s.unlock()
	r := s.Shards.ahead[shardID]
	if r != nil && r.position == position {
		r.asked = s.Elapsed()
		return r, nil
	}
	delete(s.Shards.ahead, shardID) // the hand-over that it was for has failed
	if err := s.takesShardsLocked(); err != nil {
		return nil, err
	}
	if len(s.Shards.ahead) >= readAheads {
		return nil, fmt.Errorf("%w: %d shards of other nodes are being read", task.ErrUnavailable, readAheads)
	}
	r = &readAhead{position: position, end: make(chan struct{}), asked: s.Elapsed()}
	s.Shards.ahead[shardID] = r
	s.Life.Background.Go(func() { s.keepAhead(shardID, r) })
	return r, nil
}

// TakesShards returns why this node takes over no shard of a node that lives; nil if it does.
// Errors: ErrClosed, ErrDraining, ErrUnsure, ErrOverloaded.
func (s *Engine) TakesShards() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takesShardsLocked()
}

func (s *Engine) takesShardsLocked() error {
	switch {
	case s.Ended:
		return task.ErrClosed
	case s.Draining:
		return task.ErrDraining
	case s.Unsure():
		return ErrUnsure
	case s.roomForMoreLocked() == 0:
		return fmt.Errorf("%w: %d tasks are pending", task.ErrOverloaded, s.Store.Len())
	}
	return nil
}

// keepAhead reads a shard, and accepts it once it was transferred. It gives it up when its owner
// does not ask for it any more.
func (s *Engine) keepAhead(shardID recovery.ShardID, r *readAhead) {
	ctx, cancel := context.WithTimeout(s.Life.Context, handOverWithin)
	defer cancel()
	r.whole, r.err = s.Fleet.ReadAhead(ctx, shardID, r.position,
		func(page []recovery.Entry) error {
			if s.isForgotten(shardID, r) {
				return context.Canceled
			}
			r.pending = append(r.pending, page)
			return nil
		},
		func(e recovery.Entry) { r.dead = append(r.dead, e) })
	close(r.end)
	for s.Life.Rest(time.Second) && !s.isForgotten(shardID, r) {
		// The owner may have transferred it, while nothing here waited for that any more.
		look, cancel := s.Within(s.Life.Context)
		if _, err := s.Fleet.Accept(look, shardID); err != nil {
			s.Config.Log.Debug("a shard that was read is not accepted yet", "node", s.Config.Node, "shard", shardID, "error", err)
		}
		cancel()
	}
}

// isForgotten reports whether a readAhead is of no use any more: it was loaded, another one has
// taken its place, or its owner has stopped asking for it.
func (s *Engine) isForgotten(shardID recovery.ShardID, r *readAhead) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Shards.ahead[shardID] != r {
		return true
	}
	if s.Elapsed()-r.asked <= readAheadKept {
		return false
	}
	delete(s.Shards.ahead, shardID)
	return true
}

// KeepAhead keeps what was read of a shard that this node is asking for.
func (s *Engine) KeepAhead(shardID recovery.ShardID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.Shards.ahead[shardID]; r != nil {
		r.asked = s.Elapsed()
	}
}

// dropAhead forgets a readAhead.
func (s *Engine) dropAhead(shardID recovery.ShardID, r *readAhead) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Shards.ahead[shardID] == r {
		delete(s.Shards.ahead, shardID)
	}
}

// takeAheadLocked returns what was read of a shard that was transferred to this node, or nil.
func (s *Engine) takeAheadLocked(shardID recovery.ShardID) *readAhead {
	r := s.Shards.ahead[shardID]
	delete(s.Shards.ahead, shardID)
	if r == nil {
		return nil
	}
	select {
	case <-r.end:
	default:
		return nil // the owner has not waited for it
	}
	if r.err != nil {
		return nil
	}
	return r
}

// loadAhead brings what was read of the shard into memory. It reports false if the term has come to
// an end.
func (s *coming) loadAhead() (records int64, ok bool) {
	r := s.h.ahead
	s.InPieces(r.dead, func(piece []recovery.Entry) {
		for i := range piece {
			e := &piece[i]
			if s.h.stage != acquired {
				return
			}
			s.addDeadLocked(s.labelledLocked(e.Spot.Label), s.n, e.ID, e.Spot.At)
			if e.Data != nil {
				s.Dead.Remember(s.Store.Hash(e.ID), uint32(s.h.ShardID), e.ID, e.Data, s.Elapsed())
			}
		}
	})
	if !s.advance(acquired, loading) {
		return 0, false
	}
	for i, page := range r.pending {
		for j := range page {
			page[j].Shard = s.n
		}
		(*Memory)(s.Engine).LoadAhead(page)
		records += int64(len(page))
		r.pending[i] = nil
	}
	r.pending, r.dead = nil, nil
	return records, true
}

// callReadAhead has the next owner of the shard read it, and waits until it has. It calls as often
// as it takes, and gives up after handOverWithin. The position is taken before the look at what is
// being made good: a loss in between gives the shard another position.
func (s *leaving) callReadAhead(ctx context.Context) (err error) {
	if s.at, err = s.Fleet.Position(s.n); err != nil {
		return err
	}
	shardID := s.Fleet.ShardID(s.n)
	var backoff recovery.Backoff
	for attempt := 0; ; {
		s.mu.Lock()
		still := s.h.stage == draining && s.h.reconciles == 0
		s.mu.Unlock()
		if !still {
			return errShardChanged
		}
		call, cancel := s.Within(ctx)
		err := s.Cluster.CallReadAhead(call, s.to, shardID, s.at)
		cancel()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrHandingOver):
			attempt = 0
		case attempt >= transferAttempts || !errors.Is(err, task.ErrNodeAway):
			return fmt.Errorf("node %s cannot read the shard: %w", s.to, err)
		default:
			attempt++ // the call, or its answer, was lost
		}
		if err := backoff.Wait(ctx, attempt); err != nil {
			return err
		}
	}
}
