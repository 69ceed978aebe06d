package query

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// An Act does one thing with each of some tasks.
type Act struct {
	Action task.Action
	Due    int64 // the new deadline, where the action gives one
	Shift  int64 // of a move, in place of Due: milliseconds that are added to the deadline
	// Select is what the tasks must be when their turn comes; nil: anything. Of dead tasks only its
	// Filter and its Patterns count.
	Select *List
	// Stamp is that of the act; see package record. 0: each call of the act changes the task.
	Stamp uint64
	Dry   bool // nothing is changed
}

var (
	// ErrNotSelected is returned for a task that an act is not for, or not any more.
	ErrNotSelected = errors.New("not selected")
	// ErrActedSince is returned for a task that an act has changed that began later, or at a node
	// whose clock is ahead.
	ErrActedSince = task.KindOf(task.ErrRevision, "an action that began later, or at a node whose clock is ahead, has changed the task")
	// ErrActed is returned for a task that an earlier call of the act has changed.
	ErrActed = errors.New("an earlier call of this action has changed the task")
)

// Check returns nil if an act is to change a task whose record has this stamp. Otherwise it
// returns ErrActed or ErrActedSince, which says by how much the other act's clock is ahead of this
// node's, if that is why.
func (q *Act) Check(stamp uint64, now time.Time) error {
	switch {
	case q.Stamp == 0 || stamp < q.Stamp:
		return nil
	case stamp == q.Stamp:
		return ErrActed
	}
	if ahead := record.StampedAt(stamp).Sub(now); ahead >= task.FarClock {
		return task.KindOf(ErrActedSince, fmt.Sprintf("an action that began at a node whose clock is at least %v ahead has changed the task: "+
			"correct that clock, or begin this action again after as long", ahead.Round(time.Millisecond)))
	}
	return ErrActedSince
}

// An ActCursor is how far an act has come. A caller gets it as a text, of these bytes, integers
// big-endian:
//
//	0   1  version, 1
//	1   8  stamp
//	9   8  digest
//	17  8  time of the position
//	25     its id
type ActCursor struct {
	Stamp  uint64       // see Act
	Digest uint64       // of the act: its cursors are no use for another one
	After  recovery.Ref // the position behind which the next call begins
}

const (
	actCursorVersion = 1
	actCursorFixed   = 25
)

// Encode returns the text.
func (c ActCursor) Encode() string {
	b := binary.BigEndian.AppendUint64([]byte{actCursorVersion}, c.Stamp)
	b = binary.BigEndian.AppendUint64(b, c.Digest)
	b = binary.BigEndian.AppendUint64(b, uint64(c.After.Next))
	return base64.RawURLEncoding.EncodeToString(append(b, c.After.ID...))
}

// DecodeActCursor is the reverse of Encode. It reports false for any other text.
func DecodeActCursor(text string) (c ActCursor, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < actCursorFixed || b[0] != actCursorVersion || strings.ContainsAny(text, "\r\n") {
		return c, false
	}
	c.Stamp, c.Digest = binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:])
	c.After = recovery.Ref{ID: string(b[actCursorFixed:]), Next: int64(binary.BigEndian.Uint64(b[17:]))}
	return c, c.After.ID == "" || task.ValidName(c.After.ID)
}

// DigestAct tells an act from others.
func DigestAct(a *task.Act) uint64 {
	h := fnv.New64a()
	q := a.Query
	q.Limit, q.Cursor = 0, ""
	millis := [4]int64{record.Millis(q.DueFrom), record.Millis(q.DueTo), record.Millis(q.DiedFrom), record.Millis(q.DiedTo)}
	fmt.Fprintf(h, "%q %d %d %t %q %q %q %d %q %q %q %d", a.Action, record.Millis(a.Due), a.Shift, a.Dry, a.IDs,
		q.Topic, q.Group, q.State, q.IDPrefix, q.Error, q.Reason, millis)
	if q.ErrorLike != "" {
		fmt.Fprintf(h, " %q", q.ErrorLike)
	}
	return h.Sum64()
}
