package redisledger

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
)

// A shard is what this process knows of one of its shards.
type shard struct {
	number int
	keys   shardKeys

	owned atomic.Bool // false for a surplus shard that was retired

	mu       sync.Mutex // held while a batch or a claim is under way; guards everything below
	token    token
	sequence int64  // of the last confirmed batch
	unbroken int    // Ledger.unbroken when the shard was last seen with our token
	lost     error  // why nothing is written any more
	open     uint64 // checksum of the batch whose outcome is open; 0 means none
	batch    batchArguments
}

var checksumSeed = maphash.MakeSeed()

// checksum tells one batch from another; it is never 0.
func checksum(b *recovery.Batch) uint64 {
	var h maphash.Hash
	h.SetSeed(checksumSeed)
	for i := range b.Len() {
		c := b.At(i)
		_, _ = h.Write(c.ID)
		_, _ = h.Write(c.Data)
		for _, spot := range []recovery.Spot{c.From, c.To} {
			maphash.WriteComparable(&h, spot)
		}
	}
	return h.Sum64() | 1
}

// position is a shard's state as a reader needs it to notice a change.
type position struct {
	token    token
	sequence int64
}

// position returns false when the shard is not written any more.
func (s *shard) position() (position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return position{}, s.lost
	}
	return position{s.token, s.sequence}, nil
}

// claimAll makes this process the owner of all shards of its node.
func (l *Ledger) claimAll(ctx context.Context) error {
	if _, err := l.dataset(ctx); err != nil {
		return err
	}
	unbroken := l.streak()
	shards := make([]*shard, l.entry.shards())
	owners := make([]*redis.StringCmd, len(shards))
	if err := l.pipeline(ctx, func(p redis.Pipeliner) {
		for n := range shards {
			shards[n] = &shard{number: n, keys: l.keys.shard(l.opts.Node, n), unbroken: unbroken}
			owners[n] = p.HGet(ctx, shards[n].keys.tasks(), ownerField)
		}
	}); err != nil {
		return err
	}
	for n, s := range shards {
		held, err := parseToken(owners[n].Val())
		if err != nil {
			return fmt.Errorf("%w: shard %d: %w", recovery.ErrLayout, n, err)
		}
		surplus := n >= l.opts.Shards
		switch {
		case surplus && (held.retired() || held.epoch == 0):
			continue // nothing was ever recorded in it, or nothing is left
		case !held.retired() && held.epoch > 0 && held.node != l.opts.Node:
			return fmt.Errorf("%w: node %s has adopted shard %d of this one", recovery.ErrHeld, held.node, n)
		}
		// The claim of an Adopt that failed half-way counts.
		if held.node != l.opts.Node || held.incarnation != l.incarnation {
			next := token{l.opts.Node, l.incarnation, held.epoch + 1}
			owner, err := l.claim(ctx, s, owners[n].Val(), next)
			if err != nil {
				return err
			}
			if owner != next.String() {
				return fmt.Errorf("%w: shard %d was taken over by %s", recovery.ErrHeld, n, owner)
			}
			held = next
		}
		s.token = held
		s.owned.Store(true)
	}
	l.shards = shards
	return l.lookForDead(ctx)
}

// claim sets a shard's token if it is still what is expected, and returns the
// token that the shard has.
func (l *Ledger) claim(ctx context.Context, s *shard, expected string, next token) (owner string, err error) {
	v, err := judge(claimScript.run(ctx, l.client, s.keys.living(), expected, next.String()))
	if err != nil {
		return "", err
	}
	if v.code == 1 {
		return next.String(), nil
	}
	return v.text(0), nil
}

// regainLocked is called when a shard was found with another token than ours, or
// with a lower sequence number than was confirmed. It returns nil when the shard
// is ours again, though its content may be older than what was confirmed, and
// recovery.ErrLost when it is another's. After any other error it must be called
// again: the claim has the same token each time.
func (l *Ledger) regainLocked(ctx context.Context, s *shard, owner string, sequence int64) error {
	held, err := parseToken(owner)
	if err != nil {
		return err
	}
	dataset, err := l.dataset(ctx)
	if err != nil {
		return err
	}
	next := token{l.opts.Node, l.incarnation, s.token.epoch + 1}
	switch {
	case held == next:
		// Our own claim, whose answer was lost.
	case owner == "" && l.overslept(s.unbroken):
		return s.loseLocked("Redis has lost its data, and others may have taken over before")
	case held.epoch > s.token.epoch, held.epoch == s.token.epoch && held != s.token:
		return s.loseLocked("its owner is " + owner)
	default:
		now, err := l.claim(ctx, s, owner, next)
		if err != nil {
			return err
		}
		if now != next.String() {
			return fmt.Errorf("shard %d changed hands during its claim, to %s", s.number, now)
		}
	}
	l.log.Error("Redis has lost writes that it had confirmed; the shard was claimed again",
		"shard", s.number, "found", owner, "sequence", sequence, "confirmed", s.sequence, "token", next.String(), "dataset", dataset)
	s.token, s.sequence, s.unbroken = next, 0, l.streak()
	l.buried.Store(true) // an older state may have dead records that are gone in ours
	l.tell(s.number, nil)
	return nil
}

func (s *shard) loseLocked(why string) error {
	s.lost = fmt.Errorf("%w: shard %d: %s", recovery.ErrLost, s.number, why)
	return s.lost
}

// check compares what a reader has found in a shard with what this process
// knows, and regains the shard if need be. The reader may be behind: what it saw
// is only a reason to look again, and a batch under way looks for itself.
func (l *Ledger) check(ctx context.Context, s *shard, before position, owner string, sequence int64) error {
	if owner == before.token.String() && sequence >= before.sequence {
		return nil
	}
	if !s.mu.TryLock() {
		return nil
	}
	defer s.mu.Unlock()
	if s.lost != nil {
		return s.lost
	}
	values, err := l.client.HMGet(ctx, s.keys.tasks(), ownerField, sequenceField).Result()
	if err != nil {
		return err
	}
	owner, sequence = headOf(values)
	if owner == s.token.String() && sequence >= s.sequence {
		return nil
	}
	if err = l.regainLocked(ctx, s, owner, sequence); errors.Is(err, recovery.ErrLost) {
		l.tell(s.number, err)
	}
	return err
}

// headOf reads the reply to HMGET of owner and sequence.
func headOf(values []any) (owner string, sequence int64) {
	sequence = -1
	if len(values) == 2 {
		owner, _ = values[0].(string)
		if s, ok := values[1].(string); ok {
			if n, err := strconv.ParseInt(s, 10, 64); err == nil {
				sequence = n
			}
		}
	}
	return owner, sequence
}
