package member

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/mend"
)

// A Shard is this process's state of a shard that it holds, or has held: the state of one term.
type Shard struct {
	Number int    // of the term
	node   string // that the shard belongs to
	index  int    // its number there
	Keys   layout.ShardKeys

	from    layout.Token // of the process that it was adopted from
	written int64        // the number of that process's last batch until then
	giver   layout.Token // of the process that has handed it over, if that is known

	Owned   atomic.Bool           // false for a surplus shard that was retired
	untold  atomic.Int32          // times that it was reclaimed, of which memory is not told yet
	ended   atomic.Pointer[error] // why nothing is written any more
	Unread  atomic.Int64          // records that memory has yet to read
	Missing missing

	at       atomic.Pointer[Position] // token and sequence
	unbroken atomic.Int64             // Member.unbroken when the shard was last seen with our token

	// A batch, a claim, a hand-over and a retirement take turns: each holds turn across its round
	// trips. Functions whose names end with InTurn are called with turn held, and only they use
	// the fields below. Readers, which must not wait for Redis, use those above.
	turn     turn
	Token    layout.Token
	Sequence int64  // of the last confirmed batch
	open     uint64 // checksum of the batch whose outcome is open; 0 means none
	batch    batchArguments
	transfer layout.Token // of a Transfer that was executed or not answered; or none
}

// newShard returns the state of a shard before its claim.
func (m *Member) newShard(node string, index int) *Shard {
	return &Shard{node: node, index: index, Keys: m.Keys.Shard(node, index), turn: make(turn, 1)}
}

// A turn is a lock for which a caller waits no longer than it wants to.
type turn chan struct{}

func (t turn) Lock() { t <- struct{}{} }

func (t turn) Unlock() { <-t }

