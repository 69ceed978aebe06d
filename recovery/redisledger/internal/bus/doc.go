// Package bus carries messages between the nodes of a ledger over the channels of Redis.
//
// It owns the subscriptions of this node and the choice between plain and sharded channels. It
// calls packages conn and layout only, and reads no message.
//
// # What can fail
//
// A message may be lost at any time. [Bus.Send] returns recovery.ErrUnheard if no node can have
// received it, and otherwise the error of Redis. [Bus.Listen] fails only where listening cannot
// succeed later; it repairs broken subscriptions itself.
package bus
