package respapi

import "bytes"

// Bounds of a transaction.
const (
	mostQueued    = 10_000    // commands
	mostWatched   = 1000      // keys of a connection
	mostKept      = 4 << 20   // bytes of both
	mostKeptInAll = 256 << 20 // of all connections
	// What a command, one of its arguments, and a watched key take beside their bytes.
	queuedOverhead, argumentOverhead, watchedOverhead = 192, 32, 192
)

const errKeptInAll = "TRYAGAIN the transactions of all connections, or of this token, have too many bytes; nothing was done"

// keep counts bytes that the connection keeps until EXEC. It returns the answer, and counts
// nothing, if that is too much: tooMany, or errKeptInAll.
func (c *conn) keep(n int, tooMany string) (problem string) {
	switch {
	case c.held.kept.Bytes()+int64(n) > mostKept:
		return tooMany
	case !c.held.kept.Take(int64(n)):
		return errKeptInAll
	}
	return ""
}

// forget drops the transaction and the watched keys.
func (c *conn) forget() {
	c.held.kept.Free()
	c.multi, c.watched = nil, nil
}

// A transaction is what MULTI has begun. EXEC runs its commands one after the other. Each of them
// is atomic; other clients may come between them, and a crash may leave the first ones done.
type transaction struct {
	queued []*call
	spoilt bool // a command could not be queued: EXEC is refused
}

// queue keeps a command for EXEC.
func (c *conn) queue(x *call) {
	t := c.multi
	n := queuedOverhead
	for _, a := range x.args {
		n += len(a) + argumentOverhead
	}
	const tooMany = "ERR a transaction must have at most 10000 commands, and 4 MiB of them"
	problem := tooMany
	if len(t.queued) < mostQueued {
		problem = c.keep(n, tooMany)
	}
	if problem != "" {
		t.spoilt = true
		x.out.Error(problem)
		return
	}
	args := make([][]byte, len(x.args))
	for i, a := range x.args {
		args[i] = bytes.Clone(a)
	}
	t.queued = append(t.queued, &call{c: c, verb: x.verb, args: args, queued: true})
	x.out.Simple("QUEUED")
}

func runMulti(x *call) {
	if x.c.multi != nil {
		x.out.Error(errNestedMulti)
		return
	}
	x.c.multi = &transaction{}
	x.out.OK()
}

func runDiscard(x *call) {
	if x.c.multi == nil {
		x.out.Error("ERR DISCARD without MULTI")
		return
	}
	x.c.forget()
	x.out.OK()
}

// runExec answers EXEC. It is refused if a watched key has changed since WATCH. The keys are
// compared before the first command runs: a client that changes one of them after that, while the
// commands run, is not noticed, unlike in Redis.
func runExec(x *call) {
	c, t := x.c, x.c.multi
	c.multi = nil
	if t != nil {
		defer c.forget()
	}
	switch {
	case t == nil:
		x.out.Error("ERR EXEC without MULTI")
		return
	case t.spoilt:
		x.out.Error(errAborted)
		return
	case c.crowded():
		x.out.Error(errUnread)
		return
	}
	if len(c.watched) > 0 {
		unchanged, err := x.isUnchanged()
		switch {
		case err != nil:
			x.fail(err)
			return
		case !unchanged:
			x.out.NullArray()
			return
		}
	}
	x.out.Array(len(t.queued))
	for _, y := range t.queued {
		c.recheck() // the rights count that the client has when a command runs
		y.ctx, y.out = c.ctx, x.out
		switch denied := y.denied(); {
		case denied != "":
			y.out.Error(denied)
		case y.verb.tells(y.args) && c.crowded():
			y.out.Error(errUnread)
		default:
			y.verb.run(y)
		}
		c.holdLarge()
		c.spill()
	}
}
