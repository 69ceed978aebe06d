package respapi

import "bytes"

// Bounds of a transaction.
const (
	mostQueued      = 10_000  // commands
	mostQueuedBytes = 4 << 20 // bytes of them
	mostWatched     = 10_000  // keys of a connection
)

// A transaction is what MULTI has begun. EXEC runs its commands one after the other. Each of them
// is atomic; other clients may come between them, and a crash may leave the first ones done.
type transaction struct {
	queued []*call
	bytes  int
	spoilt bool // a command could not be queued: EXEC is refused
}

// queue keeps a command for EXEC.
func (c *conn) queue(x *call) {
	t := c.multi
	n := 0
	args := make([][]byte, len(x.args))
	for i, a := range x.args {
		args[i] = bytes.Clone(a)
		n += len(a) + 32
	}
	if len(t.queued) == mostQueued || t.bytes+n > mostQueuedBytes {
		t.spoilt = true
		x.out.Error("ERR a transaction must have at most 10000 commands, and 4 MiB of them")
		return
	}
	t.queued, t.bytes = append(t.queued, &call{c: c, ctx: x.ctx, verb: x.verb, args: args, queued: true}), t.bytes+n
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
	x.c.multi, x.c.watched = nil, nil
	x.out.OK()
}

// runExec answers EXEC. It is refused if a watched key has changed since WATCH. The keys are
// compared before the first command runs: a client that changes one of them after that, while the
// commands run, is not noticed, unlike in Redis.
func runExec(x *call) {
	t := x.c.multi
	x.c.multi = nil
	if t != nil {
		defer func() { x.c.watched = nil }()
	}
	switch {
	case t == nil:
		x.out.Error("ERR EXEC without MULTI")
		return
	case t.spoilt:
		x.out.Error(errAborted)
		return
	case x.c.server.crowded():
		x.out.Error(errUnread)
		return
	}
	if len(x.c.watched) > 0 {
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
		y.out = x.out
		y.verb.run(y)
	}
}
