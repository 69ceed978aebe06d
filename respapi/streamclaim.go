package respapi

import (
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// claimedAtOnce is how many entries are read before their bytes are counted.
const claimedAtOnce = 64

// A claim says how a consumer takes over entries that are out, its own included.
type claim struct {
	consumer   string
	since      time.Time     // when the consumer got them
	least      time.Duration // how long they have been idle at least
	deliveries int64         // of them from now on; negative: one more
	justID     bool
	own        bool // only those that the consumer has
}

// claimHere takes over those of the entries that this node has handed out: their leases begin anew.
// It returns the tasks of those that were taken, those that were over already, and those of which
// this node knows nothing. Errors: as of settle.
func (s *Server) claimHere(ctx context.Context, topic string, c claim, ids []entryID) (taken map[entryID]string, over, unknown []entryID, err error) {
	taken = make(map[entryID]string, len(ids))
	t := s.streams.of(topic)
	if t == nil {
		return taken, nil, ids, nil
	}
	var list []*outEntry
	now := time.Now()
	t.lock(now)
	for _, id := range ids {
		switch e := t.entries[id]; {
		case e == nil:
			unknown = append(unknown, id)
		case e.claimed || now.Sub(e.since) < c.least || c.own && e.consumer.name != c.consumer:
		default:
			e.claimed = true
			list = append(list, e)
		}
	}
	part := settlings(list)
	t.mu.Unlock()
	_, err = s.settle(ctx, t, tasks.Verdict{Verb: tasks.Extend}, part, func(e *outEntry, s *tasks.Settled) {
		if t.extendLocked(e, c, s.LeaseUntil) {
			taken[e.id] = e.task
		}
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range list {
		if e.claimed = false; e.index < 0 {
			over = append(over, e.id)
		}
	}
	return taken, over, unknown, err
}

// claimIDs is claimHere at all nodes. An entry whose node does not answer is not among those that
// were taken.
func (s *Server) claimIDs(ctx context.Context, topic string, c claim, ids []entryID) (taken map[entryID]string, over []entryID, err error) {
	taken, over, unknown, err := s.claimHere(ctx, topic, c, ids)
	unknown = append(unknown, over...) // which may have been handed out again, by another node
	if err != nil || len(unknown) == 0 {
		return taken, over, err
	}
	body := appendText(appendText(nil, topic), c.consumer)
	flags := uint64(0)
	if c.justID {
		flags |= 1
	}
	if c.own {
		flags |= 2
	}
	for _, n := range []uint64{uint64(max(0, time.Since(c.since))), uint64(c.least), uint64(c.deliveries + 1), flags} {
		body = binary.AppendUvarint(body, n)
	}
	for _, id := range unknown {
		body = id.appendTo(body)
	}
	s.askPeers(ctx, subjectClaim, body, func(f *frameReader) {
		for n := f.number(); n > 0 && !f.bad; n-- {
			if id, task := f.id(), f.text(); !f.bad {
				taken[id] = task
			}
		}
		for len(f.b) > 0 {
			if id := f.id(); !f.bad {
				over = append(over, id)
			}
		}
	})
	over = slices.DeleteFunc(over, func(id entryID) bool { _, ok := taken[id]; return ok })
	slices.SortFunc(over, entryID.compare)
	return taken, slices.Compact(over), nil
}

// onClaim claims entries for another node.
func (s *Server) onClaim(ctx context.Context, _ string, body []byte) ([]byte, error) {
	f := frameReader{b: body}
	topic, c := f.text(), claim{consumer: f.text()}
	c.since = time.Now().Add(-time.Duration(f.number()))
	c.least, c.deliveries = time.Duration(f.number()), int64(f.number())-1
	flags := f.number()
	c.justID, c.own = flags&1 != 0, flags&2 != 0
	var ids []entryID
	for len(f.b) > 0 {
		ids = append(ids, f.id())
	}
	if f.bad || len(ids) > tasks.MaxReserve || len(c.consumer) > mostName {
		return nil, errBadFrame
	}
	taken, over, _, err := s.claimHere(ctx, topic, c, ids)
	if err != nil && len(taken) == 0 {
		return nil, err
	}
	b := binary.AppendUvarint(nil, uint64(len(taken)))
	for id, task := range taken {
		b = appendText(id.appendTo(b), task)
	}
	for _, id := range over {
		b = id.appendTo(b)
	}
	return b, nil
}

// claim takes entries over, at all nodes. It returns the ids of those that were taken, with their
// tasks unless the claim is for ids only, those that were over already, and how many it has looked
// at: fewer than all if they are large. Errors: as of settle; those of Scheduler.Get.
func (x *call) claim(topic string, c claim, ids []entryID) (b batch, over []entryID, looked int, err error) {
	bytes, most := 0, claimedAtOnce
	if c.justID {
		most = tasks.MaxReserve
	}
	for part := range slices.Chunk(ids, most) {
		if bytes >= mostEntryBytes {
			break
		}
		looked += len(part)
		taken, gone, err := x.c.server.claimIDs(x.ctx, topic, c, part)
		if err != nil {
			return b, over, looked, err
		}
		over = append(over, gone...)
		for _, id := range part {
			name, ok := taken[id]
			if !ok {
				continue
			}
			if c.least > 0 { // an id that comes twice is no longer idle
				delete(taken, id)
			}
			if b.ids = append(b.ids, id); c.justID {
				continue
			}
			found, err := x.scheduler().Get(x.ctx, name)
			switch {
			case errors.Is(err, tasks.ErrNotFound):
				b.tasks = append(b.tasks, nil)
			case err != nil:
				return b, over, looked, err
			default:
				b.tasks = append(b.tasks, &found)
				bytes += len(found.Payload)
			}
		}
	}
	return b, over, looked, nil
}

// extendLocked gives an entry to the consumer of a claim. It reports false if there are too many
// consumers.
func (t *stream) extendLocked(e *outEntry, c claim, until time.Time) bool {
	now := time.Now()
	e.until = until
	heap.Fix(&t.ends, e.index)
	to, _ := t.consumerLocked(c.consumer, now)
	if to == nil {
		return false
	}
	to.seen = now
	e.consumer.out--
	to.out++
	e.consumer, e.since = to, c.since
	switch {
	case c.deliveries >= 0:
		e.deliveries = c.deliveries
	case !c.justID:
		e.deliveries++
	}
	return true
}

// history returns the entries of a consumer after an id. It has them again, from now on.
func (x *call) history(topic, name string, after entryID, count int) (batch, error) {
	from, ok := after.next()
	if !ok {
		return batch{}, nil
	}
	mine, _ := x.c.server.pending(x.ctx, topic, pendingRange{from: from, to: lastEntryID, count: int64(count), consumer: []byte(name)})
	ids := make([]entryID, len(mine))
	for i, e := range mine {
		ids[i] = e.id
	}
	b, _, _, err := x.claim(topic, claim{consumer: name, since: time.Now(), deliveries: -1, own: true}, ids)
	return b, err
}

// runClaim answers XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME ms]
// [RETRYCOUNT n] [FORCE] [JUSTID] [LASTID id].
func runClaim(x *call) {
	k, ok := x.withGroup()
	if !ok {
		return
	}
	least, ok := x.number(x.args[4], "ERR Invalid min-idle-time argument for XCLAIM")
	if !ok {
		return
	}
	now := time.Now()
	c := claim{consumer: string(x.args[3]), since: now, least: milliseconds(least), deliveries: -1}
	rest := x.args[5:]
	var ids []entryID
	for len(rest) > 0 {
		id, ok := parseEntryID(rest[0], 0)
		if !ok {
			break
		}
		ids, rest = append(ids, id), rest[1:]
	}
	if !x.claimOptions(rest, &c, now) {
		return
	}
	if _, _, ok = x.consumer(&k, x.args[3]); !ok {
		return
	}
	b, _, _, err := x.claim(k.topic, c, ids)
	if err != nil {
		x.fail(err)
		return
	}
	x.answerClaimed(&b, c.justID)
}

// milliseconds returns a time of that many milliseconds, 0 if it is negative.
func milliseconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(longestBlock/time.Millisecond))) * time.Millisecond
}

