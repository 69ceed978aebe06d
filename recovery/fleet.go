package recovery

import (
	"context"
	"time"
)

// A Fleet is a ledger that several nodes share. Each node holds shards: at first those of its
// own name, later also shards that it has adopted from other nodes.
//
// A shard's number, where a method takes one, stands for one term: the time from acquiring a
// shard until it is lost or transferred. A shard that is acquired again gets another number, until
// the caller has called Forget for the old one. The numbers below Terms.Shards are the node's
// own shards that it held when it was adopted; later ones come with Watcher.Acquired.
//
// Shards change hands in three ways, each by one compare-and-set of the owner's token:
//
//   - adopted: the holder has sent no heartbeat for so long that it counts as dead. The
//     ledger adopts its shards by itself, as far as Watcher.Room allows.
//   - transferred: the holder hands the shard to a node that has asked for it, and that node
//     accepts it.
//   - lost: another node adopted the shard while this process was cut off. The process
//     notices when a batch is refused or a heartbeat is answered, and calls Watcher.Lost.
type Fleet interface {
	Ledger
	Rewinder
	DeadScanner // a node that acquires a shard must know its dead records; errors: as of ScanShard
	Membership
	Ownership
	Locator
}

// Membership is what a process knows of the nodes, its own included, and tells them of itself.
type Membership interface {
	// Standing returns the state of this process among the other nodes. It needs no round trip.
	Standing() Standing
	// Peers lists the nodes in order of their names, this one included, as this process last
	// saw their heartbeats. Held and Adopted are not filled in. It costs next to nothing.
	Peers(ctx context.Context) ([]Node, error)
	// Nodes is Peers of this moment, with Held and Adopted; it includes a node that has just
	// started. For Held and Adopted it reads the owners of all shards, unless they were read
	// within the last second, once for all callers that wait.
	Nodes(ctx context.Context) ([]Node, error)
	// OpenSpool tells the other nodes the name of this node's spool, which may have tasks that the
	// ledger lacks from then on; empty: it has no spool. The name stays for the next process of the
	// node. If a former process has left another spool, which may have tasks, that one is missing:
	// see Node.MissingSpools.
	OpenSpool(ctx context.Context, spool string) error
	// EmptiedSpool tells them that the spool has no tasks, and will get none.
	EmptiedSpool(ctx context.Context) error
	// GiveUpSpools says that the missing spools of a node will not come back. It does nothing for
	// a node that is not registered.
	GiveUpSpools(ctx context.Context, node string) error
}

// Ownership is what a process does with the shards that it holds and that change hands.
type Ownership interface {
	// ShardID names the shard of a term.
	ShardID(shard int) ShardID
	// Position names the state of a shard whose last batch was answered. It changes with every
	// batch, when the ledger loses writes, and when the shard changes hands. It fails between such
	// a loss and the end of Watcher.Rewound.
	Position(shard int) (string, error)
	// ReadAhead reads a shard that another node holds, before it is transferred to this one: the
	// pending records with their data, and of the dead what ScanDead gives, with the data of those
	// that the ledger may still lose because they died lately. It fails unless the shard is at that
	// position when everything was read. whole reports whether the pending records and their index
	// agree; if not, ScanShard repairs the index later. pending and dead may keep the entries.
	ReadAhead(ctx context.Context, shardID ShardID, position string, pending func([]Entry) error, dead func(Entry)) (whole bool, err error)
	// Transfer hands a shard to another node, if it is at that position. After an error it may be
	// repeated; after ErrUnanswered it must be, with the same node and position. It returns ErrLost
	// when the shard has another owner by now, also if that is the given node. It fails, and calls
	// Watcher.Rewound, when the ledger has lost writes of the shard.
	Transfer(ctx context.Context, shard int, to, position string) error
	// Accept takes over a shard that its holder has transferred to this node, and calls
	// Watcher.Acquired. It reports false when another node owns the shard. If the ledger has lost
	// the hand-over to that node, Accept repeats the hand-over. A hand-over that was repeated may
	// have lost writes too: its receiver calls Watcher.Rewound after Watcher.Acquired.
	Accept(ctx context.Context, shardID ShardID) (bool, error)
	// Forget says that the caller has dropped all it knew of a shard that was lost or transferred,
	// so that the shard's number may be used for another term.
	Forget(shard int)
}

// A Locator finds the holders of shards, whichever nodes they are.
type Locator interface {
	// Locate returns the holder of a shard. Unless anew, it may return an earlier answer.
	Locate(ctx context.Context, shardID ShardID, anew bool) (Holder, error)
	// ShardIDs lists every shard that a registered node has ever used, held or not. It reads the
	// registry anew, and fails while the registry may lack a node.
	ShardIDs(ctx context.Context) ([]ShardID, error)
	// Holders returns the holders of these shards. It leaves out shards that no node has ever
	// held and those that were retired because they were empty. It reads the owners anew, once
	// for all callers that wait, and fails if it cannot read one of them.
	Holders(ctx context.Context, shardIDs []ShardID) (map[ShardID]Holder, error)
}

