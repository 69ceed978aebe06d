package respapi

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/resp"
	"github.com/lapsehq/lapse/tasks"
)

// A call is one command under way.
type call struct {
	c    *conn
	ctx  context.Context // of the caller
	verb *verb           // nil: there is none of that name
	args [][]byte        // the first is the name
	out  *resp.Writer

	peeked bool // seen is the task of the key, nil if it does not exist
	seen   *tasks.Task
	queued bool          // it runs in EXEC
	script *compiled     // of EVAL and its kin, once it is planned
	tx     *draft        // it runs on that draft
	beside *draft        // it runs in the same transaction, and not on that draft
	waited time.Duration // of its time, because it is a command that waits
}

// newCall makes a call with the rights that the client has now.
func (c *conn) newCall(args [][]byte) *call {
	c.recheck()
	return &call{c: c, ctx: c.ctx, verb: lookup(args), args: args, out: &c.answer}
}

// scheduler returns the scheduler. refusal has made sure that there is one.
func (x *call) scheduler() tasks.Admin { return x.c.server.scheduler.Load().Admin() }

// fail answers an error of the scheduler.
func (x *call) fail(err error) { x.out.Error(errorText(err)) }

// name returns the name of the command as Redis shows it.
func (x *call) name() string { return strings.ToLower(string(x.args[0])) }

// refusal returns the answer to a call that may not be made; "" if it may.
func (x *call) refusal() string {
	v := x.verb
	switch {
	case v == nil:
		return unknownCommand(x.args)
	case !v.takes(len(x.args)):
		return "ERR wrong number of arguments for '" + v.fullName() + "' command"
	case x.denied() != "":
		return x.denied()
	case x.c.subscribed > 0 && !x.out.Three && v.flags&inSubscription == 0:
		return "ERR Can't execute '" + v.fullName() + "': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
	case v.flags&needsTasks != 0 && x.c.server.scheduler.Load() == nil:
		return errLoading
	case v.tells(x.args) && x.c.crowded():
		return errUnread
	}
	return ""
}

// denied returns the answer to a call for which the client has no rights, or whose keys would be
// those of another database; "" if it may be made.
func (x *call) denied() string {
	switch c, v := x.c, x.verb; {
	case c.caller == nil && v.flags&noAuth == 0:
		return errNoAuth
	case c.elsewhere && v.flags&needsTasks != 0:
		return errElsewhere
	case c.caller != nil && !c.caller.Rights.Open(v.scope):
		return "NOPERM this token has no permissions to run the '" + v.fullName() + "' command"
	}
	return ""
}

// execute answers a command, or queues it for EXEC.
func (c *conn) execute(x *call) {
	begun := time.Now()
	c.begin(x, begun)
	c.from, c.spilt = len(c.answer.Buf), false
	refusal := x.refusal()
	switch {
	case x.verb != nil && x.verb.name == "exec" && !x.verb.takes(len(x.args)):
		c.forget()
		x.out.Error("EXECABORT Transaction discarded because of: " + strings.TrimPrefix(refusal, "ERR "))
	case refusal != "":
		if c.multi != nil {
			c.multi.spoilt = true
		}
		x.out.Error(refusal)
	case c.multi != nil && x.verb.flags&notQueued == 0:
		c.queue(x)
	default:
		x.verb.run(x)
	}
	c.server.count(x.verb, 1, c.refused(c.answer.Buf[c.from:])).took.Observe(time.Since(begun)-x.waited, 1)
	switch c.silence {
	case off, skipThis:
		c.answer.Buf = c.answer.Buf[:c.from]
		// Its entries are out.
		c.unsent = slices.DeleteFunc(c.unsent, func(e unwritten) bool { return e.end > c.from })
	}
	c.holdLarge()
	switch c.silence {
	case skipNext:
		c.silence = skipThis
	case skipThis:
		c.silence = loud
	}
}

// refused returns 1 for an answer that is an error, else 0.
func (c *conn) refused(answer []byte) int64 {
	if len(answer) > 0 && answer[0] == '-' && !c.spilt {
		return 1
	}
	return 0
}

// together answers x and the commands after it that have arrived, as long as each is about another
// key and changes nothing but that; XACKs may be about the same stream. It returns the first
// command that was not answered; nil if none has arrived.
func (c *conn) together(x *call) (next [][]byte, err error) {
	calls, reads := []*call{x}, x.verb.reads()
	for {
		if next, err = c.in.Ready(); next == nil || len(calls) == mostTogether || reads == readTogether {
			break
		}
		y := c.newCall(next)
		if y.verb == nil || !y.verb.together() || !y.verb.takes(len(next)) || len(x.args) < 2 {
			break
		}
		if len(calls) == 1 {
			if clear(c.keys); c.keys == nil {
				c.keys = make(map[uint64]*verb)
			}
			c.keys[c.hash(x.args[1])] = x.verb
		}
		key := c.hash(next[1])
		if before := c.keys[key]; before != nil && (before != y.verb || !y.verb.repeats) {
			break
		}
		c.keys[key] = y.verb
		calls, reads = append(calls, y), reads+y.verb.reads()
	}
	switch {
	case len(calls) > 1:
		c.runTogether(calls)
	case next != nil || err != nil || !c.owe(x):
		c.execute(x)
	}
	return next, err
}

// hash returns the hash of a key. Two keys with one hash count as the same key.
func (c *conn) hash(key []byte) uint64 { return maphash.Bytes(c.server.turns.seed, key) }

// runTogether answers commands at the same time, and puts the answers in their order.
func (c *conn) runTogether(calls []*call) {
	var group sync.WaitGroup
	batches := make(map[*verb][]*call)
	outs := make([]resp.Writer, len(calls))
	c.spilt = false
	begun := time.Now()
	glimpse := glimpses.Get().(*tasks.Task)
	defer keepGlimpse(glimpse)
	for i, x := range calls {
		c.begin(x, begun)
		outs[i].Three = c.answer.Three
		x.out = &outs[i]
		switch refusal := x.refusal(); {
		case refusal != "":
			x.out.Error(refusal)
		case x.verb.batch != nil:
			batches[x.verb] = append(batches[x.verb], x)
		case x.verb.flags&looks != 0 && x.peek(glimpse):
			x.verb.run(x)
		default:
			group.Go(func() { x.verb.run(x) })
		}
	}
	for v, list := range batches {
		if len(list) == len(calls) { // most pipelines are of one verb
			v.batch(list)
		} else {
			group.Go(func() { v.batch(list) })
		}
	}
	group.Wait()
	defer c.holdLarge()
	took, alike, failed := time.Since(begun), 0, int64(0)
	for i := range outs {
		failed += c.refused(outs[i].Buf)
		c.answer.Buf = append(c.answer.Buf, outs[i].Buf...)
		if alike++; i+1 == len(calls) || calls[i+1].verb != calls[i].verb {
			c.server.count(calls[i].verb, int64(alike), failed).took.Observe(took, alike)
			alike, failed = 0, 0
		}
	}
}
