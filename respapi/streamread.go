package respapi

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/keyid"
	"github.com/lapsehq/lapse/tasks"
)

const (
	// mostStreams is how many streams one XREADGROUP may read.
	mostStreams = 64
	// mostEntryBytes is how many bytes of answers a command begins to add further entries after.
	mostEntryBytes = tasks.MaxPageBytes
	// headerField is before the name of a header, as a field of an entry.
	headerField = "header."
)

// A groupRead is an XREADGROUP.
type groupRead struct {
	group, consumer []byte
	count           int
	block           time.Duration // negative: it does not wait; 0: as long as it takes
	until           time.Time     // when it has waited for that long; zero: never
	noAck           bool
	claims          bool          // it also takes over entries that are out
	idle            time.Duration // those that have been idle for so long
	bytes           int           // of what it has got so far
	keys, ids       [][]byte
	from            []sourced
}

// A sourced is one stream of an XREADGROUP.
type sourced struct {
	key     streamKey
	stream  *stream
	history bool    // of the consumer's own entries
	after   entryID // of history
	claimed batch   // what the read has taken over
}

// A batch is what an XREADGROUP has got from one stream.
type batch struct {
	ids   []entryID
	tasks []*tasks.Task // nil: there is no such task any more
	// before has those that were taken over, as they were; nil if the read takes none over.
	before map[entryID]pendingEntry
}

// runReadGroup answers XREADGROUP.
func runReadGroup(x *call) {
	r, ok := x.parseReadGroup()
	if !ok || !x.findSources(r) {
		return
	}
	got := make([][]tasks.Delivery, len(r.from))
	err := x.claimIdle(r)
	if err == nil {
		err = x.takeReady(r, got)
	}
	if err == nil && r.mayWait(x, got) {
		var there bool
		var refusal string
		if there, refusal, err = x.awaitAny(r, got); !there || refusal != "" {
			x.giveBack(got)
			if refusal != "" {
				x.out.Error(refusal)
			}
			return
		}
	}
	if err == nil && r.noAck {
		err = x.acknowledgeAll(got)
	}
	if err != nil {
		x.giveBack(got)
		if errors.Is(err, tasks.ErrHandled) {
			x.noGroup(r.from[0].key.name, r.group, " in XREADGROUP with GROUP option")
		} else {
			x.fail(err)
		}
		return
	}
	x.answerRead(r, got)
}

// mayWait reports whether a read that has got so much waits for more.
func (r *groupRead) mayWait(x *call, got [][]tasks.Delivery) bool {
	return r.block >= 0 && !x.queued && !slices.ContainsFunc(r.from, sourced.answers) && isNothing(got)
}

// answers reports whether there is an answer although nothing is ready.
func (s sourced) answers() bool { return s.history || len(s.claimed.ids) > 0 }

func isNothing(got [][]tasks.Delivery) bool {
	return !slices.ContainsFunc(got, func(ds []tasks.Delivery) bool { return len(ds) > 0 })
}

// giveBack returns what was reserved and is not handed out.
func (x *call) giveBack(got [][]tasks.Delivery) {
	for _, ds := range got {
		x.scheduler().Return(ds)
	}
}

// awaitAny waits until one of the streams has something, the time is over, the client has left or
// may not read any more. A client whose rights have changed, and that may still read, goes on
// waiting with those that it has now. refusal is the answer to one that may not, or that finds no
// place to wait. Errors: those of Reserve.
func (x *call) awaitAny(r *groupRead, got [][]tasks.Delivery) (there bool, refusal string, err error) {
	waits, waiting := x.c.server.cfg.Waits, x.c.caller
	if full := waits.Begin(waiting); full != "" {
		return true, "TRYAGAIN " + full, nil
	}
	defer waits.End(waiting)
	if r.block > 0 {
		r.until = time.Now().Add(r.block)
	}
	for there = true; there && err == nil && refusal == ""; {
		before := x.c.caller
		there = x.blocked(func(ctx context.Context) { err = x.await(ctx, r, got) })
		if x.c.caller == before {
			break
		}
		x.ctx, refusal = x.c.ctx, x.denied()
		for i := 0; i < len(r.from) && refusal == ""; i++ {
			if !x.c.caller.MayUse(r.from[i].key.topic) {
				refusal = errorText(tasks.ErrNotGranted)
			}
		}
		if !isNothing(got) {
			break
		}
	}
	return there, refusal, err
}

