package respapi

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/respapi/internal/resp"
)

const (
	// mostTogether is how many commands of a pipeline run at the same time. Those that only read
	// are fewer: their answers are in memory together, and do not wait for the ledger.
	mostTogether, readTogether = 256, 16
	// signInWithin is how long a client has to say who it is, where there are tokens.
	signInWithin = 30 * time.Second
)

// A conn is the connection of a client. Its goroutine reads commands and answers them; all fields
// without a comment about other goroutines are its own.
type conn struct {
	server *Server
	nc     net.Conn
	place  *edge.Conn // nc, if the server has made its listener
	in     *resp.Reader
	out    *output     // any goroutine may push
	answer resp.Writer // answers that are not sent yet
	from   int         // where the answer to the command under way begins in it
	spilt  bool        // the beginning of that answer was sent
	id     int64
	since  time.Time
	ending bool  // the connection ends after the answers
	left   error // by which the client has left; nil: it has not

	unsent []unwritten // entries of groups among the answers that are not sent yet
	owed   owed        // the answer of a write that is under way

	held struct { // of the budgets of the server
		reading *edge.Holding // by large commands that are being read
		made    *edge.Holding // by answers that are not sent yet
		kept    *edge.Holding // by multi and watched
	}

	caller   *edge.Caller // nil: the client has not said who it is
	ctx      context.Context
	unfollow func() // ends what waits for the end of the caller's rights

	elsewhere  bool // it has selected a database that there is not
	silence    silence
	multi      *transaction // nil: none was begun
	watched    []watched
	keys       map[uint64]*verb // by hashes of the keys of commands that run at the same time
	subs       subscriber
	subscribed int // channels and patterns
	shown      atomic.Pointer[shown]

	reading     sync.Mutex // guards the deadline of reads, and what follows
	interrupted bool

	last    atomic.Int64 // Unix nanoseconds of the last command
	lastDid atomic.Pointer[verb]
}

// shown is what CLIENT LIST tells of a connection. Other goroutines read it.
type shown struct {
	name, library, version string
	three                  bool
}

// A silence says which answers CLIENT REPLY has suppressed.
type silence uint8

const (
	loud     silence = iota
	off              // no answers until CLIENT REPLY ON
	skipNext         // of CLIENT REPLY SKIP: the next command has no answer
	skipThis
)

func (s *Server) newConn(nc net.Conn) *conn {
	c := &conn{server: s, nc: nc, place: edge.ConnOf(nc), id: s.lastID.Add(1), since: time.Now(), unfollow: func() {}}
	c.held.reading, c.held.made, c.held.kept = s.reading.For(nil), s.unread.For(nil), s.kept.For(nil)
	c.out = newOutput(nc, &s.budgets, func(bytes int) {
		s.counts.slow.Add(1)
		s.log.Warn("a subscriber does not read its messages and is cut off", "client", nc.RemoteAddr().String(), "bytes", bytes)
	})
	c.in = resp.NewReader(nc, resp.Limits{Command: s.cfg.MaxCommand, Take: c.takeRoom})
	c.subs = subscriber{out: c.out, callers: s.cfg.Callers, channels: make(map[string]int), patterns: make(map[string]int)}
	c.shown.Store(&shown{})
	c.last.Store(c.since.UnixNano())
	if s.cfg.Callers == nil {
		c.setCaller(edge.Anyone)
		c.place.Begin() // until it sends a command
	} else {
		c.setCaller(nil)
	}
	return c
}

// change changes what is shown of the connection.
func (c *conn) change(f func(*shown)) {
	s := *c.shown.Load()
	f(&s)
	c.shown.Store(&s)
}

// begin notes that a command begins.
func (c *conn) begin(x *call, now time.Time) {
	c.last.Store(now.UnixNano())
	c.lastDid.Store(x.verb)
}

// Dismiss is interrupt, for the end of the server.
func (c *conn) Dismiss() { c.interrupt() }

// Cut closes the connection at once.
func (c *conn) Cut() { c.nc.Close() }

// interrupt ends what reads from the client, and each further read until resume is called. Any
// goroutine may call it. Without resume the connection ends once its commands are answered.
func (c *conn) interrupt() {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.interrupted = true
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
}

// resume lets the connection read again, without a bound of time.
func (c *conn) resume() {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.interrupted = false
	_ = c.nc.SetReadDeadline(time.Time{})
}

// readUntil bounds how long reads wait for the client; the zero time: they have no bound. It does
// nothing while the connection is interrupted. Any goroutine may call it.
func (c *conn) readUntil(t time.Time) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if !c.interrupted {
		_ = c.nc.SetReadDeadline(t)
	}
}

// Serve answers commands until the client leaves, or after Dismiss.
func (c *conn) Serve() {
	defer c.nc.Close()
	defer c.in.Close()
	defer c.out.close()
	defer c.leave()
	defer c.held.made.Free()
	defer c.forget()
	defer c.owed.stop()
	for !c.ending {
		args, err := c.in.Next()
		c.settle()
		if err != nil {
			c.left = err
			c.tell(err)
			break
		}
		if c.caller != nil {
			c.place.Arrived()
		}
		if err = c.pipeline(args); err == nil {
			err = c.flush()
		}
		if err != nil {
			return
		}
	}
	_ = c.flush()
}

