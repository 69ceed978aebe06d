package redisledger

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
)

// Apply implements recovery.Ledger.
func (l *Ledger) Apply(ctx context.Context, n int, b *recovery.Batch) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return l.member.Apply(ctx, n, b)
}

// Watch implements recovery.Rewinder.
func (l *Ledger) Watch(w recovery.Watcher) { l.member.Notices.Watch(w) }

// ShardID implements recovery.Fleet.
func (l *Ledger) ShardID(n int) recovery.ShardID { return l.member.ShardID(n) }

// Forget implements recovery.Fleet. It does nothing for a term that has not ended.
func (l *Ledger) Forget(n int) { l.member.Forget(n) }

// Standing implements recovery.Fleet.
func (l *Ledger) Standing() recovery.Standing {
	s := l.member.Standing()
	s.Doubts, s.Doubtful = l.directory.Doubts()
	return s
}

// Locate implements recovery.Fleet.
func (l *Ledger) Locate(ctx context.Context, shardID recovery.ShardID, anew bool) (recovery.Holder, error) {
	done, err := l.use(ctx)
	if err != nil {
		return recovery.Holder{}, err
	}
	defer done()
	return l.member.Locate(ctx, shardID, anew)
}

// ShardIDs implements recovery.Fleet with one read of the registry.
func (l *Ledger) ShardIDs(ctx context.Context) ([]recovery.ShardID, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.member.ShardIDs(ctx)
}

// Holders implements recovery.Fleet with one read of the registry and one of the tokens of
// these shards.
func (l *Ledger) Holders(ctx context.Context, shardIDs []recovery.ShardID) (map[recovery.ShardID]recovery.Holder, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.member.Holders(ctx, shardIDs)
}

// Peers implements recovery.Fleet. It sends nothing to Redis once the watch has begun. While
// Redis does not answer, it returns what was seen before.
func (l *Ledger) Peers(ctx context.Context) ([]recovery.Node, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.member.Nodes(ctx, false)
}

// Nodes implements recovery.Fleet. It polls the registry first: the watch may not have seen a
// node that has just started. While Redis does not answer, it returns what was seen before.
func (l *Ledger) Nodes(ctx context.Context) ([]recovery.Node, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.member.Nodes(ctx, true)
}

// Stored implements recovery.KeyLister.
func (l *Ledger) Stored(ctx context.Context, node string, shards int) ([]recovery.StoredShard, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.member.Stored(ctx, node, shards)
}

// OpenSpool implements recovery.Fleet.
func (l *Ledger) OpenSpool(ctx context.Context, spool string) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return l.member.OpenSpool(ctx, spool)
}

// EmptiedSpool implements recovery.Fleet.
func (l *Ledger) EmptiedSpool(ctx context.Context) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return l.member.EmptiedSpool(ctx)
}

// GiveUpSpools implements recovery.Fleet.
func (l *Ledger) GiveUpSpools(ctx context.Context, node string) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return l.member.GiveUpSpools(ctx, node)
}

// Position implements recovery.Fleet.
func (l *Ledger) Position(n int) (string, error) {
	s, err := l.member.Held(n)
	if err != nil {
		return "", err
	}
	return s.Told()
}

// Transfer implements recovery.Fleet.
func (l *Ledger) Transfer(ctx context.Context, n int, to, position string) error {
	done, err := l.use(context.WithoutCancel(ctx)) // ending early leaves the outcome open
	if err != nil {
		return err
	}
	defer done()
	return l.member.Transfer(ctx, n, to, position)
}

// Accept implements recovery.Fleet.
func (l *Ledger) Accept(ctx context.Context, shardID recovery.ShardID) (bool, error) {
	done, err := l.use(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	return l.member.AcceptShard(ctx, shardID)
}

// MarkIndexed implements recovery.Directory.
func (l *Ledger) MarkIndexed(ctx context.Context, indexed bool) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return l.member.MarkIndexed(ctx, indexed)
}

// Unindexed implements recovery.Directory. Its answer may be a second old: a node stops registering
// only while it is alone, and clears its mark before; a node that starts then polls anew.
func (l *Ledger) Unindexed(ctx context.Context) ([]string, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.member.Unindexed(ctx, func() bool {
		_, doubtful := l.directory.Doubts()
		return doubtful
	})
}