// parseReadGroup reads the arguments of an XREADGROUP. It answers and reports false if they are
// wrong.
func (x *call) parseReadGroup() (*groupRead, bool) {
	r := &groupRead{count: tasks.MaxReserve, block: -1}
	for i := 1; i < len(x.args) && r.keys == nil; i++ {
		more := len(x.args) - i - 1
		switch arg := x.args[i]; {
		case is(arg, "block") && more > 0:
			i++
			n, ok := x.timeout(x.args[i])
			if !ok {
				return r, false
			}
			if r.block = time.Duration(n) * time.Millisecond; n > int64(longestBlock/time.Millisecond) {
				r.block = 0
			}
		case is(arg, "claim") && more > 0:
			i++
			n, ok := x.number(x.args[i], "ERR min-idle-time is not an integer or out of range")
			if !ok {
				return r, false
			}
			if n < 0 {
				x.out.Error("ERR min-idle-time must be a positive integer")
				return r, false
			}
			r.claims, r.idle = true, milliseconds(n)
		case is(arg, "count") && more > 0:
			i++
			n, ok := x.number(x.args[i], errNotInteger)
			if !ok {
				return r, false
			}
			r.count = counted(n)
		case is(arg, "streams") && more > 0:
			if more%2 != 0 {
				x.out.Error("ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.")
				return r, false
			}
			r.keys, r.ids = x.args[i+1:i+1+more/2], x.args[i+1+more/2:]
		case is(arg, "group") && more >= 2:
			r.group, r.consumer = x.args[i+1], x.args[i+2]
			i += 2
		case is(arg, "noack"):
			r.noAck = true
		default:
			x.out.Error(errSyntax)
			return r, false
		}
	}
	switch {
	case r.keys == nil:
		x.out.Error(errSyntax)
	case r.group == nil:
		x.out.Error("ERR Missing GROUP option for XREADGROUP")
	case len(r.keys) > mostStreams:
		x.out.Error("ERR XREADGROUP reads at most " + strconv.Itoa(mostStreams) + " streams")
	default:
		return r, x.mayBeName("group", r.group)
	}
	return r, false
}

// longestBlock is the longest time that a client can wait for; longer ones have no end.
const longestBlock = 10 * 365 * 24 * time.Hour

// findSources looks the streams up. It answers and reports false if one cannot be read.
func (x *call) findSources(r *groupRead) bool {
	for i, name := range r.keys {
		s := sourced{key: streamKey{name: string(name), topic: topicOfStream(name)}}
		if s.key.topic != "" && !x.granted(s.key.topic) {
			return false
		}
		// A stream that is known has a group, or Reserve reports that it no longer has.
		if s.stream = x.c.server.streams.of(s.key.topic); s.stream == nil {
			k, ok := x.stream(name)
			if !ok {
				return false
			}
			if s.key = k; !k.group {
				x.noGroup(k.name, r.group, " in XREADGROUP with GROUP option")
				return false
			}
		}
		switch id := r.ids[i]; string(id) {
		case ">":
		case "$":
			x.out.Error("ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.")
			return false
		default:
			after, ok := parseEntryID(id, 0)
			if !ok {
				x.out.Error(errBadEntryID)
				return false
			}
			s.history, s.after = true, after
		}
		r.from = append(r.from, s)
	}
	for i := range r.from {
		t, _, ok := x.consumer(&r.from[i].key, r.consumer)
		if !ok {
			return false
		}
		r.from[i].stream = t
	}
	r.consumer, r.group = slices.Clone(r.consumer), slices.Clone(r.group)
	return true
}

// claimIdle has the consumer take over entries that have been idle for long enough, of each stream,
// those first that have been so for longest.
func (x *call) claimIdle(r *groupRead) (err error) {
	for i := range r.from {
		s := &r.from[i]
		if !r.claims || s.history || r.bytes >= mostEntryBytes {
			continue
		}
		list, _ := x.c.server.pending(x.ctx, s.key.topic, pendingRange{to: lastEntryID, count: mostListed, least: r.idle})
		slices.SortStableFunc(list, func(a, b pendingEntry) int { return cmp.Compare(b.idle, a.idle) })
		list = list[:min(len(list), r.count)]
		ids, before := make([]entryID, len(list)), make(map[entryID]pendingEntry, len(list))
		for j, e := range list {
			ids[j], before[e.id] = e.id, e
		}
		c := claim{consumer: string(r.consumer), since: time.Now(), least: r.idle, deliveries: -1}
		if s.claimed, _, _, err = x.claim(s.key.topic, c, ids); err != nil {
			return err
		}
		s.claimed.before = before
		for _, t := range s.claimed.tasks {
			if t != nil {
				r.bytes += len(t.Payload)
			}
		}
	}
	return nil
}

// takeReady reserves what is ready, of each stream.
func (x *call) takeReady(r *groupRead, got [][]tasks.Delivery) error {
	for i := 0; i < len(r.from) && r.bytes < mostEntryBytes; i++ {
		most := r.count - len(r.from[i].claimed.ids)
		if r.from[i].history || most == 0 {
			continue
		}
		ds, err := x.scheduler().Reserve(x.ctx, r.from[i].key.topic, most, 0, 0)
		if err != nil {
			return err
		}
		got[i] = ds
		for j := range ds {
			r.bytes += len(ds[j].Payload)
		}
	}
	return nil
}