// A Holder names the process that holds a shard.
type Holder struct {
	// Shard is the number under which this process holds the shard, or -1.
	Shard int
	// Node is the name of the holder. It is empty if no node has ever held the shard, or if
	// the shard was retired because it was empty.
	Node string
	// Live reports whether the holder sends heartbeats. If not, another node is about to
	// adopt the shard.
	Live bool
	// Retired: no node holds the shard, because it was empty. Accept takes it if it is one of
	// the node's own that is in use; otherwise no node will hold it again.
	Retired bool
}

// Standing is the state of a process among the nodes of its ledger.
type Standing struct {
	// Alone: no other node is registered, so none can adopt anything.
	Alone bool
	// Certain: no other node can have adopted what this process holds. Its last answered
	// heartbeat is recent enough, or it is alone, and Watcher.Lost was called for all that it lost.
	Certain bool
	// Acquiring: it has acquired shards, or is about to, for which Watcher.Acquired was not called
	// yet. Until then memory may lack ids that the ledger has.
	Acquiring bool
	// Doubts counts how often the Directory may have lost entries. Doubtful: it may have lost
	// some within the last failover time, and nodes may not have registered their ids anew.
	Doubts   uint64
	Doubtful bool
	// FailoverAfter is for how long a node must send no heartbeat before others adopt its shards.
	FailoverAfter time.Duration
}

// A Directory maps ids that callers have chosen, which do not contain a shard id, to shards. The
// record of an id is in the shard where the id is registered, or will be. A node registers an id
// before it creates the record. Only the node that holds a shard registers ids under it or
// removes them.
//
// A node that is alone registers nothing. When another node starts, it registers the ids that it
// has, and then calls MarkIndexed. Until then, an id that is not registered may be one of its ids.
type Directory interface {
	// Lookup returns where ids are registered, in the order of ids; ShardID is 0 where one is not
	// registered.
	Lookup(ctx context.Context, ids []string) ([]DirectoryEntry, error)
	// Update applies each change whose Old is what the directory has, and returns, in the order
	// of changes, what the directory has now. A change that was applied before counts as
	// applied. An id may come once. After an error the outcome is open, and the changes may be
	// repeated. With ErrFull it still returns what the directory has: only new ids are missing.
	Update(ctx context.Context, changes []DirectoryUpdate) ([]DirectoryEntry, error)
	// MarkIndexed tells the other nodes whether all ids of this node are registered. The mark stays
	// for the next process of the node. A process that is alone and wants to stop registering must
	// clear the mark first, and then check again that it is alone.
	//
	// A fleet clears the mark by itself when it acquires shards while some node has ids that are
	// not registered. The first MarkIndexed(true) after that is refused, because its caller may not
	// have known of those shards: it registers their ids and calls again. A node should transfer no
	// shard before its own ids are registered.
	MarkIndexed(ctx context.Context, indexed bool) error
	// Unindexed names the other nodes whose ids may not all be registered: live nodes, and dead
	// nodes that still hold shards. While the directory is doubtful, see Standing, it names
	// all live nodes. It costs next to nothing.
	Unindexed(ctx context.Context) ([]string, error)
}

// DirectoryScanner is implemented by a Directory that can list its entries, so that entries
// whose record is gone can be found.
type DirectoryScanner interface {
	// ScanDirectory visits about a thousand entries, in any order, and returns the position of
	// the next call; it is empty at the beginning and at the end. Entries that come or go
	// meanwhile may be left out, or come twice.
	ScanDirectory(ctx context.Context, position string, visit func(id string, f DirectoryEntry)) (next string, err error)
}

// A DirectoryEntry says in which shard an id is registered. The nonce tells it from earlier entries
// of the same id in the same shard, so that a removal that was meant for an earlier entry does not
// remove a later one.
type DirectoryEntry struct {
	ShardID ShardID
	Nonce   uint32
}

// A DirectoryUpdate changes where an id is registered; the zero DirectoryEntry means that it is not
// registered.
type DirectoryUpdate struct {
	ID       string
	Old, New DirectoryEntry
}

// A Bus carries messages between the nodes of a fleet, in no order, each at most once. A
// message may be lost.
type Bus interface {
	// Listen begins to receive messages that are sent to this node or to all. It is called
	// once, after Adopt. Calls of receive come one at a time; receive may keep the message.
	// Listening ends with StopListening, or with Close of the ledger.
	Listen(receive func(message []byte)) error
	// StopListening ends listening, for good. When it returns, no call of receive is under way or
	// will come, and a message that is sent from then on is unheard, where the bus can tell. What
	// was sent before is received first, unless ctx ends.
	StopListening(ctx context.Context)
	// Send sends a message to a node, or to all others if node is empty. An error means that
	// the message may not have been sent; ErrUnheard means that no node received it.
	Send(ctx context.Context, node string, message []byte) error
}
