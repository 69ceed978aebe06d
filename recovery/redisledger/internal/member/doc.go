// Package member is this process among the nodes of a ledger, and the shards that it holds.
//
// It owns the name in the registry and the heartbeats, what is seen of the other nodes, and the
// shards: their tokens, the numbers of their batches, their adoption and their hand-over. Member
// has one mutex, and the watch of the peers has one; both are held for moments. The other mutexes
// are turns, which are held across round trips: turn of a shard, naming, taking, and those of the
// watch. No field that a reader needs waits behind a turn. A function whose name ends with InTurn
// is called with the turn held. None of all these mutexes is held while memory is called.
//
// Every call of the ledger comes through a door of redisledger.Ledger. A [Probe] is for the tests
// of the ledger, which know its insides.
//
// It may call packages conn, layout, clock, identity, mend and notice. It knows no other room: what
// it needs of the ledger's health and directory its [Config] has as functions.
//
// # What can fail
//
// A shard is lost (recovery.ErrLost) when its token is that of another process. A call whose answer
// is lost leaves its outcome open, and is repeated with the same token and number.
// [Member.Register] fails with recovery.ErrHeld when a live process has the name. A node that was
// cut off until the others had removed its name ends with recovery.ErrForgotten.
package member
