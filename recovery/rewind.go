package recovery

import "context"

// A Watcher is told what becomes of shards behind their owner's back. Its
// functions are called one at a time from a goroutine of the ledger's, without a
// lock; they should return soon, and may call the ledger. Either may be nil.
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
	// Lost is called when a shard was found to have another owner, though no
	// batch met it: what Apply would answer with err, which is ErrLost.
	Lost func(shard int, err error)
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
