package respapi

import (
	"container/heap"
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
}

// claim takes entries over: their leases begin anew. It returns the ids of those that were taken,
// with their tasks unless the claim is for ids only, and of those that were over already. It may
// take only the first ones if they are large. Errors: as of settle; those of Scheduler.Get.
func (x *call) claim(t *stream, c claim, list []*outEntry) (b batch, over []entryID, err error) {
	bytes := 0
	for part := range slices.Chunk(list, claimedAtOnce) {
		if bytes >= mostEntryBytes {
			break
		}
		taken := make([]string, 0, len(part))
		_, err = x.c.server.settle(x.ctx, t, tasks.Verdict{Verb: tasks.Extend}, settlings(part), func(e *outEntry, s *tasks.Settled) {
			t.extendLocked(e, c, s.LeaseUntil)
			b.ids, taken = append(b.ids, e.id), append(taken, e.task)
		})
		if err != nil {
			return b, over, err
		}
		t.mu.Lock()
		for _, e := range part {
			if e.index < 0 {
				over = append(over, e.id)
			}
		}
		t.mu.Unlock()
		if c.justID {
			continue
		}
		for _, id := range taken {
			found, err := x.scheduler().Get(x.ctx, id)
			switch {
			case errors.Is(err, tasks.ErrNotFound):
				b.tasks = append(b.tasks, nil)
			case err != nil:
				return b, over, err
			default:
				b.tasks = append(b.tasks, &found)
				bytes += len(found.Payload)
			}
		}
	}
	return b, over, nil
}

// extendLocked gives an entry to the consumer of a claim.
func (t *stream) extendLocked(e *outEntry, c claim, until time.Time) {
	to := t.consumers[c.consumer]
	if to == nil { // it was forgotten a moment ago
		to = &consumer{name: c.consumer}
		t.consumers[c.consumer] = to
	}
	to.seen = time.Now()
	e.consumer.out--
	to.out++
	e.consumer, e.since = to, c.since
	switch {
	case c.deliveries >= 0:
		e.deliveries = c.deliveries
	case !c.justID:
		e.deliveries++
	}
	e.until = until
	heap.Fix(&t.ends, e.index)
}

// history returns the entries of a consumer after an id. It has them again, from now on.
func (x *call) history(t *stream, name string, after entryID, count int) (batch, error) {
	from, ok := after.next()
	if !ok {
		return batch{}, nil
	}
	now := time.Now()
	t.lock(now)
	mine := t.outLocked(from, func(e *outEntry) bool { return e.consumer.name == name })
	t.mu.Unlock()
	b, _, err := x.claim(t, claim{consumer: name, since: now, deliveries: -1}, mine[:min(len(mine), count)])
	return b, err
}

// runClaim answers XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME ms]
// [RETRYCOUNT n] [FORCE] [JUSTID] [LASTID id].
func runClaim(x *call) {
	k, ok := x.stream(x.args[1])
	if !ok {
		return
	}
	if !k.group {
		x.noGroup(k.name, x.args[2], "")
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
	t, _, ok := x.consumer(&k, x.args[3])
	if !ok {
		return
	}
	t.lock(now)
	var list []*outEntry
	for _, id := range ids {
		if e := t.entries[id]; e != nil && now.Sub(e.since) >= c.least {
			list = append(list, e)
		}
	}
	t.mu.Unlock()
	b, _, err := x.claim(t, c, list)
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
	k, ok := x.stream(x.args[1])
	if !ok {
		return
	}
	if !k.group {
		x.noGroup(k.name, x.args[2], "")
		return
	}
	t, _, ok := x.consumer(&k, x.args[3])
	if !ok {
		return
	}
	x.autoClaim(t, c, from, counted(count))
}

// autoClaim claims entries from an id on, and answers. Like Redis it looks at ten times as many
// entries as it may claim.
func (x *call) autoClaim(t *stream, c claim, from entryID, count int) {
	t.lock(c.since)
	all := t.outLocked(from, func(*outEntry) bool { return true })
	var list []*outEntry
	next := entryID{}
	for i, e := range all {
		if i == 10*count || len(list) == count {
			next = e.id
			break
		}
		if c.since.Sub(e.since) >= c.least {
			list = append(list, e)
		}
	}
	t.mu.Unlock()
	b, over, err := x.claim(t, c, list)
	if err != nil {
		x.fail(err)
		return
	}
	if n := len(b.ids) + len(over); n < len(list) { // they are large
		next = list[n].id
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