// claimOptions reads the options of XCLAIM. It answers and reports false if they are wrong.
func (x *call) claimOptions(rest [][]byte, c *claim, now time.Time) bool {
	for i := 0; i < len(rest); i++ {
		more := len(rest) - i - 1
		option := rest[i]
		switch {
		case is(option, "force"): // nothing is out that this node could make up
		case is(option, "justid"):
			c.justID = true
		case is(option, "idle") && more > 0, is(option, "time") && more > 0, is(option, "retrycount") && more > 0:
			i++
			name := map[byte]string{'i': "IDLE", 't': "TIME", 'r': "RETRYCOUNT"}[option[0]|0x20]
			n, ok := x.number(rest[i], "ERR Invalid "+name+" option argument for XCLAIM")
			switch {
			case !ok:
				return false
			case name == "IDLE":
				c.since = now.Add(-milliseconds(n))
			case name == "TIME":
				c.since = time.UnixMilli(n)
			case n >= 0:
				c.deliveries = n
			}
			if c.since.After(now) || c.since.UnixMilli() < 0 {
				c.since = now
			}
		case is(option, "lastid") && more > 0: // a group has no position
			i++
			if _, ok := parseEntryID(rest[i], 0); !ok {
				x.out.Error(errBadEntryID)
				return false
			}
		default:
			x.out.Error("ERR Unrecognized XCLAIM option '" + cut(option, 128) + "'")
			return false
		}
	}
	return true
}

