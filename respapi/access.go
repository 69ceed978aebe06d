package respapi

import (
	"time"

	"github.com/lapsehq/lapse/edge"
)

// authenticate makes the connection that of the caller with this password, which is the text of a
// token. It returns the answer, and changes nothing, if there is none, or it has too many
// connections.
func (c *conn) authenticate(password []byte) (problem string) {
	caller := c.server.cfg.Callers.Admit(c.ctx, string(password), c.nc.RemoteAddr().String())
	switch {
	case caller == nil:
		c.server.counts.guesses.Add(1)
		return errWrongPass
	case !c.place.Enter(caller):
		c.server.counts.refused.Add(1)
		return errTokenClients
	}
	c.setCaller(caller)
	return ""
}

// recheck looks up the token of the connection again if it has other rights than it had, or none.
// Each command comes after it, also those that a transaction has queued.
func (c *conn) recheck() {
	if c.caller == nil || !c.caller.Withdrawn() {
		return
	}
	now := c.server.cfg.Callers.Now(c.caller)
	if now != nil && !c.place.Enter(now) {
		now = nil // it has another name, which has too many connections
	}
	c.setCaller(now)
}

// setCaller sets who the client is; nil: it has not said so, and has signInWithin to do it.
func (c *conn) setCaller(caller *edge.Caller) {
	c.unfollow()
	c.caller, c.ctx, c.unfollow = caller, c.server.ending, func() {}
	c.in.SetUnknown(caller == nil)
	for _, h := range []*edge.Holding{c.held.reading, c.held.made, c.held.kept} {
		h.Pass(caller)
	}
	c.out.pass(caller)
	if caller == nil {
		c.place.Enter(nil)
		c.place.Begin()
		c.awaitSignIn()
	} else {
		c.place.Arrived()
		c.ctx = caller.Within(c.server.ending)
		c.unfollow = c.server.cfg.Callers.OnRemoval(caller, c.dismiss)
	}
	c.tellHub()
}

// part has events published again that the client has perhaps not read.
func (c *conn) part() {
	if !c.server.hub.hasSent(&c.subs) || c.out.isRead(c.left) {
		return
	}
	// At the end of the server, Close tells how many there are.
	if n := c.server.doubt(&c.subs); n > 0 && c.server.ending.Err() == nil {
		c.server.log.Warn("a subscriber has perhaps not read its last events: they are published again", "client", c.nc.RemoteAddr().String(), "events", n)
	}
}

// leave ends what the connection has with the server beside its socket.
func (c *conn) leave() {
	c.unfollow()
	c.unsubscribeAll()
	c.part() // which takes a moment: no one counts it meanwhile
}

// dismiss is called when the token of the connection was removed. A subscriber is cut off. Any
// other client learns it by its next command, which has to come soon.
func (c *conn) dismiss() {
	if c.server.hub.has(&c.subs) {
		c.nc.Close()
	} else {
		c.awaitSignIn()
	}
}

// awaitSignIn bounds the time until the client says who it is. Any goroutine may call it.
func (c *conn) awaitSignIn() { c.readUntil(time.Now().Add(signInWithin)) }
