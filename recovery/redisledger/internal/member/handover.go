package member

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// errTransferred is the error of calls about a shard that this process has transferred.
var errTransferred = fmt.Errorf("%w: transferred", recovery.ErrLost)

// Transfer hands a shard to another node, see recovery.Fleet.
func (m *Member) Transfer(ctx context.Context, n int, to, position string) error {
	s, err := m.Held(n)
	if err != nil {
		return err
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	switch {
	case s.Loss() != nil:
		return s.Loss()
	case !s.Owned.Load():
		return fmt.Errorf("shard %d was retired", n)
	case s.open != 0:
		return fmt.Errorf("shard %d: the last batch was not answered and must be repeated first", n)
	case s.at.Load().String() != position: // another node has read what the ledger had of it before
		return fmt.Errorf("shard %d is at %s, not at %s", n, s.at.Load(), position)
	}
	next, repeated := s.transfer, s.transfer != (layout.Token{})
	if !repeated {
		if err := m.mayWrite(ctx, s); err != nil {
			return err
		}
		target, err := m.transferTarget(ctx, to)
		if err != nil {
			return fmt.Errorf("shard %d cannot be transferred to node %s: %w", n, to, err)
		}
		next = layout.NewToken(to, target, s.Token.Epoch+1)
	}
	owner, err := m.claim(ctx, s.Keys, s.Token.String(), next, 0, layout.SequenceField, strconv.FormatInt(s.Sequence, 10))
	if err != nil && s.transfer == (layout.Token{}) && m.Client.Unsent(err) {
		return fmt.Errorf("shard %d: %w", n, err)
	}
	s.transfer = next
	if err != nil {
		return fmt.Errorf("shard %d: %w: %w", n, recovery.ErrUnanswered, err)
	}
	if repeated && layout.ReadToken(owner).Epoch < next.Epoch {
		// Redis has lost what was not answered, and more. The other node may have the shard.
		if owner, err = m.claim(ctx, s.Keys, owner, next, forgotten); err != nil {
			return fmt.Errorf("shard %d: %w: %w", n, recovery.ErrUnanswered, err)
		}
	}
	if owner != next.String() {
		err := m.reclaimInTurn(ctx, s, owner, -1)
		s.transfer = layout.Token{}
		if err != nil {
			return err
		}
		return fmt.Errorf("shard %d: %w", n, errReclaimed)
	}
	m.peers.noteToken(m.ShardID(n), next) // first: a new record must have a shard at any time
	m.endInTurn(s, fmt.Errorf("shard %d: %w to node %s", n, errTransferred, to))
	return nil
}

// transferTarget returns the incarnation of a node that can take a shard over.
func (m *Member) transferTarget(ctx context.Context, to string) (string, error) {
	if to == m.Self.Node {
		return "", errors.New("target is this node")
	}
	raw, err := m.Client.HGet(ctx, m.Keys.Nodes(), to).Result()
	if errors.Is(err, redis.Nil) {
		return "", errors.New("target node is not registered")
	}
	if err != nil {
		return "", err
	}
	e, err := decodeEntry(to, raw)
	if err != nil {
		return "", err
	}
	m.peers.mu.Lock()
	defer m.peers.mu.Unlock()
	s := m.peers.nodes[to]
	switch {
	case e.Released:
		return "", errors.New("target node has ended")
	case e.Format < m.Format:
		return "", fmt.Errorf("target node reads records up to format %d, this node writes %d", e.Format, m.Format)
	case s != nil && s.entry.Incarnation == e.Incarnation && m.deadLocked(s):
		return "", errors.New("target node sends no heartbeat")
	}
	return e.Incarnation, nil
}

// KeysOfShard returns the keys of a shard of any node, and false if the node is not known.
func (m *Member) KeysOfShard(ctx context.Context, shardID recovery.ShardID) (layout.ShardKeys, bool, error) {
	node, err := m.nodeOf(ctx, shardID.Node())
	return m.Keys.Shard(node, shardID.Shard()), node != "", err
}

// AcceptShard takes a shard over, see recovery.Fleet.Accept.
func (m *Member) AcceptShard(ctx context.Context, shardID recovery.ShardID) (bool, error) {
	node, err := m.nodeOf(ctx, shardID.Node())
	if err != nil || node == "" {
		return false, err
	}
	return m.accept(ctx, &seenShard{node: node, index: shardID.Shard(), shardID: shardID})
}

// NoteAhead notes at which position a shard was read that is about to be transferred here.
func (m *Member) NoteAhead(shardID recovery.ShardID, position string) {
	owner, _, _ := strings.Cut(position, " ")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ahead[shardID] = layout.ReadToken(owner)
}

// isMine reports whether this process should hold a shard: its token names this process, or it
// is one of the node's own that another node has retired while it held it.
func (m *Member) isMine(h *seenShard) bool {
	return h.token.Holder() == m.Self ||
		h.token.Retired() && h.node == m.Self.Node && h.index < m.Shards
}

// accept takes over a shard that belongs to this process, and reports whether this process
// holds it now. It changes the token once more, because batches of an earlier term may still be
// in flight. It leaves in h the token that the shard had, or got from repeatTransfer.
func (m *Member) accept(ctx context.Context, h *seenShard) (bool, error) {
	if m.Holds(h.node, h.index) != nil {
		return true, nil
	}
	keys := m.Keys.Shard(h.node, h.index)
	head, err := m.Client.HMGet(ctx, keys.Tasks(), layout.OwnerField, layout.SequenceField, layout.AffirmField).Result()
	if err != nil {
		return false, err
	}
	h.raw, h.sequence = headOf(head)
	h.affirmed = textOf(head, 2)
	if h.token = layout.ReadToken(h.raw); h.token.Unreadable() {
		return false, err
	}
	if again, err := m.repeatTransfer(ctx, h); again || err != nil {
		return false, err
	}
	if !m.isMine(h) {
		return false, nil
	}
	if h.sequence == forgotten {
		h.first = forgotten
	}
	// Memory has read it ahead, see recovery.Ownership.ReadAhead, and has room for it.
	taken, err := m.take(ctx, &adoptable{seenShard: *h}, m.Self.Token(h.token.Epoch+1))
	return taken || err == nil && m.Holds(h.node, h.index) != nil, err
}

// forgotten is the number of the last batch of a shard whose hand-over was repeated. The number is
// below that of any batch. So the process that takes the shard, and has read it before the loss,
// finds at its next look that Redis has lost batches, and makes the shard equal to its memory.
const forgotten = -1

// repeatTransfer repeats a hand-over that Redis has lost, and reports whether there was one: this
// process has transferred the shard, and an older token is back, or none. The node that has the
// shard in memory finds an older token than its own, and claims the shard with all that it has
// done since. If no node has it in memory, because the receiver had not accepted it or has died,
// the shard is accepted or adopted as after any hand-over. If this process took it, both nodes
// would deliver, and one of them would lose what it has confirmed.
func (m *Member) repeatTransfer(ctx context.Context, h *seenShard) (bool, error) {
	m.mu.Lock()
	next, transferred := m.transferred[shardName{h.node, h.index}]
	m.mu.Unlock()
	if !transferred || h.token.Epoch >= next.Epoch {
		return false, nil
	}
	owner, err := m.claim(ctx, m.Keys.Shard(h.node, h.index), h.raw, next, forgotten)
	if err != nil || owner != next.String() {
		return true, err
	}
	m.Log.Error("Redis has lost a shard's hand-over; the shard was handed over again",
		"of", h.node, "shard", h.index, "found", h.raw, "token", owner)
	h.raw, h.token, h.affirmed = owner, next, ""
	m.peers.noteToken(h.shardID, next)
	return true, nil
}

// acceptOwn accepts those of the node's own shards that belong to this process, in case the
// message about them was lost.
func (m *Member) acceptOwn(ctx context.Context) error {
	if m.ended.Load() {
		return nil
	}
	number := m.Registration().Number
	var found ownerList
	for n := range m.Shards {
		if m.Holds(m.Self.Node, n) == nil {
			found.shards = append(found.shards, seenShard{node: m.Self.Node, index: n, shardID: recovery.NewShardID(number, n)})
		}
	}
	owners := make([]*redis.StringCmd, len(found.shards))
	if err := m.Client.Pipe(ctx, func(p redis.Pipeliner) {
		for i, h := range found.shards {
			keys := m.Keys.Shard(h.node, h.index)
			owners[i] = p.HGet(ctx, keys.Tasks(), layout.OwnerField)
		}
	}); err != nil {
		return err
	}
	for i := range found.shards {
		h := &found.shards[i]
		h.token = layout.ReadToken(owners[i].Val())
		m.peers.noteToken(h.shardID, h.token)
	}
	m.acceptFound(ctx, found)
	return nil
}

// acceptFound accepts shards that belong to this process, though it does not hold them: the
// message about them was lost, or the answer to a claim was.
func (m *Member) acceptFound(ctx context.Context, found ownerList) {
	for i := range found.shards {
		h := &found.shards[i]
		if !m.isMine(h) || m.Holds(h.node, h.index) != nil {
			continue
		}
		if _, err := m.accept(ctx, h); err != nil {
			return // the next read of the owners will find it again
		}
	}
}