// answerClaimed answers with entries that were claimed.
func (x *call) answerClaimed(b *batch, justID bool) {
	if !justID {
		x.answerBatch(b)
		return
	}
	x.out.Array(len(b.ids))
	for _, id := range b.ids {
		x.out.Text(id.String())
	}
}

const (
	// autoClaimed is how many entries XAUTOCLAIM takes, if it does not say so.
	autoClaimed = 100
	errBadCount = "ERR COUNT must be > 0"
)

// runAutoClaim answers XAUTOCLAIM key group consumer min-idle-time start [COUNT n] [JUSTID].
func runAutoClaim(x *call) {
	least, ok := x.number(x.args[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM")
	if !ok {
		return
	}
	from, ok := x.rangeStart(x.args[5])
	if !ok {
		return
	}
	now := time.Now()
	c := claim{consumer: string(x.args[3]), since: now, least: milliseconds(least), deliveries: -1}
	count := int64(autoClaimed)
	for i := 6; i < len(x.args); i++ {
		switch {
		case is(x.args[i], "count") && i+1 < len(x.args):
			i++
			if count, ok = x.number(x.args[i], errBadCount); !ok {
				return
			}
			if count < 1 {
				x.out.Error(errBadCount)
				return
			}
		case is(x.args[i], "justid"):
			c.justID = true
		default:
			x.out.Error(errSyntax)
			return
		}
	}
	k, ok := x.withGroup()
	if !ok {
		return
	}
	if _, _, ok = x.consumer(&k, x.args[3]); !ok {
		return
	}
	x.autoClaim(k.topic, c, from, counted(count))
}

// autoClaim claims entries from an id on, and answers. Like Redis it looks at ten times as many
// entries as it may claim. The cursor is the id of an entry, and so it is the same at all nodes.
func (x *call) autoClaim(topic string, c claim, from entryID, count int) {
	all, more := x.c.server.pending(x.ctx, topic, pendingRange{from: from, to: lastEntryID, count: int64(10*count) + 1})
	var list []entryID
	next := entryID{}
	if more && len(all) <= 10*count { // the answer of another node was cut
		next, _ = all[len(all)-1].id.next()
	}
	for i, e := range all {
		if i == 10*count || len(list) == count {
			next = e.id
			break
		}
		if e.idle >= c.least {
			list = append(list, e.id)
		}
	}
	b, over, looked, err := x.claim(topic, c, list)
	if err != nil {
		x.fail(err)
		return
	}
	if looked < len(list) { // they are large
		next = list[looked]
	}
	x.out.Array(3)
	x.out.Text(next.String())
	x.answerClaimed(&b, c.justID)
	x.out.Array(len(over))
	for _, id := range over {
		x.out.Text(id.String())
	}
}

// rangeStart reads the start of a range. It answers and reports false if it cannot be one.
func (x *call) rangeStart(arg []byte) (entryID, bool) {
	id, exclusive, ok := parseBound(arg, 0)
	if ok && exclusive {
		if id, ok = id.next(); !ok {
			x.out.Error("ERR invalid start ID for the interval")
			return id, false
		}
	}
	if !ok {
		x.out.Error(errBadEntryID)
	}
	return id, ok
}
