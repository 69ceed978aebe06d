// Package bulk reads many records from Redis, over lines of any speed.
//
// It owns connections of its own and the lanes, which size the chunks of one kind of records by how
// fast recent ones came. It calls packages conn and layout only, and knows no shard: callers name
// keys and fields.
//
// # What can fail
//
// [Reader.ReadMany] repeats a chunk that comes too late with fewer records or more time, and enters
// that in readiness. It returns other errors of Redis, the cause of its context, and that of the
// ledger's life.
package bulk
