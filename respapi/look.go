package respapi

import (
	"sync"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/keyid"
	"github.com/lapsehq/lapse/tasks"
)

// Most keys are read while nothing else is under way with them. Such a read needs no goroutine, no
// wait and no memory of its own: it is answered where it is read.

// mostGlimpsed is the largest value whose room is kept for the next command.
const mostGlimpsed = 4 << 10

// glimpses are the tasks that commands have peeked at.
var glimpses = sync.Pool{New: func() any { return new(tasks.Task) }}

func keepGlimpse(t *tasks.Task) {
	if cap(t.Payload) <= mostGlimpsed {
		glimpses.Put(t)
	}
}

// look answers x, whose verb looks, and the commands of that verb behind it that have arrived, as
// long as none has to wait. The one that has to is answered by together, with those behind it. It
// returns the first command that was not answered; nil if none has arrived.
func (c *conn) look(x *call) (next [][]byte, err error) {
	t := glimpses.Get().(*tasks.Task)
	defer keepGlimpse(t)
	begun, all, failed := time.Now(), 0, int64(0)
	for x.peek(t) {
		if all == 0 {
			c.begin(x, begun)
		}
		c.from, c.spilt = len(c.answer.Buf), false
		x.verb.run(x)
		all, failed = all+1, failed+c.refused(c.answer.Buf[c.from:])
		if next, err = c.in.Ready(); next == nil || lookup(next) != x.verb || len(c.answer.Buf) >= flushAt {
			break
		}
		c.recheck()
		x.args, x.ctx = next, c.ctx
	}
	if all == 0 {
		return c.together(x)
	}
	c.server.count(x.verb, int64(all), failed).took.Observe(time.Since(begun), all)
	c.holdLarge()
	return next, err
}

// peek looks at the key of a command. It reports false, and has answered nothing, if that takes
// more: the command is refused, or has to wait.
func (x *call) peek(t *tasks.Task) bool {
	x.peeked = false
	if x.refusal() != "" {
		return false
	}
	id := x.args[1]
	topic, problem := x.c.server.keyTopic(id)
	if problem != "" || !tasks.GrantOf(x.ctx).Allows(topic) {
		return false
	}
	if !keyid.IsID(id) {
		text, _ := keyid.Encode(id)
		id = []byte(text)
	}
	found, known := x.scheduler().Peek(x.ctx, id, t)
	if !known || found && t.Topic != topic {
		return false
	}
	x.peeked, x.seen = true, nil
	if found && isLive(t) {
		x.seen = t
	}
	return true
}
