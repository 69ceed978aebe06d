package respapi

import (
	"context"
	"crypto/sha256"
	"slices"

	"github.com/lapsehq/lapse/tasks"
)

// A Scope is a set of parts of the table that a caller may use.
type Scope uint8

// The scopes, which are those of tokens of the HTTP API.
const (
	ScopeSchedule Scope = 1 << iota // keys
	ScopeReceive                    // streams, and subscriptions to expired events
	ScopeRead                       // what changes nothing
	ScopeAdmin                      // everything

	anyScope = ScopeSchedule | ScopeReceive | ScopeRead | ScopeAdmin
)

// A Caller is a client that has given a token, or any client of a server without tokens.
type Caller struct {
	Name   string
	Scopes Scope
	Grant  *tasks.Grant // nil: all topics
}

// A Digest is the SHA-256 of a password, which is the text of a token.
type Digest [sha256.Size]byte

// openCaller is the caller of a server without tokens.
var openCaller = &Caller{Name: "default", Scopes: anyScope}

// may reports whether the caller may use a verb.
func (c *Caller) may(scope Scope) bool { return c.Scopes&(scope|ScopeAdmin) != 0 }

// mayUse reports whether the caller may use a topic, and learn how many tasks it has.
func (c *Caller) mayUse(topic string) bool { return c.Grant.Allows(topic) }

// mayUseAll reports whether the caller may use all topics.
func (c *Caller) mayUseAll() bool {
	return c.Grant == nil || len(c.Grant.Topics) == 0 || slices.Contains(c.Grant.Topics, "*")
}

// context returns the context of the caller's calls.
func (c *Caller) context(ctx context.Context) context.Context {
	if c.Grant == nil {
		return ctx
	}
	return tasks.WithGrant(ctx, c.Grant)
}

// authenticate makes the connection that of the caller with this password. It reports false, and
// changes nothing, if there is none.
func (c *conn) authenticate(password []byte) bool {
	digest := Digest(sha256.Sum256(password))
	epoch := c.server.epoch.Load()
	caller, ok := c.server.cfg.Authenticate(digest)
	if ok {
		c.digest, c.epoch = digest, epoch
		c.setCaller(caller)
	}
	return ok
}

// recheck looks up the token of the connection again if the tokens have changed.
func (c *conn) recheck() {
	epoch := c.server.epoch.Load()
	if c.caller == nil || c.epoch == epoch || c.server.cfg.Authenticate == nil {
		return
	}
	caller, ok := c.server.cfg.Authenticate(c.digest)
	if !ok {
		caller = nil
	}
	c.epoch = epoch
	c.setCaller(caller)
}

// setCaller sets who the client is; nil: it has not said so.
func (c *conn) setCaller(caller *Caller) {
	c.caller = caller
	c.in.SetUnknown(caller == nil)
	c.ctx = c.server.ending
	if caller != nil {
		c.ctx = caller.context(c.server.ending)
	}
	c.tellHub()
}
