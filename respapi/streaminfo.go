package respapi

import (
	"slices"
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
	k, ok := x.withGroup()
	if !ok {
		return
	}
	if len(args) == 3 {
		x.pendingSummary(x.c.server.figures(x.ctx, k.topic))
		return
	}
	list, _ := x.c.server.pending(x.ctx, k.topic, r)
	x.out.Array(len(list))
	for _, e := range list {
		x.out.Array(4)
		x.out.Text(e.id.String())
		x.out.Text(e.consumer)
		x.out.Int(e.idle.Milliseconds())
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

// pendingSummary answers XPENDING without a range.
func (x *call) pendingSummary(g *groupFigures) {
	x.out.Array(4)
	x.out.Int(g.out)
	if g.out == 0 {
		x.out.Null()
		x.out.Null()
		x.out.NullArray()
		return
	}
	x.out.Text(g.first.String())
	x.out.Text(g.last.String())
	busy := slices.DeleteFunc(g.names(), func(name string) bool { return g.consumers[name].out == 0 })
	x.out.Array(len(busy))
	for _, name := range busy {
		x.out.Array(2)
		x.out.Text(name)
		x.out.Text(strconv.FormatInt(g.consumers[name].out, 10))
	}
}

// counts returns the tasks of a stream's topic that are ready, and those that are out, at all
// nodes. It answers and reports false if it cannot.
func (x *call) counts(k *streamKey) (ready, out int64, ok bool) {
	if k.topics.Name == "" { // no node has met it
		return 0, 0, true
	}
	t, err := x.figuresOf(x.ctx, k.topic)
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
	g := x.c.server.figures(x.ctx, k.topic)
	if full {
		x.out.Map(9)
	} else {
		x.out.Map(10)
	}
	x.field("length", ready+out)
	x.field("radix-tree-keys", g.out)
	x.field("radix-tree-nodes", g.out+1)
	x.out.Text("last-generated-id")
	x.out.Text(g.delivered.String())
	x.out.Text("max-deleted-entry-id")
	x.out.Text("0-0")
	x.field("entries-added", g.read+ready)
	x.out.Text("recorded-first-entry-id")
	x.out.Text("0-0")
	if full {
		x.out.Text("entries")
		x.out.Array(0)
		x.out.Text("groups")
		x.infoFull(&k, g, ready, counted(most))
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

// infoFull answers with the group of a stream, with all of its consumers.
func (x *call) infoFull(k *streamKey, g *groupFigures, ready int64, most int) {
	if !k.group {
		x.out.Array(0)
		return
	}
	list, _ := x.c.server.pending(x.ctx, k.topic, pendingRange{to: lastEntryID, count: mostListed})
	now := time.Now()
	x.out.Array(1)
	x.out.Map(7)
	x.out.Text("name")
	x.out.Text(g.groupName())
	x.out.Text("last-delivered-id")
	x.out.Text(g.delivered.String())
	x.field("entries-read", g.read)
	x.field("lag", ready)
	x.field("pel-count", g.out)
	x.out.Text("pending")
	shown := list[:min(len(list), most)]
	x.out.Array(len(shown))
	for _, e := range shown {
		x.out.Array(4)
		x.out.Text(e.id.String())
		x.out.Text(e.consumer)
		x.out.Int(now.Add(-e.idle).UnixMilli())
		x.out.Int(e.deliveries)
	}
	own := make(map[string][]pendingEntry)
	for _, e := range list {
		if len(own[e.consumer]) < most {
			own[e.consumer] = append(own[e.consumer], e)
		}
	}
	x.out.Text("consumers")
	x.out.Array(len(g.consumers))
	for _, name := range g.names() {
		c := g.consumers[name]
		x.out.Map(4)
		x.out.Text("name")
		x.out.Text(name)
		x.field("seen-time", now.Add(-c.idle).UnixMilli())
		x.field("pel-count", c.out)
		x.out.Text("pending")
		x.out.Array(len(own[name]))
		for _, e := range own[name] {
			x.out.Array(3)
			x.out.Text(e.id.String())
			x.out.Int(now.Add(-e.idle).UnixMilli())
			x.out.Int(e.deliveries)
		}
	}
}

// field answers with a field of a map, and its number.
func (x *call) field(name string, n int64) {
	x.out.Text(name)
	x.out.Int(n)
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
	g := x.c.server.figures(x.ctx, k.topic)
	x.out.Array(1)
	x.out.Map(6)
	x.out.Text("name")
	x.out.Text(g.groupName())
	x.field("consumers", int64(len(g.consumers)))
	x.field("pending", g.out)
	x.out.Text("last-delivered-id")
	x.out.Text(g.delivered.String())
	x.field("entries-read", g.read)
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
	g := x.c.server.figures(x.ctx, k.topic)
	x.out.Array(len(g.consumers))
	for _, name := range g.names() {
		c := g.consumers[name]
		x.out.Map(3)
		x.out.Text("name")
		x.out.Text(name)
		x.field("pending", c.out)
		x.field("idle", c.idle.Milliseconds())
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