// tell answers an error of the reader, after which the connection ends.
func (c *conn) tell(err error) {
	var wrong *resp.ProtocolError
	switch {
	case errors.As(err, &wrong):
		c.server.counts.badInput.Add(1)
		c.answer.Error("ERR " + wrong.Error())
	case errors.Is(err, resp.ErrTooLarge):
		c.server.counts.badInput.Add(1)
		c.answer.Error(errCommandLarge)
	}
}

// pipeline answers a command, and all that have arrived with it.
func (c *conn) pipeline(args [][]byte) error {
	var err error
	for args != nil && err == nil && !c.ending {
		x := c.newCall(args)
		if x.verb == nil && isHTTP(args[0]) {
			c.server.counts.badInput.Add(1)
			c.server.log.Warn("a client of the Redis port speaks HTTP and is cut off", "client", c.nc.RemoteAddr().String())
			c.ending = true
			break
		}
		switch {
		case x.verb == nil || !x.verb.together() || c.multi != nil || c.silence != loud:
			c.execute(x)
			args, err = c.in.Ready()
		case x.verb.flags&looks != 0:
			args, err = c.look(x)
		default:
			args, err = c.together(x)
		}
		if err == nil && len(c.answer.Buf) >= flushAt {
			err = c.flush()
		}
	}
	if err != nil && !c.ending {
		c.left = err
		c.tell(err)
		c.ending = true
		err = nil
	}
	return err
}

// isHTTP reports whether what stands for a name begins a request of HTTP, or a line of it. A page
// of the web could have a browser send one, whose body would be commands. Redis ends such a
// connection too.
func isHTTP(name []byte) bool { return is(name, "post") || is(name, "host:") }

// takeRoom counts bytes by which the buffer of commands grows.
func (c *conn) takeRoom(bytes int) bool {
	if bytes > 0 {
		return c.held.reading.Take(int64(bytes))
	}
	c.held.reading.Add(int64(bytes))
	return true
}

// holdLarge counts the answers that were made as unread, once they make a difference to the budget
// of all connections, and takes back what was counted of those that were dropped.
func (c *conn) holdLarge() {
	if n := int64(len(c.answer.Buf)) - c.held.made.Bytes(); n >= flushAt || n < 0 {
		c.held.made.Add(n)
	}
}

// spill sends what a command has answered so far, once that is much, so that no answer is whole in
// memory. If the client has gone, the rest of the answer is dropped; the command goes on.
func (c *conn) spill() {
	switch {
	case len(c.answer.Buf) < flushAt:
	case c.silence == off, c.silence == skipThis:
		c.answer.Buf = c.answer.Buf[:c.from]
		c.holdLarge()
	default:
		if err := c.flush(); err != nil {
			c.ending = true
		}
		c.out.await()
		c.spilt = true
	}
}

// flush sends the answers.
func (c *conn) flush() (err error) {
	c.held.made.Free() // the output counts what it does not send at once
	if len(c.answer.Buf) > 0 {
		err = c.out.send(c.answer.Buf, c.unsent)
		c.unsent, c.from = nil, 0
	}
	if c.answer.Buf = c.answer.Buf[:0]; cap(c.answer.Buf) > restingOutput {
		c.answer.Buf = nil
	}
	return err
}

// blocked calls f, which waits. Its context ends when the client leaves, or the server ends.
// Arguments of the command are not valid in f, nor after it. It reports whether the client is still
// there, as far as is known. How long it takes does not count as time of the command.
func (x *call) blocked(f func(ctx context.Context)) bool {
	since := time.Now()
	defer func() { x.waited += time.Since(since) }()
	if err := x.c.flush(); err != nil {
		x.c.ending = true
		return false
	}
	return x.whileThere(0, f)
}

// whileThere calls f, which takes long. Its context ends when the server ends, when the caller
// loses its rights, or when the client has left; that is looked for once f has taken this long. The
// rest is as of blocked.
func (x *call) whileThere(unwatched time.Duration, f func(ctx context.Context)) bool {
	c := x.c
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer context.AfterFunc(c.caller.Life(), cancel)()
	if c.ending { // a command before it in the transaction has found that out
		cancel()
	}
	ended, left := make(chan struct{}), false
	watch := time.AfterFunc(unwatched, func() {
		defer close(ended)
		for {
			if err := c.in.Peek(); err != nil {
				if !isTimeout(err) && !errors.Is(err, io.ErrShortBuffer) {
					left = true
					cancel()
				}
				return
			}
		}
	})
	f(ctx)
	if !watch.Stop() {
		c.interrupt()
		<-ended
		c.resume()
	}
	c.recheck() // a bound for a client without a token was not set meanwhile
	if left || c.server.ending.Err() != nil {
		c.ending = true
	}
	return !left
}
