// Package respapi serves a scheduler to clients of Redis: a key with a TTL is a task, and its
// expired event comes on time.
//
// A key is a task whose id is made from the key (package internal/keyid), whose payload is the
// value, and whose deadline is the end of the TTL. Its topic is that of the longest prefix in
// Config.Topics. A key without a TTL is a held task. A key exists as long as its task waits for its
// deadline. From then on the task is an expiry, which is delivered as any task is: to subscribers,
// to the readers of a stream, or in whatever other way the topic says.
//
//	bytes -> internal/resp: command -> table: verb -> handler -> tasks.Scheduler -> answer
//	deadline -> keyevent (a way of delivery) -> the hubs of all nodes -> subscribers
//	deadline -> ready -> XREADGROUP (Reserve) -> XACK (Settle)
//
// It owns the connections and their bounds, the table of verbs, the subscriptions and the entries
// of streams that are out. A verb decides nothing that the scheduler could decide. It may call
// packages tasks and tasks/task. It knows neither a ledger nor HTTP nor package cli.
//
// # The table
//
// All verbs stand in table.go, with their arity, flags, keys and scope; each family has a file with
// its handlers. What is not in the table is answered as Redis answers an unknown command.
//
// # Pipelines
//
// A connection has one goroutine, which reads commands and answers them in order. Reads of keys
// with which nothing is under way are answered where they are read (look.go). Other commands of a
// pipeline that have arrived together and are about different keys run at the same time, so that
// they wait for the ledger once. Commands about one key take effect in their order, but for XACKs
// of one stream, which run together.
//
// The goroutine does not wait for the ledger when a SET is all that has arrived: it reads on, and
// one goroutine sends the answers of all connections whose writes came with one batch (owed.go).
//
// # Transactions
//
// EXEC runs its commands on a draft, which reads each key once and keeps what the commands make of
// it. Then it writes each key once, on condition that it has the version that was read. If another
// client came first, the commands run again. So a transaction has one clock, and a watched key that
// has changed is found by the write itself. Keys are written one by one: other clients may come
// between. A command that makes a key of another one does not run on the draft, but between two
// parts of the transaction, as it does alone. exec.go has the order in which things are done,
// draft.go the keys.
//
//	queued calls -> plan -> draft: live, update (in memory) -> write -> answers and events
//
// # Turns
//
// Clients of this node change a key in turns. Those that wait with the same key are written
// together: the first of them runs the changes of all, each on what the one before has made of the
// key, and writes the last value (turns.go, chain.go). So a counter that many clients increment
// costs one write for all who wait, and not one for each. A chain stops after some milliseconds,
// since a client that takes no turn may change the key meanwhile.
//
// # Scripts
//
// EVAL runs a script of package internal/script on a draft of its own, or on that of EXEC. Its
// commands come one after the other, each with the answer of the one before, and what they make
// of a key may depend on another one. So a script that runs again may come to another end: what
// it has written by then is written once more, as it should be (draft.unwritten).
//
// # Subscribers
//
// An expired event is settled once a receiver has it: a subscriber that names the channel of the
// event, and whose machine has confirmed the bytes. taken.go has what that takes: who counts and
// has room, who was sent what, who stands still. doses.go keeps what was taken in the last minute:
// it is published again if no receiver has read it for sure.
//
//	DeliverBatch -> room? -> hub: events -> outputs -> taken? -> settled, a dose
//	                            stuck, reset: doses in doubt -> published again
//
// # Bounds
//
// Package edge has the rules for connections, for the bytes of commands and answers, and for what
// waits. A command has at most Config.MaxCommand bytes, and all commands that are being read
// together sixteen times as many. A connection that has not read 16 MiB of answers is not read
// from. Once answers of Config.MaxAnswers bytes wait for all clients, commands that tell what is
// stored are refused with TRYAGAIN; those that only write go on.
//
// An answer that is many times as long as its command is made piece by piece (conn.spill): once 16
// MiB wait for the client, the command waits too. A subscriber whose messages take up more than 32
// MiB is cut off, as in Redis. Once those of all subscribers take up more than 256 MiB, it is cut
// off from 1 MiB on.
//
// # What can fail
//
// Every error of the scheduler has one error code, see errors.go. TRYAGAIN means that nothing was
// done and that the command may be repeated; UNKNOWN that it may have been done. An answer that is
// no error comes after the ledger has the write.
package respapi
