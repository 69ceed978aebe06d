package recovery

import "context"

// A Watcher gets notice of changes of shards that their owner did not make itself. Its
// functions are called one at a time from a goroutine of the ledger, without a lock. They
// should return soon, and may call the ledger. Each may be nil.
type Watcher struct {
	// Rewound is called when a shard was found in an older state than the ledger had
	// confirmed. The shard is still owned and takes batches, which apply to the older state.
	// If memory had read all of the shard before, it should make the shard equal to itself:
	// write every record that it has, and delete those that ScanShard nominates and memory does
	// not know. Otherwise it should write what it has, and delete once replay is over: a scan
	// that is reading the shard fails and starts anew; a scan that has read it does not return
	// to it.
	Rewound func(shard int)
	// Lost is called when a shard was found to have another owner, also when a batch found
	// out: Apply returns err, which is ErrLost. Memory drops all it has of the shard.
	Lost func(shard int, err error)
	// Ended is called when the process has lost its name: it holds no shard any more and will
	// acquire none. err is ErrLost when another process has the name, and ErrForgotten when
	// no process has it.
	Ended func(err error)

	// Acquired is called, by a Fleet only, when a shard was adopted or accepted. Memory should
	// read it by ScanShard, and may write to it at once. A shard that was transferred has been in
	// some node's memory all the time.
	Acquired func(shard int, transferred bool)
	// Room returns how many more records memory can take. It is called before a shard with that
	// many is adopted; nil means any number.
	Room func() int
	// Doubted is called, by a Directory only, when the directory may have lost entries: memory
	// should register its ids anew.
	Doubted func()
	// Status is called with every heartbeat. It returns what other nodes should know of this
	// node's memory: a few hundred bytes, which Nodes shows.
	Status func() []byte
}

// Rewinder is implemented by ledgers whose storage may lose what it confirmed: by a failover
// to a replica that is behind, an older backup, an empty disk. The ledger reclaims such a
// shard by itself. Only memory can restore its content.
type Rewinder interface {
	// Watch sets the Watcher. It is called before Adopt.
	Watch(w Watcher)
	// ScanShard is Scan of one shard that only nominates, at any time after
	// Adopt. Errors: as of Scan, and ErrLost.
	ScanShard(ctx context.Context, shard int, page func([]Entry) error) error
}
