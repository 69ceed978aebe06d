// Package tasks takes tasks in, remembers them through crashes, and delivers each one when it is
// due and never before. Applications embed this package with one ledger:
//
//	ledger, err := diskledger.Open("./lapse-data", diskledger.Options{})
//	s, err := tasks.Open(ctx, ledger, tasks.Config{})
//	err = s.Handle("order.unpaid", func(ctx context.Context, d *tasks.Delivery) error {
//		return orders.Cancel(ctx, d.ID)
//	})
//	_, err = s.Schedule(ctx, tasks.Request{ID: "order-42", Topic: "order.unpaid", Delay: 30 * time.Minute})
//
// It owns the Scheduler, which checks each call and then asks the engine, which is all that one
// node does, or the cluster, which deals with other nodes. It knows no particular ledger, no way of
// delivery and no HTTP.
//
// What can fail: each method names its errors. ErrUnavailable means that nothing was done and the
// call may be repeated, ErrUnknown that it may have been done. A lost ledger, or a lost name of the
// node, ends the scheduler (Done, Err).
//
// # Rooms
//
//	package task              the words: Task, Request, Delivery, settings, errors. Aliases are here
//	package internal/engine   one node: the life of its tasks, the sweep, the locks
//	package internal/cluster  many nodes: calls, directory, hand-over, receivers and workers elsewhere
//	package internal/relay    calls over a bus that may lose messages
//
// In package internal/cluster:
//
//	route, forward, shared    finds the node that has a task, and asks it
//	rpc, methods              typed calls between nodes
//	fanout, snapshot          one query to all nodes; list, purge, dead, deletetopic use it
//	directory, reconciler     ids that callers have chosen, unique among all nodes; conflict
//	reclaim, changehands      shards come home and move; drain: all of them leave
//	demand, remotewaiter      receivers of one node, tasks of another
//	offloadout, offloadin     a backlog of one node, workers of another
//	settlefar, forwarder      settlements of tasks that another node has
//	rooms                     what the engine tells them: engine.Cluster
//
// docs/architecture.md has the way of one task through them.
//
// # What flows where
//
//	Schedule -> engine: store + committer -> ledger    accepted: on record
//	committed -> wheel -> fired -> a topic's ready queue
//	ready -> deliver (handler) or Reserve (pull) -> the receiver
//	receiver -> settle -> committer -> ledger         finished: off the record
//	sweep: whatever should have moved on and has not
//
// The states of a task, the sweep and what a task costs in memory are documented in package
// internal/engine, and for users in docs/protocol.md.
//
// # Many nodes
//
// With a ledger that is a recovery.Fleet, several nodes share the tasks. Each holds shards,
// and a changing set of them: it adopts those of nodes that have died, gets those of its
// own that others hold, hands over what it is asked for, and notices what it has lost. What
// it holds it decides about alone, as a single node does; with any other ledger that is
// everything, for ever.
//
// A shard is held from one Watcher.Acquired, or Open, until memory has forgotten it:
//
//	acquired  it is not known yet which tasks are dead in it: nothing is created there
//	loading   its tasks come into memory, and are delivered as they come; for ids that were
//	          not met yet the ledger is asked
//	active
//	draining  another node has asked for it. Nothing new is begun with its tasks: creations,
//	          moves and cancellations are answered ErrUnavailable, what falls due is set
//	          aside. What is under way is finished; open deliveries are recorded with their
//	          leases. Then the ledger changes its owner, or all goes on as it was
//	evicting  it is another node's: its tasks leave memory, some at a time. Those that are
//	          busy do when their writes have been answered: ErrUnavailable if they were never
//	          sent, ErrUnknown if they may have landed
//
// A shard that comes back before it was evicted is read only then: its tasks have the same
// ids. What was finished here before does not count for what comes back, since an id
// may have been used again elsewhere.
//
// A delivery whose shard goes counts nevertheless. Its receipt is honoured by the new
// holder: from a hand-over it knows the lease; of a shard that was lost, as long as it has
// not begun the same attempt itself. What a handler of this process returns is sent
// there as a settlement, until it was heard or the lease is out; so is an acknowledgement
// that could not be recorded any more.
//
// What may go wrong, and how it shows: a task may be delivered by two nodes if one of
// them was cut off and did not know it (Config.OnOutage; Stats.UnsureDeliveries,
// ShardsLost, LostDeliveries). An answer about a task may be ErrUnavailable while its
// shard changes hands, or while this node may have lost it. Only the loss of the node's
// name ends a scheduler (Done, Err).
//
// Drain hands everything over to the other nodes.
//
// # Where a task is found
//
// With such a ledger that is also a recovery.Directory and a recovery.Bus, any node answers
// for any task. A task belongs to the shard that keeps its record, and only the node that
// holds that shard says anything about it. A node that is asked looks for it:
//
//	in memory, and among the dead     it is here
//	by its id, if that tells a shard  ids made by Lapse do, see recovery.ShardIDOf
//	in the directory                  ids that callers have chosen are registered there, before
//	                                  their tasks are created, so that two nodes which are
//	                                  asked for the same id at the same time create one task
//
// and then does what is asked itself, or asks the holder. Only the last of these can tell
// that a task does not exist, and only if the shard was held all the time. A receipt names
// the shard itself. While a shard is on its way from one node to another, the search begins
// again until the caller's time is over, and then ends with ErrUnavailable: never with a
// wrong ErrNotFound. If the holder was asked for a change and has not answered, the
// outcome is ErrUnknown.
//
// A single node registers nothing. When another one joins, it registers what it creates from
// then on before, and all others in the background; until it has said that they are registered,
// it is asked for ids that are not. An entry outlives its task by ten seconds, so that a
// repeated cancel finds who remembers the first. One that was left behind by a crash
// does no harm: the holder of its shard replaces it when the id is used again, and a slow
// walk through the directory takes it out.
//
// # What passes between nodes
//
// Where several nodes share a ledger, a receiver gets what is ready at any of them. What
// it waits for is its topic's demand, which the other nodes know: there a remote waiter stands
// in the queue of receivers, whose turn comes like that of a receiver of that node.
// During a backlog, nodes with room deliver tasks of the one that has it. Either way the
// task stays where it is, delivering, and only the receipt settles it: so it counts
// against Config.MaxInFlight there, its lease runs out there, and whatever is lost on the
// way, or whichever node dies, it is ready again when the lease is over.
//
//	Reserve finds nothing -> demand -> reserve: asked, node after node -> remote waiter there
//	ready there, the remote waiter's turn -> offer -> receivers here; the rest is returned
//	backlog there -> announced -> help: asked while there is room -> workers here -> outcomes
//
// # Who hears of it
//
// Config.Observer hears of everything for as long as the scheduler runs. A Subscription
// comes and goes, tells in order what has happened to the tasks of some topics or all,
// and loses events rather than keep a task waiting.
//
// # Locks
//
// The state of the rooms is guarded by the mutex of the engine, Engine.Mu. No handler, observer,
// round trip to the ledger or call of another node is under it. The answers of a fan-out, the sums
// that Stats shows and the relay have mutexes of their own.
package tasks
