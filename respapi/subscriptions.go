package respapi

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/respapi/internal/glob"
)

// handOver gives the answers that are not sent yet to the output, so that messages come after them.
// c is a subscriber, or becomes one.
func (c *conn) handOver() {
	c.out.beginPushing()
	if len(c.answer.Buf) > 0 {
		c.out.push(c.answer.Buf, c.unsent...) // if it fails, the connection ends
	}
	c.answer.Buf, c.from, c.unsent = c.answer.Buf[:0], 0, nil
}

// tellHub tells the hub of a change of the client, from which the next message on counts.
func (c *conn) tellHub() {
	if c.subscribed == 0 {
		c.subs.three, c.subs.caller = c.answer.Three, c.caller
		return
	}
	h := c.server.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	c.handOver()
	c.subs.three, c.subs.caller = c.answer.Three, c.caller
}

func runSubscribe(x *call)    { x.subscribe("subscribe", false) }
func runPsubscribe(x *call)   { x.subscribe("psubscribe", true) }
func runUnsubscribe(x *call)  { x.unsubscribe("unsubscribe", false) }
func runPunsubscribe(x *call) { x.unsubscribe("punsubscribe", true) }

// subscribe answers SUBSCRIBE and PSUBSCRIBE. Each confirmation is sent before the first message
// that follows from it.
func (x *call) subscribe(verb string, patterns bool) {
	c, h := x.c, x.c.server.hub
	for _, name := range x.args[1:] {
		switch {
		case isOfKeys(name) && !c.caller.Rights.Open(edge.MayReceive):
			x.out.Error(errChannelDenied)
			return
		case patterns && len(name) > glob.MaxPattern:
			x.out.Error("ERR " + glob.ErrTooLong.Error())
			return
		case len(name) > mostChannelName:
			x.out.Error(errChannelLong)
			return
		}
	}
	c.tellHub()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range x.args[1:] {
		if err := h.addLocked(&c.subs, string(name), patterns); err != nil {
			x.out.Error("ERR " + err.Error())
			break
		}
		c.confirm(verb, name, c.subs.count())
	}
	c.subscribed = c.subs.count()
	c.handOver()
}

// unsubscribe answers UNSUBSCRIBE and PUNSUBSCRIBE.
func (x *call) unsubscribe(verb string, patterns bool) {
	c, h := x.c, x.c.server.hub
	names := x.args[1:]
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(names) == 0 {
		for _, name := range slices.Sorted(maps.Keys(c.subs.of(patterns))) {
			names = append(names, []byte(name))
		}
	}
	if len(names) == 0 {
		c.confirm(verb, nil, c.subs.count())
	}
	for _, name := range names {
		h.removeLocked(&c.subs, string(name), patterns)
		c.confirm(verb, name, c.subs.count())
	}
	if c.subscribed > 0 {
		c.handOver()
	}
	c.subscribed = c.subs.count()
}

// confirm writes that a subscription has begun or ended. They have no answers: CLIENT REPLY does
// not suppress them.
func (c *conn) confirm(verb string, name []byte, count int) {
	c.answer.Push(3)
	c.answer.Text(verb)
	if name == nil {
		c.answer.Null()
	} else {
		c.answer.Bulk(name)
	}
	c.answer.Int(int64(count))
}

// unsubscribeAll ends all subscriptions without a word.
func (c *conn) unsubscribeAll() {
	if c.subscribed == 0 {
		return
	}
	h := c.server.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, patterns := range []bool{false, true} {
		for name := range c.subs.of(patterns) {
			h.removeLocked(&c.subs, name, patterns)
		}
	}
	c.handOver()
	c.subscribed = 0
}

// runPublish answers PUBLISH with the number of subscribers of this node, as a node of Redis
// Cluster does. Those of other nodes get the message, too. What the server tells of keys is not
// forged: only a caller that could make and delete the keys of all topics may say the same.
func runPublish(x *call) {
	channel, text := string(x.args[1]), string(x.args[2])
	if problem := x.c.mayPublish(channel, text); problem != "" {
		x.out.Error(problem)
		return
	}
	x.out.Int(int64(x.c.publish(channel, text)))
}

