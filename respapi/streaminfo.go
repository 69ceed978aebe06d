package respapi

import (
	"strconv"
	"time"
)

// runPending answers XPENDING key group [[IDLE min-idle-time] start end count [consumer]].
func runPending(x *call) {
	args := x.args
	if len(args) != 3 && (len(args) < 6 || len(args) > 9) {
		x.out.Error(errSyntax)
		return
	}
	var r pendingRange
	if len(args) > 3 && !x.pendingRange(&r) {
		return
	}
	k, ok := x.stream(args[1])
	if !ok {
		return
	}
	if !k.group {
		x.noGroup(k.name, args[2], "")
		return
	}
	t := x.c.server.streams.add(k.topic)
	now := time.Now()
	t.lock(now)
	defer t.mu.Unlock()
	if len(args) == 3 {
		x.pendingSummary(t)
		return
	}
	list := t.outLocked(r.from, func(e *outEntry) bool {
		return e.id.compare(r.to) <= 0 && now.Sub(e.since) >= r.least && (r.consumer == nil || e.consumer.name == string(r.consumer))
	})
	list = list[:min(int64(len(list)), max(r.count, 0))]
	x.out.Array(len(list))
	for _, e := range list {
		x.out.Array(4)
		x.out.Text(e.id.String())
		x.out.Text(e.consumer.name)
		x.out.Int(max(0, now.Sub(e.since).Milliseconds()))
		x.out.Int(e.deliveries)
	}
}

// A pendingRange says which entries XPENDING lists.
type pendingRange struct {
	from, to entryID
	least    time.Duration // how long they have been idle
	count    int64
	consumer []byte // nil: any
}

// pendingRange reads the arguments of XPENDING from the third on. It answers and reports false if
// they are wrong.
func (x *call) pendingRange(r *pendingRange) (ok bool) {
	args := x.args[3:]
	if is(args[0], "idle") {
		least, ok := x.number(args[1], errNotInteger)
		if !ok {
			return false
		}
		if len(args) < 5 {
			x.out.Error(errSyntax)
			return false
		}
		r.least, args = milliseconds(least), args[2:]
	}
	if r.count, ok = x.number(args[2], errNotInteger); !ok {
		return false
	}
	if r.from, ok = x.rangeStart(args[0]); !ok {
		return false
	}
	to, exclusive, ok := parseBound(args[1], lastEntryID.seq)
	if !ok {
		x.out.Error(errBadEntryID)
		return false
	}
	if r.to = to; exclusive {
		if r.to, ok = to.previous(); !ok {
			x.out.Error("ERR invalid end ID for the interval")
			return false
		}
	}
	if len(args) > 3 {
		r.consumer = args[3]
	}
	return true
}

// pendingSummary answers XPENDING without a range. The caller holds the lock of the stream.
func (x *call) pendingSummary(t *stream) {
	x.out.Array(4)
	x.out.Int(int64(len(t.entries)))
	if len(t.entries) == 0 {
		x.out.Null()
		x.out.Null()
		x.out.NullArray()
		return
	}
	first, last := lastEntryID, entryID{}
	for id := range t.entries {
		if id.compare(first) < 0 {
			first = id
		}
		if id.compare(last) > 0 {
			last = id
		}
	}
	x.out.Text(first.String())
	x.out.Text(last.String())
	all := t.consumersLocked()
	busy := all[:0]
	for _, c := range all {
		if c.out > 0 {
			busy = append(busy, c)
		}
	}
	x.out.Array(len(busy))
	for _, c := range busy {
		x.out.Array(2)
		x.out.Text(c.name)
		x.out.Text(strconv.Itoa(c.out))
	}
}

// counts returns the tasks of a stream's topic that are ready, and those that are out, at all nodes
// that answer. It answers and reports false if it cannot.
func (x *call) counts(k *streamKey) (ready, out int64, ok bool) {
	if k.topics.Name == "" { // no node has met it
		return 0, 0, true
	}
	t, _, err := x.scheduler().FleetTopic(x.ctx, k.topic)
	if err != nil {
		x.fail(err)
		return 0, 0, false
	}
	return t.Counts.Ready, t.Counts.Delivering, true
}

// runLen answers XLEN key: the tasks that are ready, and those that are out.
func runLen(x *call) {
	k, ok := x.stream(x.args[1])
	if !ok {
		return
	}
	if ready, out, ok := x.counts(&k); ok {
		x.out.Int(ready + out)
	}
}

// infoStream looks up the stream of a subcommand of XINFO. It answers and reports false if there is
// none.
func (x *call) infoStream() (k streamKey, ok bool) {
	if k, ok = x.stream(x.args[2]); ok && !k.exists {
		x.out.Error(errNoKey)
		ok = false
	}
	return k, ok
}

// fullEntries is how many entries XINFO STREAM FULL shows, if it does not say so.
const fullEntries = 10

