package recovery

import "context"

// A Watcher is told what becomes of shards behind their owner's back. Its
// functions are called one at a time from a goroutine of the ledger's, without a
// lock; they should return soon, and may call the ledger. Each may be nil.
type Watcher struct {
	// Rewound is called when a shard was found in an older state than the
	// ledger had confirmed. The shard is still owned and takes batches: those
	// that follow stand on the older state. If memory had read all of the
	// shard before, it should now make it equal to itself: write every record
	// that it has, and delete those that ScanShard nominates and it does not
	// know. Otherwise it should write what it has, and delete once replay is over:
	// a scan that is reading the shard fails and starts anew, and one that has
	// read it does not come back.
	Rewound func(shard int)
	// Lost is called when a shard was found to have another owner, also when a batch
	// met it: what Apply answers with err, which is ErrLost. Memory forgets what it has
	// of it.
	Lost func(shard int, err error)
	// Ended is called when the process has lost its name: it holds no shard any more, and
	// will gain none. err is ErrLost when another one has the name, and ErrForgotten when
	// nobody has it.
	Ended func(err error)

	// Gained is called, by a Fleet only, when a shard was adopted or accepted: memory
	// should read it by ScanShard, and may write to it at once. One that was yielded has
	// been in somebody's memory all the time.
	Gained func(shard int, yielded bool)
	// Room is asked how many more records memory takes before a shard with so many is
	// adopted; nil means any number.
	Room func() int
	// Doubted is called, by a Directory only, when it may have lost entries: memory should
	// register its ids anew.
	Doubted func()
	// Status is asked, with every sign of life, what other nodes should know of this
	// one's memory: a few hundred bytes that Nodes shows.
	Status func() []byte
}

// Rewinder is implemented by ledgers whose storage may lose what it confirmed:
// a failover to a replica that is behind, an older backup, an empty disk. The
// ledger takes such a shard back by itself. Only memory can restore what was in it.
type Rewinder interface {
	// Watch sets whom to tell. It comes before Adopt.
	Watch(w Watcher)
	// ScanShard is Scan of one shard that only nominates, at any time after
	// Adopt. Errors: as of Scan, and ErrLost.
	ScanShard(ctx context.Context, shard int, page func([]Entry) error) error
}