// mayPublish returns the answer to a message that the client may not publish; "" if it may.
func (c *conn) mayPublish(channel, text string) string {
	switch {
	case isOfKeys(channel) && !(c.caller.Rights.Open(edge.MaySchedule) && c.caller.MayUseAll()):
		return errChannelDenied
	case len(channel) > mostChannelName:
		return errChannelLong
	case len(channel)+len(text) > mostRelayed && c.server.isRelayed():
		return errMessageLong
	}
	return ""
}

// publish publishes a message, and returns how many subscribers of this node get it.
func (c *conn) publish(channel, text string) int {
	if c.server.isRelayed() {
		c.server.relayFrame(anyMessage, "", channel, text)
	}
	if c.subscribed > 0 {
		c.handOver() // what was answered before comes before the message
	}
	return c.server.hub.publish(channel, text)
}

// nameBytes is what a name takes up in a list of names.
const nameBytes = 16

// runPubsubChannels answers PUBSUB CHANNELS [pattern] about this node. A channel that has the name
// of a key is there for callers that may use the topic of the key.
func runPubsubChannels(x *call) {
	if len(x.args) > 3 {
		x.out.Error("ERR unknown subcommand or wrong number of arguments for '" + cut(x.args[1], 128) + "'. Try PUBSUB HELP.")
		return
	}
	h := x.c.server.hub
	h.mu.Lock()
	list := x.c.server.kept.For(x.c.caller)
	defer list.Free()
	if !list.Take(nameBytes * int64(len(h.channels))) {
		h.mu.Unlock()
		x.out.Error("OOM too many lists of channels are being made")
		return
	}
	names := slices.AppendSeq(make([]string, 0, len(h.channels)), maps.Keys(h.channels))
	h.mu.Unlock()
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(name string) bool {
		key, of := strings.CutPrefix(name, keyspacePrefix)
		topic, _ := x.c.server.topicOf([]byte(key))
		return of && !x.c.caller.MayUse(topic)
	})
	if len(x.args) == 3 {
		pattern, ok := x.pattern(x.args[2])
		if !ok || !x.atLength(func(ctx context.Context) (err error) {
			names, err = matching(ctx, pattern, names)
			return err
		}) {
			return
		}
	}
	x.out.Array(len(names))
	for _, name := range names {
		x.out.Text(name)
		x.c.spill()
	}
}

func runPubsubNumsub(x *call) {
	h := x.c.server.hub
	x.out.Array(2 * (len(x.args) - 2))
	for _, name := range x.args[2:] {
		n := 0
		h.mu.Lock()
		if e := h.channels[string(name)]; e != nil {
			n = len(e.all)
		}
		h.mu.Unlock()
		x.out.Bulk(name)
		x.out.Int(int64(n))
	}
}

func runPubsubNumpat(x *call) {
	h := x.c.server.hub
	h.mu.Lock()
	n := len(h.patterns)
	h.mu.Unlock()
	x.out.Int(int64(n))
}

// help answers HELP.
func help(lines ...string) func(*call) {
	return func(x *call) {
		x.out.Array(len(lines))
		for _, line := range lines {
			x.out.Simple(line)
		}
	}
}

// pubsubVerbs are the subcommands of PUBSUB.
func pubsubVerbs() map[string]*verb {
	return index(
		&verb{name: "channels", arity: -2, flags: pushes, scope: edge.AnyRight, run: runPubsubChannels},
		&verb{name: "numsub", arity: -2, flags: pushes, scope: edge.AnyRight, run: runPubsubNumsub},
		&verb{name: "numpat", arity: 2, flags: pushes, scope: edge.AnyRight, run: runPubsubNumpat},
		&verb{name: "help", arity: 2, scope: edge.AnyRight, run: help(
			"PUBSUB <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
			"CHANNELS [<pattern>]",
			"    Return the currently active channels matching a <pattern> (default: '*').",
			"NUMPAT",
			"    Return number of subscriptions to patterns.",
			"NUMSUB [<channel> ...]",
			"    Return the number of subscribers for the specified channels, excluding",
			"    pattern subscriptions(default: no channels).",
			"HELP",
			"    Prints this help.",
		)},
	)
}
