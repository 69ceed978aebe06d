package respapi

import (
	"bytes"
	"slices"

	"github.com/lapsehq/lapse/tasks"
)

// Bounds of a transaction.
const (
	mostQueued    = 10_000    // commands
	mostWatched   = 1000      // keys of a connection
	mostKept      = 4 << 20   // bytes of both
	mostDraft     = 64 << 20  // bytes of the keys that EXEC has read and will write
	mostTurns     = 64        // keys for whose turns EXEC waits; with more it does without
	mostKeptInAll = 256 << 20 // of all connections
	// What a command, one of its arguments, and a watched key take beside their bytes.
	queuedOverhead, argumentOverhead, watchedOverhead = 192, 32, 192
	// keyOverhead is what a key of a draft takes.
	keyOverhead = 1500
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

// A transaction is what MULTI has begun.
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

// A watched key is what EXEC compares.
type watched struct {
	key     key
	version tasks.Version // the zero Version: it did not exist
}

// runWatch answers WATCH.
func runWatch(x *call) {
	c := x.c
	if c.multi != nil {
		x.out.Error("ERR WATCH inside MULTI is not allowed")
		return
	}
	fresh, n := make([]key, 0, len(x.args)-1), 0
	for _, name := range x.args[1:] {
		k, ok := x.key(bytes.Clone(name))
		if !ok {
			return
		}
		if !slices.ContainsFunc(c.watched, func(w watched) bool { return w.key.id == k.id }) {
			fresh, n = append(fresh, k), n+watchedOverhead+2*len(name)
		}
	}
	const tooMany = "ERR a connection must watch at most 1000 keys, and 4 MiB of them"
	problem := tooMany
	if len(c.watched)+len(fresh) <= mostWatched {
		problem = c.keep(n, tooMany)
	}
	if problem != "" {
		x.out.Error(problem)
		return
	}
	for _, k := range fresh {
		t, err := x.live(x.ctx, &k)
		if err != nil {
			x.fail(err)
			return
		}
		c.watched = append(c.watched, watched{k, versionOf(t)})
	}
	x.out.OK()
}

// runUnwatch answers UNWATCH.
func runUnwatch(x *call) {
	if x.queued {
		x.c.watched = nil // EXEC forgets the rest
	} else {
		x.c.forget()
	}
	x.out.OK()
}
