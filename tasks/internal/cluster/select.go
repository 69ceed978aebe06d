package cluster

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// SelectMethod selects tasks at all nodes.
var SelectMethod = Method[engine.ListQuery, selectReply]{Name: "select", here: (*Cluster).selectLocal, deadAlone: listsBuried}

// A selectReply has the positions of tasks, without their content.
type selectReply struct {
	Coverage
	Node string // that has them
	Refs []recovery.Ref
	Last *recovery.Ref `json:",omitempty"` // as of a listReply
}

// A Target is a task that was selected, and the node that had it then; empty: it is not known.
type Target struct{ ID, Node string }

// Select returns the first tasks behind q.After that a query selects at all nodes, up to q.Limit of
// them, which may be as many as engine.LooksAtOnce. It also returns the position behind which there
// may be more, nil if there are none. Errors: those of ListAll, and ErrReplaying.
func (s *Cluster) Select(ctx context.Context, q engine.ListQuery) (some []Target, end *recovery.Ref, err error) {
	var all []engine.Listed
	if s.HasAll() {
		end, err = s.engine.VisitPositions(ctx, &q, func(at recovery.Ref, _ int) {
			all = append(all, engine.Listed{Task: task.Task{ID: at.ID}, At: at.Next})
		})
	} else {
		err = everywhere(ctx, s, SelectMethod, q, func(a *selectReply, _ func(recovery.ShardID) bool) {
			for _, at := range a.Refs {
				all = append(all, engine.Listed{Task: task.Task{ID: at.ID, Node: a.Node}, At: at.Next})
			}
			if last := a.Last; last != nil && (end == nil || engine.CompareRefs(*last, *end) < 0) {
				end = last
			}
		})
		all = merged(all, end)
	}
	if err != nil {
		return nil, nil, err
	}
	if len(all) > q.Limit {
		last := all[q.Limit-1].Ref()
		all, end = all[:q.Limit], &last
	}
	some = make([]Target, len(all))
	for i := range all {
		some[i] = Target{all[i].Task.ID, all[i].Task.Node}
	}
	return some, end, nil
}

// selectLocal selects tasks of this node.
func (s *Cluster) selectLocal(ctx context.Context, q engine.ListQuery) (a selectReply, err error) {
	if q.Limit < 1 || q.Limit > engine.LooksAtOnce || engine.ListsBuried(q.State) && !task.ValidName(q.Topic) {
		return a, task.Invalid("limit", fmt.Sprintf("must be from 1 to %d", engine.LooksAtOnce))
	}
	a.Node = s.NodeName()
	var shards []int
	st, err := s.Covers(ctx, &a.Coverage, func(ctx context.Context) (err error) {
		a.Last, err = s.engine.VisitPositions(ctx, &q, func(at recovery.Ref, shard int) {
			a.Refs, shards = append(a.Refs, at), append(shards, shard)
		})
		return err
	})
	a.Refs = inSnapshot(a.Refs, shards, st)
	return a, err
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
	Stamp  uint64       // see engine.ActQuery
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
	millis := [4]int64{engine.Millis(q.DueFrom), engine.Millis(q.DueTo), engine.Millis(q.DiedFrom), engine.Millis(q.DiedTo)}
	fmt.Fprintf(h, "%q %d %d %t %q %q %q %d %q %q %q %d", a.Action, engine.Millis(a.Due), a.Shift, a.Dry, a.IDs,
		q.Topic, q.Group, q.State, q.IDPrefix, q.Error, q.Reason, millis)
	if q.ErrorLike != "" {
		fmt.Fprintf(h, " %q", q.ErrorLike)
	}
	return h.Sum64()
}
