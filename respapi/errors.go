package respapi

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// The texts of Redis for what its clients know.
const (
	errSyntax        = "ERR syntax error"
	errNotInteger    = "ERR value is not an integer or out of range"
	errWrongType     = "WRONGTYPE Operation against a key holding the wrong kind of value"
	errStringLarge   = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
	errNoKey         = "ERR no such key"
	errLoading       = "LOADING Redis is loading the dataset in memory"
	errNoAuth        = "NOAUTH Authentication required."
	errWrongPass     = "WRONGPASS invalid username-password pair or user is disabled."
	errNestedMulti   = "ERR MULTI calls can not be nested"
	errAborted       = "EXECABORT Transaction discarded because of previous errors."
	errChannelDenied = "NOPERM this token has no permissions to access one of the channels used as arguments"
	errMessageLong   = "ERR a message to subscribers of other nodes must be at most 512 KiB long"
	errMaxClients    = "ERR max number of clients reached"
	errTokenClients  = "ERR max number of clients reached: this token has half of resp_max_connections"
	errElsewhere     = "ERR there is database 0 alone, and this connection has selected another one; SELECT 0 goes on"
	errKeyTooLong    = "ERR the key must be at most 512 bytes long"
	errUnread        = "TRYAGAIN too many answers wait for clients that do not read them; nothing was done"
	errCommandLarge  = "ERR Protocol error: the command is too large"
)

// errorText returns the answer for an error of the scheduler. An error without an entry here is one
// of which the caller can know nothing but its text.
func errorText(err error) string {
	code := "ERR"
	switch {
	case errors.Is(err, tasks.ErrReplaying):
		return errLoading
	case errors.Is(err, errOtherTopic):
		return errWrongType
	case errors.Is(err, tasks.ErrTooLarge):
		return errStringLarge
	case errors.Is(err, tasks.ErrNotGranted), errors.Is(err, edge.ErrWithdrawn):
		code = "NOPERM"
	case errors.Is(err, tasks.ErrOverloaded):
		code = "OOM"
	case isOpen(err):
		code = "UNKNOWN"
	case errors.Is(err, tasks.ErrUnavailable), errors.Is(err, tasks.ErrDraining), errors.Is(err, tasks.ErrClosed),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = "TRYAGAIN"
	}
	return code + " " + err.Error()
}

// graver returns the error of a call that did several things, of which two have failed: that an
// outcome is open weighs more than that nothing was done. Without a failure it is err.
func graver(err, failed error) error {
	if failed == nil || isOpen(err) {
		return err
	}
	return failed
}

// isOpen reports whether what failed may have been done.
func isOpen(err error) bool {
	return errors.Is(err, tasks.ErrUnknown) || errors.Is(err, tasks.ErrUnrecorded)
}
