// Package cluster is the part of a node that deals with the other nodes that share its ledger.
//
// It owns the calls between nodes (rpc.go, methods.go), the place of a task among them (each.go,
// route.go, forward.go, fanout.go), the directory of ids that callers have chosen (directory.go,
// reconciler.go), the hand-over of shards (drain.go, reclaim.go), receivers that wait at other
// nodes (demand.go, remotewaiter.go), the backlog that others help with (offloadout.go,
// offloadin.go), the settlement of what other nodes have (settleremote.go, forwarder.go), and the
// figures (gather.go, fleetfigures.go) and events (fleetevents.go, eventfeed.go) of all nodes.
//
// It calls the engine of this node, the ledger, and the relay that carries messages. The engine
// tells it of tasks and shards by the interface engine.Cluster.
//
// What can fail: another node does not answer or does not own a shard any more
// (task.ErrNodeAway, task.ErrUnknown after a write), or the ledger cannot tell where a task is
// (task.ErrUnavailable). A node without others never fails for their sake: each method does next
// to nothing there.
//
// # Locks
//
// Each room guards its state with a mutex of its own: demands, remoteWaiters, offloads, missing,
// indexing, draining, tombstones, lately, forwarder, messages, eventFeeds, figures. Engine.mu comes
// first, because the engine calls the room with it held; then that of one room; then that of
// lifetime, which counts goroutines. Under a room's mutex neither the engine, nor the ledger, nor
// another node is called, and no second room. The forwarder may be called under Engine.mu.
//
// What a room has read may have changed when it has called the engine, so it looks again: a
// demand that was dropped before its receiver was counted is put back (startSearch), a remote
// waiter that was dropped while it joined a queue leaves it (stand), an offload that was announced
// again goes on (offloads.end). What has to be atomic with a topic's queue is one operation of the
// engine: Queue, Give, RemoteTurn, Offloading. Terms of shards are read without a lock, see
// engine.Engine.Term.
//
// # The directory
//
// A node without others registers no ids. Once another node has joined, it registers new ids before
// creating the tasks, and existing ids in the background. Until it reports completion, the other
// nodes ask it about unregistered ids. An entry outlives its task by ten seconds, so that a
// repeated cancel finds the node that remembers the first one. An entry that a crash left behind
// does no harm: the owner of its shard replaces it when the id is used again, and the reconciler
// deletes it.
//
// # Deliveries for other nodes
//
// A task stays with its owner, in the state delivering, and only its receipt settles it. It counts
// against Config.MaxInFlight of the owner, and its lease runs out there. So it is ready again when
// the lease is over, whatever message is lost and whichever node dies.
//
//	Reserve finds nothing -> demand -> reserve: sent to node after node -> remote waiter there
//	ready there, the remote waiter's turn -> offer -> receivers here; the rest is returned
//	backlog there -> announced -> offload: taken into free places -> workers here -> outcomes
package cluster
