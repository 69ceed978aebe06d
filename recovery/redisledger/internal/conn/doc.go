// Package conn connects the ledger to Redis: standalone, behind Sentinel, or in Cluster mode.
//
// It owns the form of URLs, the connections and their timeouts, the text of all scripts, the
// classes of Redis' errors, and the wait for replicas. A [Client] sends no command twice: the
// rooms of the ledger repeat what may be repeated. A [Script] is harmless when it runs twice or
// late.
//
// It calls go-redis and no other package of the ledger.
//
// # What can fail
//
// Every command, with the error of go-redis. [Refused], [UnknownCommand], [HungUp], [TimedOut] and
// [WrongType] tell what such an error means, and [Client.Unsent] reports whether Redis did not
// execute the command. A connection to a replica fails with [ErrReplica].
package conn
