package recovery

import "context"

// A Fleet is a ledger that several nodes share. Each holds shards: at first those of
// its own name, and later also those that others have left behind.
//
// A shard's number, where a method takes one, stands for one term: the time from
// gaining a shard until it is lost or yielded. What is gained again has another
// number, until memory has called Forget for the old one. The numbers below
// Terms.Shards are those of the node's own shards that it held when it was adopted;
// others come with Watcher.Gained.
//
// Shards change hands in three ways, each by one compare-and-set of the owner's token:
//
//   - adopted: their holder has shown no sign of life for so long that it is dead. The
//     ledger sees to that by itself, as far as Watcher.Room allows.
//   - yielded: memory hands them to a node that has asked for them, and that node
//     accepts them.
//   - lost: others have adopted them while this process was cut off. It notices when
//     a batch is refused or a sign of life is answered, and is told by Watcher.Lost.
type Fleet interface {
	Ledger
	Rewinder

	// Home names the shard of a term.
	Home(shard int) Home
	// Locate tells who holds a shard. It may remember an earlier answer, unless anew.
	Locate(ctx context.Context, home Home, anew bool) (Holder, error)
	// Homes names every shard that a registered node has ever used, whether a node holds it or
	// not. It reads the registry anew, and fails while that may lack a node.
	Homes(ctx context.Context) ([]Home, error)
	// Holders tells who holds these shards, but for those that no node has ever held and those
	// that were retired because nothing was left in them. It reads their owners anew, once for
	// all callers that wait, and fails if it cannot tell of one.
	Holders(ctx context.Context, homes []Home) (map[Home]Holder, error)
	// Standing tells how this process stands among the others. It costs next to nothing.
	Standing() Standing
	// Peers lists the nodes in order of their names, this one included, as this process last
	// saw their heartbeats. Held and Adopted are not filled in. It costs next to nothing.
	Peers(ctx context.Context) ([]Node, error)
	// Nodes is Peers of this moment, a node that has just started included, with Held and
	// Adopted. For these it reads the owners of all shards, unless they were read within the
	// last second; once for all callers that wait.
	Nodes(ctx context.Context) ([]Node, error)
	// MarkSpooling tells the others whether this node may have tasks that only its spool has;
	// see Node.Spools. The next process of the node finds it as it was.
	MarkSpooling(ctx context.Context, spools bool) error

	// Yield gives a shard to another node. Its last batch must have been answered, and
	// no other one may follow. After an error it may be repeated, and must be after
	// ErrUnanswered, with the same node; it is ErrLost when the shard has passed to
	// somebody already, be it to that node.
	Yield(ctx context.Context, shard int, to string) error
	// Accept takes a shard over that its holder has yielded to this node, and calls
	// Watcher.Gained. It reports false when the shard is somebody else's, also if that was
	// forgotten meanwhile: then it sees to it that the other one gets it.
	Accept(ctx context.Context, home Home) (bool, error)
	// A node that gains a shard must know who is dead in it. Errors: as of ScanShard.
	DeadScanner
	// Forget tells that memory knows nothing any more of a shard that was lost or
	// yielded, so that its number may be used for another term.
	Forget(shard int)
}

// A Holder is who holds a shard.
type Holder struct {
	// Shard is the number under which this process holds it, or -1.
	Shard int
	// Node is the name of the holder; empty if nobody has ever held the shard, or
	// nobody does any more because nothing was left in it.
	Node string
	// Live tells that the holder shows signs of life. If not, somebody is about to
	// adopt the shard.
	Live bool
	// Retired: nobody holds the shard, as nothing was left in it. Accept takes it, if it is
	// one of the node's own that is in use; otherwise nobody will hold it again.
	Retired bool
}

// Standing is how a process stands among the nodes of its ledger.
type Standing struct {
	// Alone: no other node is registered. Nobody can adopt anything then.
	Alone bool
	// Certain: nobody else can have adopted what this process holds, since its last
	// answered sign of life is recent enough, or it is alone.
	Certain bool
	// Gaining: it has taken shards, or is about to, of which Watcher.Gained has not told
	// yet. Memory does not know all that is in the ledger then, nor that it does not.
	Gaining bool
	// Doubts counts how often the Directory may have lost entries. Doubtful: it may have
	// within the last failover time, and nodes may not have registered their ids anew.
	Doubts   uint64
	Doubtful bool
}

// A Directory is kept by a fleet for ids that do not tell their home: those that
// callers have chosen. Where an id is filed, there its record is, or will be: whoever
// creates a record files its id first, and only who holds a shard files ids under it
// or takes them out.
//
// A node that is alone files nothing. When it gets company, it files the ids that it has,
// and then says so by MarkIndexed; until then, an id that is not filed may be its.
type Directory interface {
	// Look returns where ids are filed, in their order; Home is 0 where one is not.
	Look(ctx context.Context, ids []string) ([]Filing, error)
	// File makes changes whose Old is what stands in the directory, and returns, in
	// their order, what stands there now. One that is made already counts as made. An id
	// comes once. After an error the outcome is open, and the changes may be repeated;
	// but with ErrFull comes what stands there now: only what is new was not made.
	File(ctx context.Context, changes []Refiling) ([]Filing, error)
	// MarkIndexed tells the others that all ids of this node are filed, or that they may
	// not be. The next process of the node finds it as it was. A process that is alone and
	// wants to stop to file says so first, and then looks again whether it is alone.
	//
	// A fleet itself takes the mark back when it gains shards while some node's ids are
	// not all filed. The first MarkIndexed(true) after that is refused, as whoever calls
	// it may not have known of them: it files their ids, and calls it again. A node should
	// yield no shard before its own ids are filed.
	MarkIndexed(ctx context.Context, indexed bool) error
	// Unindexed names the other nodes whose ids may not all be filed: those that live, and
	// of the dead those that still hold shards. While the directory is doubtful, see Standing,
	// these are all that live. It costs next to nothing.
	Unindexed(ctx context.Context) ([]string, error)
}

// FilingScanner is implemented by a Directory whose filings can be gone through, so that
// those are found which belong to nothing any more.
type FilingScanner interface {
	// ScanFilings hands out about a thousand filings, in any order, and returns the
	// position where it goes on: empty at the beginning, and again at the end. Of those
	// that come or go meanwhile, some may be left out, or come twice.
	ScanFilings(ctx context.Context, position string, visit func(id string, f Filing)) (next string, err error)
}

// A Filing says under which home an id is filed. The nonce tells it from earlier
// filings of the same id under the same home, so that what belongs to an earlier
// one is not taken out with a later one.
type Filing struct {
	Home  Home
	Nonce uint32
}

// A Refiling changes where an id is filed; the zero Filing stands for nowhere.
type Refiling struct {
	ID       string
	Old, New Filing
}

// A Bus carries messages between the nodes of a fleet, in no order, each at most
// once, and without any promise.
type Bus interface {
	// Listen begins to receive what is sent to this node or to all; it comes after
	// Adopt and is called once. Calls of receive come one at a time; the message is
	// receive's to keep. It ends with Close of the ledger.
	Listen(receive func(message []byte)) error
	// Send sends a message to a node, or to all others if node is empty. An error means
	// that the message may not have been sent; ErrUnheard, that nobody got it.
	Send(ctx context.Context, node string, message []byte) error
}