// runInfoStream answers XINFO STREAM key [FULL [COUNT n]].
func runInfoStream(x *call) {
	k, ok := x.infoStream()
	if !ok {
		return
	}
	full, most := len(x.args) > 3, int64(fullEntries)
	if full {
		if len(x.args) != 4 && len(x.args) != 6 || !is(x.args[3], "full") || len(x.args) == 6 && !is(x.args[4], "count") {
			x.out.Error("ERR unknown subcommand or wrong number of arguments for '" + cut(x.args[1], 128) + "'. Try XINFO HELP.")
			return
		}
		if len(x.args) == 6 {
			if most, ok = x.number(x.args[5], errNotInteger); !ok {
				return
			}
		}
	}
	ready, out, ok := x.counts(&k)
	if !ok {
		return
	}
	t := x.c.server.streams.of(k.topic)
	if t == nil {
		t = new(stream) // one of which nothing is out
	}
	t.lock(time.Now())
	defer t.mu.Unlock()
	if full {
		x.out.Map(9)
	} else {
		x.out.Map(10)
	}
	x.field("length", ready+out)
	x.field("radix-tree-keys", int64(len(t.entries)))
	x.field("radix-tree-nodes", int64(len(t.entries))+1)
	x.out.Text("last-generated-id")
	x.out.Text(t.last.String())
	x.out.Text("max-deleted-entry-id")
	x.out.Text("0-0")
	x.field("entries-added", t.read+ready)
	x.out.Text("recorded-first-entry-id")
	x.out.Text("0-0")
	if full {
		x.out.Text("entries")
		x.out.Array(0)
		x.out.Text("groups")
		x.infoFull(&k, t, ready, counted(most))
		return
	}
	groups := int64(0)
	if k.group {
		groups = 1
	}
	x.field("groups", groups)
	x.out.Text("first-entry")
	x.out.Null()
	x.out.Text("last-entry")
	x.out.Null()
}

// infoFull answers with the group of a stream, with all of its consumers. The caller holds the lock
// of the stream.
func (x *call) infoFull(k *streamKey, t *stream, ready int64, most int) {
	if !k.group {
		x.out.Array(0)
		return
	}
	list := t.outLocked(entryID{}, func(*outEntry) bool { return true })
	x.out.Array(1)
	x.out.Map(7)
	x.out.Text("name")
	x.out.Text(t.groupName())
	x.out.Text("last-delivered-id")
	x.out.Text(t.last.String())
	x.field("entries-read", t.read)
	x.field("lag", ready)
	x.field("pel-count", int64(len(list)))
	x.out.Text("pending")
	shown := list[:min(len(list), most)]
	x.out.Array(len(shown))
	for _, e := range shown {
		x.out.Array(4)
		x.out.Text(e.id.String())
		x.out.Text(e.consumer.name)
		x.out.Int(e.since.UnixMilli())
		x.out.Int(e.deliveries)
	}
	own := make(map[*consumer][]*outEntry)
	for _, e := range list {
		if len(own[e.consumer]) < most {
			own[e.consumer] = append(own[e.consumer], e)
		}
	}
	consumers := t.consumersLocked()
	x.out.Text("consumers")
	x.out.Array(len(consumers))
	for _, c := range consumers {
		x.out.Map(4)
		x.out.Text("name")
		x.out.Text(c.name)
		x.field("seen-time", c.seen.UnixMilli())
		x.field("pel-count", int64(c.out))
		x.out.Text("pending")
		x.out.Array(len(own[c]))
		for _, e := range own[c] {
			x.out.Array(3)
			x.out.Text(e.id.String())
			x.out.Int(e.since.UnixMilli())
			x.out.Int(e.deliveries)
		}
	}
}

// field answers with a field of a map, and its number.
func (x *call) field(name string, n int64) {
	x.out.Text(name)
	x.out.Int(n)
}

// groupName returns the name by which the group is shown. The caller holds the lock.
func (t *stream) groupName() string {
	if t.group == "" {
		return "lapse" // of a group that was made elsewhere
	}
	return t.group
}

// runInfoGroups answers XINFO GROUPS key.
func runInfoGroups(x *call) {
	k, ok := x.infoStream()
	if !ok {
		return
	}
	if !k.group {
		x.out.Array(0)
		return
	}
	ready, _, ok := x.counts(&k)
	if !ok {
		return
	}
	t := x.c.server.streams.add(k.topic)
	t.lock(time.Now())
	defer t.mu.Unlock()
	x.out.Array(1)
	x.out.Map(6)
	x.out.Text("name")
	x.out.Text(t.groupName())
	x.field("consumers", int64(len(t.consumers)))
	x.field("pending", int64(len(t.entries)))
	x.out.Text("last-delivered-id")
	x.out.Text(t.last.String())
	x.field("entries-read", t.read)
	x.field("lag", ready)
}

// runInfoConsumers answers XINFO CONSUMERS key group.
func runInfoConsumers(x *call) {
	k, ok := x.infoStream()
	if !ok {
		return
	}
	if !k.group {
		x.out.Error("NOGROUP No such consumer group '" + string(x.args[3]) + "' for key name '" + k.name + "'")
		return
	}
	t := x.c.server.streams.add(k.topic)
	now := time.Now()
	t.lock(now)
	defer t.mu.Unlock()
	list := t.consumersLocked()
	x.out.Array(len(list))
	for _, c := range list {
		x.out.Map(3)
		x.out.Text("name")
		x.out.Text(c.name)
		x.field("pending", int64(c.out))
		x.field("idle", max(0, now.Sub(c.seen).Milliseconds()))
	}
}

// runInfoHelp answers XINFO HELP.
func runInfoHelp(x *call) {
	x.help(
		"XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"CONSUMERS <key> <groupname>",
		"    Show consumers of <groupname>.",
		"GROUPS <key>",
		"    Show the stream consumer groups.",
		"STREAM <key> [FULL [COUNT <count>]",
		"    Show information about the stream.",
	)
}

// runNoEntries answers the verbs that would make entries.
func runNoEntries(x *call) {
	x.out.Error("ERR the entries of streams " + streamPrefix + "<topic> are made by keys that expire")
}

// runNoReader answers the verbs that would read entries without a group.
func runNoReader(x *call) {
	x.out.Error("ERR the entries of streams " + streamPrefix + "<topic> can only be read in a group, by XREADGROUP")
}
