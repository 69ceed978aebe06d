// Package redisledger keeps the record of a node's tasks in Redis: standalone,
// behind Sentinel, or in Cluster mode.
//
// A node's tasks are spread over shards, by a hash of the id. A shard has a set of pending ids,
// which a restart replays, and a hash of their records. The hash also holds the token of the
// shard's owner and the number of its last batch; package layout has every key and every byte. A
// batch is one script: it acts only with the owner's token and the next number, so that it is
// written whole and once, however often and however late it arrives. The first lines of every
// script say which accident it prevents.
//
// A node's name belongs to one process: the registry says which one, and its heartbeat is a
// counter. A process that starts under a name adopts at once when the holder has released the
// name or is known to have died, refuses when the holder lives, and otherwise watches its
// heartbeat for Options.FailoverAfter.
//
// # Rooms
//
// [Ledger] has the lifecycle and the doors: every call that asks Redis passes use, which refuses it
// before Adopt and after Close. The files of this package:
//
//	ledger            options, Open, Adopt, Close, use
//	fleet, directory  doors to member and ids
//	messages          the door to bus
//	read, scan, dead  records
//	settings          settings of topics; settingchanges: what has changed since a version
//	archive           rows that are kept for a while
//	spoolmark         up to which number a spool has been moved to Redis
//	checks, refusals  whether the servers are fit, and know the commands that are needed
//	public            Connect, ParseURL, WithoutSecrets: for other users of the same Redis
//	erase             deletes all that belongs to a prefix
//
// Below it:
//
//	internal/member   this node among the nodes: registry, heartbeats, peers, shards and batches
//	internal/ids      the directory of ids that callers have chosen
//	internal/bus      messages between nodes
//	internal/bulk     reads of many records
//	internal/notice   calls of memory
//	internal/mend     damaged keys
//	internal/identity one process among all others
//	internal/conn     connections and scripts
//	internal/layout   keys and bytes
//
//	internal/clock    time on machines that may be suspended
//
// Imports point down this list. The rooms from ids to identity do not know one another; member
// may use notice, mend and identity.
//
// # What can fail
//
// Adopt: with recovery.ErrHeld, recovery.ErrLayout, ErrUnfit when this Redis could lose tasks,
// ErrCommands when it is a proxy that lacks commands, or why Redis cannot be reached (with
// Options.Wait it waits for Redis instead).
//
// Apply: with recovery.ErrLost when the shard has another owner by now. After any other error
// the batch must be repeated; it keeps its number until it is confirmed. Redis has not executed
// it after NOSCRIPT, LOADING, READONLY, TRYAGAIN and MISCONF. After a timeout the outcome is
// unknown until the repeated batch's number tells. A Redis that is out of memory refuses new
// records: recovery.ErrFull.
//
// With Options.WaitReplicas a batch that too few replicas have counts as unanswered, though it
// was written. So a master that dies loses no confirmed batch.
//
// Redis itself can lose what it confirmed, in a failover, or by starting from an older file or
// from none. The owner notices by the sequence number, the epoch of the token, or a missing
// token. It claims the shard again and reports it, see recovery.Rewinder; the node that has the
// tasks in memory then makes the shard equal to its memory. A shard is lost only if another
// node may have adopted it meanwhile.
//
// # What Redis must allow
//
// An ACL user needs the keys that begin with Options.Prefix, the commands eval, evalsha, get,
// mget, set, setnx, del, hget, hmget, hset, hincrby, hdel, hlen, hexists, hgetall, hscan, sadd,
// srem, scard, sismember, smembers, sscan, zadd, zrem, zrangebylex, incr, exists, pexpire, rename,
// info, time, ping and hello, for another database than 0 select, and in Cluster mode cluster. With
// Options.WaitReplicas it needs wait, and in Cluster mode asking.
// To receive messages of other nodes it needs the channels that begin with Options.Prefix and
// "bus", and the commands publish, subscribe and unsubscribe, or in Cluster mode from Redis 7.0 on
// spublish, ssubscribe and sunsubscribe. Without the last one, a call of another node may wait in
// vain while this node stops.
package redisledger