// await waits until one of the streams has something, or the time is over. It may find more than
// that of one stream. Errors: those of Reserve.
func (x *call) await(ctx context.Context, r *groupRead, got [][]tasks.Delivery) error {
	if len(r.from) == 1 {
		var err error
		got[0], err = x.awaitOne(ctx, r.from[0].key.topic, r.count, r.until)
		return err
	}
	first, found := context.WithCancel(ctx)
	defer found()
	var mu sync.Mutex
	var failed error
	var group sync.WaitGroup
	for i := range r.from {
		group.Go(func() {
			ds, err := x.awaitOne(first, r.from[i].key.topic, r.count, r.until)
			mu.Lock()
			defer mu.Unlock()
			if got[i] = ds; len(ds) > 0 || err != nil {
				if first.Err() == nil {
					failed = err
				}
				found()
			}
		})
	}
	group.Wait()
	return failed
}

// awaitOne waits until a topic has something, until ctx ends, or until the time is over, unless
// that is zero.
func (x *call) awaitOne(ctx context.Context, topic string, count int, end time.Time) ([]tasks.Delivery, error) {
	for ctx.Err() == nil {
		wait := tasks.MaxWait
		if !end.IsZero() {
			if wait = min(wait, time.Until(end)); wait <= 0 {
				break
			}
		}
		if ds, err := x.scheduler().Reserve(ctx, topic, count, wait, 0); len(ds) > 0 || err != nil {
			return ds, err
		}
	}
	return nil, nil
}

// acknowledgeAll acknowledges what was reserved. What is no longer this delivery's is left out.
func (x *call) acknowledgeAll(got [][]tasks.Delivery) error {
	for _, ds := range got {
		if len(ds) == 0 {
			continue
		}
		receipts := make([]string, len(ds))
		for i := range ds {
			receipts[i] = ds[i].Receipt()
		}
		settled, err := x.scheduler().Settle(x.ctx, tasks.Verdict{Verb: tasks.Ack}, receipts)
		if err != nil {
			return err
		}
		for i := range settled {
			if err := unsettled(&settled[i]); err != nil && !isOver(err) {
				return err
			}
		}
	}
	return nil
}

// answerRead answers with what was reserved, and with the consumer's own entries.
func (x *call) answerRead(r *groupRead, got [][]tasks.Delivery) {
	batches, streams := make([]batch, len(r.from)), 0
	for i, s := range r.from {
		b := &batches[i]
		switch ds := got[i]; {
		case s.history:
			var err error
			if *b, err = x.history(s.key.topic, string(r.consumer), s.after, r.count); err != nil {
				x.fail(err)
				return
			}
			streams++
		case len(ds) == 0 && len(s.claimed.ids) == 0:
			continue
		case r.noAck:
			*b = s.claimed
			for j := range ds {
				b.ids = append(b.ids, entryIDOf(&ds[j].Task))
			}
			streams++
		default:
			*b = s.claimed
			b.ids = append(b.ids, s.stream.handOut(string(r.consumer), ds)...)
			streams++
		}
		for j := range got[i] {
			b.tasks = append(b.tasks, &got[i][j].Task)
		}
	}
	if streams == 0 {
		x.out.NullArray()
		return
	}
	if x.out.Three {
		x.out.Map(streams)
	} else {
		x.out.Array(streams)
	}
	for i, s := range r.from {
		if b := &batches[i]; s.history || len(b.ids) > 0 {
			if !x.out.Three {
				x.out.Array(2)
			}
			x.out.Text(s.key.name)
			x.answerBatch(b)
		}
	}
	if !r.noAck {
		x.c.unsent = append(x.c.unsent, unwritten{len(x.out.Buf), func() { x.giveBack(got) }})
	}
}

// answerBatch answers with entries. A read that takes entries over tells of each for how long it
// was idle, and how often it was delivered, before.
func (x *call) answerBatch(b *batch) {
	x.out.Array(len(b.ids))
	for i, id := range b.ids {
		if b.before == nil {
			x.out.Array(2)
		} else {
			x.out.Array(4)
		}
		x.out.Text(id.String())
		if b.tasks[i] == nil {
			x.out.NullArray()
		} else {
			x.answerFields(b.tasks[i])
		}
		if b.before != nil {
			x.out.Int(b.before[id].idle.Milliseconds())
			x.out.Int(b.before[id].deliveries)
		}
	}
}

// answerFields answers with the fields of an entry.
func (x *call) answerFields(t *tasks.Task) {
	key, ok := keyid.Decode(t.ID, t.Headers[keyid.Header])
	if !ok {
		key = t.ID
	}
	headers := make([]string, 0, len(t.Headers))
	for name := range t.Headers {
		if name != keyid.Header {
			headers = append(headers, name)
		}
	}
	slices.Sort(headers)
	fields := 5 + len(headers)
	if t.Group != "" {
		fields++
	}
	x.out.Array(2 * fields)
	x.out.Text("key")
	x.out.Text(key)
	x.out.Text("value")
	x.out.Bulk(t.Payload)
	x.out.Text("topic")
	x.out.Text(t.Topic)
	x.out.Text("due")
	x.out.Text(strconv.FormatInt(t.Due.UnixMilli(), 10))
	x.out.Text("attempt")
	x.out.Text(strconv.Itoa(t.Attempt))
	if t.Group != "" {
		x.out.Text("group")
		x.out.Text(t.Group)
	}
	for _, name := range headers {
		x.out.Text(headerField + name)
		x.out.Text(t.Headers[name])
	}
}
