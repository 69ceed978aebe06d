// Package ids keeps the directory of ids that callers have chosen, which do not contain a shard id.
//
// It owns the buckets of the directory in Redis, and the lineage: which servers have answered, so
// that a server that may lack entries is noticed. It calls packages clock, conn and layout only. It
// knows no shard and no node; who may change an entry is the affair of its callers.
//
// # What can fail
//
// Every call, with the error of Redis; the outcome of [Directory.Update] is open then. Update
// returns recovery.ErrFull if Redis has no room for new ids. An entry that cannot be read fails
// [Directory.Lookup], and [Directory.ScanDirectory] leaves it alone.
package ids