// TryLock locks if that does not have to wait.
func (t turn) TryLock() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// lockTurn takes the turn unless ctx ends first.
func (s *Shard) lockTurn(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Loss is why nothing is written to the shard any more.
func (s *Shard) Loss() error {
	if why := s.ended.Load(); why != nil {
		return *why
	}
	return nil
}

func (s *Shard) isHeld() bool { return s.Owned.Load() && s.Loss() == nil }

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

// Position is a shard's state as a reader needs it to notice a change.
type Position struct {
	Token    layout.Token
	Sequence int64
}

// String names the position for other nodes.
func (p Position) String() string { return p.Token.String() + " " + strconv.FormatInt(p.Sequence, 10) }

// Position fails when the shard is not written any more. It does not wait for a batch under way.
func (s *Shard) Position() (Position, error) {
	if err := s.Loss(); err != nil {
		return Position{}, err
	}
	return *s.at.Load(), nil
}

// Told returns the name of Position, unless the shard has lost writes of which memory is not told.
func (s *Shard) Told() (string, error) {
	at, err := s.Position()
	if err == nil && s.untold.Load() > 0 { // a loss that comes now gives the shard another position
		err = fmt.Errorf("shard %d has lost writes", s.Number)
	}
	return at.String(), err
}

// A Verified is what verify.lua has found of a shard.
type Verified struct {
	Owner        string
	Sequence     int64 // -1 if there is none
	Records, IDs int64 // pending records, and members of their index
}

// Position names the shard's position, as that of Position.String.
func (v Verified) Position() string { return v.Owner + " " + strconv.FormatInt(v.Sequence, 10) }

// Verify looks at a shard on a server that takes writes.
func Verify(ctx context.Context, p conn.Processor, keys layout.ShardKeys) (Verified, error) {
	values, err := conn.VerifyScript.Run(ctx, p, keys.Living()).Slice()
	if err != nil {
		return Verified{}, err
	}
	if len(values) != 4 {
		return Verified{}, fmt.Errorf("unexpected reply of a script: %v", values)
	}
	v := conn.Verdict{Values: values}
	return Verified{v.Text(0), v.Number(1), v.Number(2), v.Number(3)}, nil
}

// moveInTurn notes a claim or a confirmed batch.
func (s *Shard) moveInTurn(t layout.Token, sequence int64) {
	if t != s.Token {
		s.transfer = layout.Token{}
	}
	s.Token, s.Sequence = t, sequence
	s.at.Store(&Position{t, sequence})
}

// claimAll makes this process the owner of the shards of its node, and returns those that other
// nodes hold.
func (m *Member) claimAll(ctx context.Context) (away []recovery.ShardID, err error) {
	if _, err := m.Mender.Dataset(ctx); err != nil {
		return nil, err
	}
	unbroken := m.streak()
	mine := m.Registration()
	var all []mend.Key
	for n := range mine.shards() {
		keys := m.Keys.Shard(m.Self.Node, n)
		all = append(all, mend.ShardKeys(&keys)...)
	}
	if err := m.Mender.Mend(ctx, all); err != nil {
		return nil, err
	}
	shards := make([]*Shard, mine.shards())
	owners := make([]*redis.StringCmd, len(shards))
	if err := m.Client.Pipe(ctx, func(p redis.Pipeliner) {
		for n := range shards {
			shards[n] = m.newShard(m.Self.Node, n)
			shards[n].unbroken.Store(unbroken)
			owners[n] = p.HGet(ctx, shards[n].Keys.Tasks(), layout.OwnerField)
		}
	}); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(owners, func(o *redis.StringCmd) bool { return layout.ReadToken(o.Val()).Node == m.Self.Node }) {
		// A token that changes meanwhile is read again by its claim.
		if err := m.awaitClaims(ctx); err != nil {
			return nil, err
		}
	}
	var claimed []*Shard
	for n, s := range shards {
		held, err := m.claimOwn(ctx, s, owners[n].Val())
		m.peers.noteToken(recovery.NewShardID(mine.Number, n), s.Token)
		switch {
		case err != nil:
			return nil, err
		case held:
			s.moveInTurn(s.Token, 0)
			s.Owned.Store(true)
			claimed = append(claimed, s)
		case s.Token.Node != "" && !s.Token.Retired():
			away = append(away, recovery.NewShardID(mine.Number, n))
		}
	}
	m.changeTable(func(t *table) {
		t.terms = nil
		for _, s := range claimed {
			t.enter(s)
		}
	})
	// Until memory has read these shards, it has no room for shards of other nodes.
	sizes, err := m.sizes(ctx, len(claimed), func(i int) layout.ShardKeys { return claimed[i].Keys })
	if err != nil {
		return nil, err
	}
	for i, s := range claimed {
		s.Unread.Store(sizes[i])
	}
	return away, m.lookForDead(ctx)
}

// claimOwn claims one of the node's own shards, whose token was found to be raw, unless another
// node holds it, or the shard was retired and gets no new records. It notes the token.
func (m *Member) claimOwn(ctx context.Context, s *Shard, raw string) (bool, error) {
	for {
		found := layout.ReadToken(raw)
		s.Token = found
		if found.Unreadable() {
			m.noteUnreadable(s.node, s.index, found)
			return false, nil
		}
		switch {
		case found.Retired() && s.index >= m.Shards, !found.Retired() && found.Epoch != 0 && found.Node != m.Self.Node:
			return false, nil
		}
		next := m.Self.Token(found.Epoch + 1)
		var err error
		if raw, err = m.claim(ctx, s.Keys, raw, next, 0); err != nil {
			return false, err
		}
		if raw == next.String() {
			s.Token = next
			return true, nil
		}
	}
}

// claim sets a shard's token if it is still the expected one, and returns the token that the
// shard has. With further, a field and its value, it also fails if the shard has another value
// there; see claim.lua for a third one. The first batch after the claim has the number first+1.
func (m *Member) claim(ctx context.Context, keys layout.ShardKeys, expected string, next layout.Token, first int64, further ...any) (owner string, err error) {
	v, err := conn.Judge(conn.ClaimScript.Run(ctx, m.Client, keys.Living(), append([]any{expected, next.String(), first}, further...)...))
	if err != nil {
		return "", err
	}
	if v.Code == 1 {
		return next.String(), nil
	}
	return v.Text(0), nil
}

// reclaimInTurn is called when a shard was found with another token than ours, or with a lower
// sequence number than was confirmed. It returns nil when the shard is ours again, though its
// content may be older than what was confirmed, and recovery.ErrLost when another process owns
// it. After any other error it must be called again: the claim has the same token each time.
func (m *Member) reclaimInTurn(ctx context.Context, s *Shard, owner string, sequence int64) error {
	held := layout.ReadToken(owner)
	dataset, err := m.Mender.Dataset(ctx)
	if err != nil {
		return err
	}
	next := m.Self.Token(s.Token.Epoch + 1)
	var expected []any // of the shard besides its token
	switch {
	case held == next:
		// Our own claim, whose answer was lost.
	case (owner == "" || held.Unreadable()) && m.mayBeAdopted(s.unbroken.Load()) && !m.isUnclaimed(s, held):
		return fmt.Errorf("shard %d: its token is lost: %w", s.Number, errDoubted)
	case !held.Unreadable() && (held.Epoch > s.Token.Epoch || held.Epoch == s.Token.Epoch && held != s.Token):
		if !held.Retired() {
			s.transfer = held // if Redis forgets that, it is repeated
		}
		return m.revokeInTurn(s, "its owner is "+owner)
	case held == s.giver && held.Node != "":
		// An older state: that process has handed the shard over, and takes it no more.
	case held == s.from && held.Node != "" && held.Holder() != m.Self:
		// The adoption is not part of Redis' history. What that process has written since, this one
		// does not know: it was cut off, together with a former master of Redis.
		values, err := m.Client.HMGet(ctx, s.Keys.Tasks(), layout.OwnerField, layout.SequenceField).Result()
		if err != nil {
			return err
		}
		if _, now := headOf(values); now > s.written {
			return m.revokeInTurn(s, "it was adopted from "+owner+", which has written since")
		}
		expected = []any{layout.SequenceField, textOf(values, 1)}
	case held.Node != m.Self.Node && m.mayBeAdopted(s.unbroken.Load()) && m.lives(held):
		return m.revokeInTurn(s, "Redis has lost its data, and "+owner+" has taken it over since")
	}
	if held != next {
		now, err := m.claim(ctx, s.Keys, owner, next, 0, expected...)
		if err != nil {
			return err
		}
		if now != next.String() {
			return fmt.Errorf("shard %d changed hands during its claim, to %s", s.Number, now)
		}
	}
	m.Log.Error("Redis has lost writes that it had confirmed; the shard was claimed again",
		"shard", s.Number, "found", owner, "sequence", sequence, "confirmed", s.Sequence, "token", next.String(), "dataset", dataset)
	s.moveInTurn(next, 0)
	s.unbroken.Store(m.streak())
	m.buried.Store(true) // an older state may have dead records that were removed since
	n := s.Number
	s.untold.Add(1)
	m.Notices.Add(func(w recovery.Watcher) {
		defer s.untold.Add(-1)
		if w.Rewound != nil {
			w.Rewound(n)
		}
	})
	return nil
}

// lives reports whether the process that a token names is known to live.
func (m *Member) lives(t layout.Token) bool {
	m.peers.mu.Lock()
	defer m.peers.mu.Unlock()
	return m.livenessLocked(t) == living
}

// Check compares what a reader has found in a shard with what this process knows, and reclaims
// the shard if need be. The reader may be behind, so Check reads again before it acts. It
// reports false after an error, and while a batch is under way, which checks for itself.
func (m *Member) Check(ctx context.Context, s *Shard, before Position, owner string, sequence int64) (bool, error) {
	if owner == before.Token.String() && sequence >= before.Sequence {
		return true, nil
	}
	if !s.turn.TryLock() {
		return false, nil
	}
	defer s.turn.Unlock()
	if err := s.Loss(); err != nil {
		return false, err
	}
	values, err := m.Client.HMGet(ctx, s.Keys.Tasks(), layout.OwnerField, layout.SequenceField).Result()
	if err != nil {
		return false, err
	}
	owner, sequence = headOf(values)
	if owner == s.Token.String() && sequence >= s.Sequence {
		return true, nil
	}
	if layout.ReadToken(owner).Epoch < s.transfer.Epoch {
		return false, nil // Transfer is repeated
	}
	err = m.reclaimInTurn(ctx, s, owner, sequence)
	return err == nil, err
}

// Unchanged returns an error if one of some shards has another position now than before, or has
// lost batches of which memory does not know yet: a reader of it may have missed what memory has.
// It reclaims such a shard. A shard that is another node's is left out: memory is told.
func (m *Member) Unchanged(ctx context.Context, shards []*Shard, before []Position) error {
	replies := make([]*redis.SliceCmd, len(shards))
	if err := m.Client.Pipe(ctx, func(p redis.Pipeliner) {
		for i, s := range shards {
			replies[i] = p.HMGet(ctx, s.Keys.Tasks(), layout.OwnerField, layout.SequenceField)
		}
	}); err != nil {
		return err
	}
	for i, s := range shards {
		owner, sequence := headOf(replies[i].Val())
		if s.Loss() != nil || s.untold.Load() == 0 && owner == before[i].Token.String() && sequence >= before[i].Sequence {
			continue
		}
		_, err := m.Check(ctx, s, before[i], owner, sequence)
		return errors.Join(fmt.Errorf("shard %d has lost something while it was read", s.Number), err)
	}
	return nil
}

// headOf reads the reply to HMGET of owner and sequence.
func headOf(values []any) (owner string, sequence int64) {
	sequence, err := strconv.ParseInt(textOf(values, 1), 10, 64)
	if err != nil {
		sequence = -1
	}
	return textOf(values, 0), sequence
}

// lookForDead checks whether there are dead records at all. Until there are, a look-up of one,
// as every creation with an id of the caller's makes it, costs nothing.
func (m *Member) lookForDead(ctx context.Context) error {
	shards := m.table.Load().all()
	replies := make([]*redis.IntCmd, len(shards))
	err := m.Client.Pipe(ctx, func(p redis.Pipeliner) {
		for n, s := range shards {
			replies[n] = p.Exists(ctx, s.Keys.Dead())
		}
	})
	for _, r := range replies {
		if r.Val() > 0 {
			m.buried.Store(true)
		}
	}
	return err
}

// unreadableShard is the name of readiness' entry for a shard whose token cannot be read.
func unreadableShard(node string, index int) string {
	return fmt.Sprintf("the owner of shard %d of node %s", index, node)
}

// noteUnreadable enters such a shard in the log and in readiness.
func (m *Member) noteUnreadable(node string, index int, t layout.Token) {
	m.Waits.Set(unreadableShard(node, index), fmt.Sprintf("its token %.100q cannot be read: the shard is taken over when no node has claimed it for %v", t.Incarnation, m.FailoverAfter))
	m.Log.Error("the token of a shard's owner cannot be read; the shard is taken over when no node has claimed it for a while",
		"of", node, "shard", index, "token", fmt.Sprintf("%.100q", t.Incarnation), "for", m.FailoverAfter)
}
