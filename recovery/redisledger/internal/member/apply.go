package member

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/mend"
)

// A batch's bounds. Lua puts a block of a batch's arguments on a stack of 8000;
// and while a script runs, all other clients wait.
const (
	MaxChanges = 3000
	MaxBytes   = 1 << 20
)

// Apply writes a batch to a shard, see recovery.Ledger.
func (m *Member) Apply(ctx context.Context, n int, b *recovery.Batch) error {
	s, err := m.Held(n)
	if err != nil {
		return err
	}
	select {
	case m.Writing <- struct{}{}:
		defer func() { <-m.Writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.lockTurn(ctx); err != nil {
		return err
	}
	defer s.turn.Unlock()
	switch {
	case s.Loss() != nil:
		return s.Loss()
	case !s.Owned.Load():
		return fmt.Errorf("shard %d was retired", n)
	case b.Len() == 0:
		return nil
	case s.open != 0 && s.open != checksum(b):
		// The batch before may have taken its number, and then Redis would call this one
		// written.
		return fmt.Errorf("shard %d: the batch before was not answered and must be repeated first", n)
	}
	if err := m.mayWrite(ctx, s); err != nil {
		return err
	}
	// The second round writes into a shard that was reclaimed; the third is for a Redis that
	// loses writes again meanwhile.
	for range 3 {
		if err = m.applyInTurn(ctx, s, b); !errors.Is(err, errReclaimed) {
			break
		}
	}
	if err == nil || errors.Is(err, recovery.ErrFull) || errors.Is(err, recovery.ErrLost) {
		s.open = 0
	} else if s.open == 0 {
		s.open = checksum(b)
	}
	return err
}

// errReclaimed is returned by applyInTurn when the batch must be sent again.
var errReclaimed = errors.New("the shard was claimed again")

// applyInTurn sends a batch once. It returns errReclaimed when the shard had to be claimed again.
func (m *Member) applyInTurn(ctx context.Context, s *Shard, b *recovery.Batch) error {
	v, err := m.Replication.Send(ctx, s.Keys.Tasks(), conn.ApplyScript, s.Arguments(b))
	if conn.WrongType(err) { // nothing was written; the batch is repeated
		err = errors.Join(err, m.Mender.Mend(ctx, mend.ShardKeys(&s.Keys)[1:]))
	}
	if err != nil {
		return fmt.Errorf("shard %d: %w", s.Number, err)
	}
	if v.Code != 0 {
		s.moveInTurn(s.Token, s.Sequence+1)
		if s.batch.dead > 0 {
			m.buried.Store(true)
		}
		if v.Number(1) == 1 {
			m.Log.Error("a shard has got tasks from a spool before; they were not written again",
				"shard", s.Number, "tasks", b.Len(), "mark", b.Mark().Number)
		}
		if v.Number(0) == 1 {
			full := fmt.Errorf("%w: Redis is out of memory and has refused new tasks", recovery.ErrFull)
			m.Full(full)
			return full
		}
		return nil
	}
	owner, sequence := v.Text(0), v.Number(1)
	if owner == s.Token.String() && sequence > s.Sequence {
		return m.revokeInTurn(s, fmt.Sprintf("it has batch %d, written by an unknown process", sequence))
	}
	if err := m.reclaimInTurn(ctx, s, owner, sequence); err != nil {
		return err
	}
	return errReclaimed
}

// batchArguments are the arguments of apply.lua. They are reused for the next batch: once they
// have grown, a change allocates nothing.
type batchArguments struct {
	buf     []byte   // all texts, one after another
	ends    []int    // where each ends
	text    string   // buf
	texts   []string // its parts
	command []any
	dead    int // values of those that are put among the dead
}

// end completes a text that add has begun or continued.
func (a *batchArguments) end() { a.ends = append(a.ends, len(a.buf)) }

func (a *batchArguments) add(text []byte) {
	a.buf = append(a.buf, text...)
	a.end()
}

// Arguments builds the command for a batch, see apply.lua.
func (s *Shard) Arguments(b *recovery.Batch) []any {
	a := &s.batch
	a.buf, a.ends = a.buf[:0], a.ends[:0]
	sizes := a.fill(s.Sequence+1, b)
	a.dead = sizes[died] + sizes[createdDead]

	// One string for all of them: a slice of bytes would be boxed for each.
	a.text = string(a.buf)
	a.texts = a.texts[:0]
	start := 0
	for _, end := range a.ends {
		a.texts = append(a.texts, a.text[start:end])
		start = end
	}

	keys := s.Keys[:2]
	if sizes[leaveDead]+sizes[leaveIndex]+a.dead > 0 {
		keys = s.Keys[:]
	}
	a.command = conn.ApplyScript.Head(a.command, keys)
	a.command = append(a.command, s.Token.String(), s.Sequence+1, sizesOf(&sizes))
	for i := range a.texts {
		a.command = append(a.command, &a.texts[i])
	}
	return a.command
}

// sizesOf names the blocks that are not empty, counted from 1, and their sizes.
func sizesOf(sizes *[blocks]int) string {
	text := make([]byte, 0, 32)
	for block, size := range sizes {
		if size > 0 {
			text = strconv.AppendInt(text, int64(block+1), 10)
			text = append(text, ' ')
			text = strconv.AppendInt(text, int64(size), 10)
			text = append(text, ' ')
		}
	}
	return string(text)
}

// A block is a part of the arguments, less one than in apply.lua.
const (
	created = iota
	leavePending
	pending
	leaveDead
	leaveIndex
	died
	diedMembers
	spoolMark
	createdDead
	createdDeadMembers
	blocks
)

// blocksOf returns the blocks in which a change has a part, a bit for each.
func blocksOf(c *recovery.Change) (set uint) {
	from, to := c.From.Place, c.To.Place
	switch {
	case to == recovery.Pending && c.Creation():
		set = 1 << created
	case to == recovery.Pending:
		set = 1 << pending
	case to == recovery.Dead && c.Creation():
		set = 1<<createdDead | 1<<createdDeadMembers
	case to == recovery.Dead:
		set = 1<<died | 1<<diedMembers
	}
	switch {
	case from == recovery.Pending && to != recovery.Pending:
		set |= 1 << leavePending
	case from == recovery.Dead && to != recovery.Dead:
		set |= 1<<leaveDead | 1<<leaveIndex
	case from == recovery.Dead && c.From != c.To:
		set |= 1 << leaveIndex
	}
	return set
}

// addPart appends the part that a change has in a block.
func (a *batchArguments) addPart(block int, c *recovery.Change) {
	switch block {
	case created, pending:
		a.add(c.ID)
		a.buf = layout.AppendPending(a.buf, c.To.At, c.Data)
		a.end()
	case leavePending, leaveDead:
		a.add(c.ID)
	case leaveIndex:
		a.buf = layout.AppendDeadRef(a.buf, c.From.Label, c.From.At, c.ID)
		a.end()
	case died, createdDead:
		a.add(c.ID)
		a.buf = layout.AppendDead(a.buf, c.To.At, c.To.Label, c.Data)
		a.end()
	case diedMembers, createdDeadMembers:
		a.add([]byte("0"))
		a.buf = layout.AppendDeadRef(a.buf, c.To.Label, c.To.At, c.ID)
		a.end()
	}
}

// fill fills in the blocks, and returns their sizes.
func (a *batchArguments) fill(sequence int64, b *recovery.Batch) (sizes [blocks]int) {
	set, mark := uint(0), b.Mark()
	for i := range b.Len() {
		c := b.At(i)
		set |= blocksOf(&c)
	}
	for block := range sizes {
		before := len(a.ends)
		if set&(1<<block) != 0 {
			for i := range b.Len() {
				if c := b.At(i); blocksOf(&c)&(1<<block) != 0 {
					a.addPart(block, &c)
				}
			}
		}
		switch {
		case block == created:
			a.add([]byte(layout.SequenceField))
			a.buf = strconv.AppendInt(a.buf, sequence, 10)
			a.end()
		case block == spoolMark && mark.Number > 0:
			a.add([]byte(layout.MarkPrefix + mark.Spool))
			a.buf = strconv.AppendInt(a.buf, mark.Number, 10)
			a.end()
		}
		sizes[block] = len(a.ends) - before
	}
	return sizes
}
