// Package layout says where and how the ledger's data is stored in Redis: every key, channel
// and reserved field, the bytes of each record, and the token of a shard's owner.
//
// It owns no state and calls no other package of the ledger. Data that later versions must read
// has this layout: its values change only together with [Version].
//
// # What can fail
//
// Decoding fails for bytes that this layout never writes: another program has damaged them, or a
// newer version wrote them. [ReadToken] does not fail; it returns an unreadable token instead.
package layout
