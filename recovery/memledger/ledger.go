package memledger

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/internal/memshard"
)

// An Option changes how a new ledger behaves.
type Option func(*store)

// Shards sets how many shards the ledger has; 1 unless set.
func Shards(n int) Option { return func(s *store) { s.shards = make([]memshard.Shard, max(n, 1)) } }

// Nominating makes Scan return entries without Data, shuffled and some of them twice.
func Nominating() Option { return func(s *store) { s.nominating = true } }

// Strict makes Apply panic when a change starts from a place where its record is not. A ledger
// that orders records by time would keep two copies then. Tests of code that decides on changes
// should use it.
func Strict() Option { return func(s *store) { s.strict = true } }

// Apart makes each shard a server of its own, see recovery.Terms.
func Apart() Option { return func(s *store) { s.apart = true } }

// BatchLimits sets Terms.MaxChanges and MaxBytes; 1024 and 1 MiB unless set.
func BatchLimits(changes, bytes int) Option {
	return func(s *store) { s.maxChanges, s.maxBytes = changes, bytes }
}

// A Ledger is one handle on records in memory. It implements recovery.Ledger,
// Settings, Finder and Archive.
type Ledger struct {
	s *store

	// scanning is held while a page with Data is visited, and by Find: the one place in which a
	// callback runs under a lock. An id that Find returned may be finished and deleted at once; a
	// page copied before must not bring it back to life afterwards.
	scanning sync.Mutex
}

// A store is what all handles share.
type store struct {
	nominating, strict   bool
	apart                bool
	maxChanges, maxBytes int

	mu       sync.Mutex // guards everything below
	owner    *Ledger    // nil when it is not adopted
	shards   []memshard.Shard
	settings map[string]setting
	rows     memshard.Rows // see recovery.Archive
	// deletedRevision is the highest one of those that were deleted. New ones begin above
	// it, so that a name's revisions only grow.
	deletedRevision int64
	adopted         []memshard.Entry    // pending at Adopt, oldest first; nil once a scan has begun
	first           bool                // the next scan is the first since Adopt
	exposed         map[string]struct{} // ids that Find handed out since Adopt
	scans           uint64              // of a nominating ledger: how many have begun
}

// New makes an empty ledger.
func New(options ...Option) *Ledger {
	s := &store{
		maxChanges: 1024,
		maxBytes:   1 << 20,
		shards:     make([]memshard.Shard, 1),
		settings:   map[string]setting{},
		rows:       memshard.Rows{},
	}
	for _, o := range options {
		o(s)
	}
	for i := range s.shards {
		s.shards[i] = memshard.NewShard()
	}
	return &Ledger{s: s}
}

// Reopen returns another handle on the same records, as another process has.
func (l *Ledger) Reopen() *Ledger { return &Ledger{s: l.s} }

// Crash cuts the handle off without any clean-up, as if its process had died: its methods return
// ErrClosed, and the records can be adopted.
func (l *Ledger) Crash() { l.release() }

// Adopt implements recovery.Ledger. Unlike with other ledgers, it may be called
// again after Close.
func (l *Ledger) Adopt(ctx context.Context) (recovery.Terms, error) {
	if err := ctx.Err(); err != nil {
		return recovery.Terms{}, err
	}
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != nil {
		return recovery.Terms{}, fmt.Errorf("%w: another handle of this memory ledger", recovery.ErrHeld)
	}
	s.owner = l
	s.adopted, s.first = s.pendingLocked(), true
	s.exposed = map[string]struct{}{}
	terms := recovery.Terms{
		Shards:     len(s.shards),
		ShardOf:    s.shardOf,
		MaxChanges: s.maxChanges,
		MaxBytes:   s.maxBytes,
	}
	if s.apart {
		terms.Server = strconv.Itoa
	}
	return terms, nil
}

// Close implements recovery.Ledger.
func (l *Ledger) Close() error {
	l.release()
	return nil
}

func (l *Ledger) release() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.owner == l {
		l.s.owner, l.s.adopted, l.s.exposed = nil, nil, nil
	}
}

// lock locks the store for a call, or returns why the call must fail.
func (l *Ledger) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.s.mu.Lock()
	if l.s.owner != l {
		l.s.mu.Unlock()
		return fmt.Errorf("memory ledger: %w", recovery.ErrClosed)
	}
	return nil
}

// Apply implements recovery.Ledger.
func (l *Ledger) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	if err := l.lock(ctx); err != nil {
		return err
	}
	defer l.s.mu.Unlock()
	l.s.shards[shard].Apply(b, l.s.strict)
	return nil
}

// Get implements recovery.Ledger.
func (l *Ledger) Get(ctx context.Context, shard int, refs []recovery.Ref, found func(i int, e recovery.Entry)) error {
	hits, err := l.collect(ctx, func(s *store, hit func(int, memshard.Entry)) {
		for i, ref := range refs {
			if r, ok := s.shards[shard].Pending[ref.ID]; ok {
				hit(i, memshard.NewEntry(shard, ref.ID, r))
			}
		}
	})
	for _, h := range hits {
		found(h.i, h.HandOut())
	}
	return err
}

// GetDead implements recovery.Ledger.
func (l *Ledger) GetDead(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	hits, err := l.collect(ctx, func(s *store, hit func(int, memshard.Entry)) {
		for i, id := range ids {
			for sh := range s.shards {
				if r, ok := s.shards[sh].Dead[id]; ok {
					hit(i, memshard.NewEntry(sh, id, r))
				}
			}
		}
	})
	for _, h := range hits {
		found(h.i, h.HandOut())
	}
	return err
}

// Find implements recovery.Finder.
func (l *Ledger) Find(ctx context.Context, id string, found func(e recovery.Entry)) error {
	l.scanning.Lock()
	hits, err := l.collect(ctx, func(s *store, hit func(int, memshard.Entry)) {
		for sh := range s.shards {
			if r, ok := s.shards[sh].Pending[id]; ok {
				s.exposed[id] = struct{}{}
				hit(0, memshard.NewEntry(sh, id, r))
			}
		}
	})
	l.scanning.Unlock()
	for _, h := range hits {
		found(h.HandOut())
	}
	return err
}

// A hit is an entry that was found, with its position in the request.
type hit struct {
	i int
	memshard.Entry
}

// collect runs look under the lock, so that the callbacks can run outside it.
func (l *Ledger) collect(ctx context.Context, look func(s *store, hit func(int, memshard.Entry))) ([]hit, error) {
	if err := l.lock(ctx); err != nil {
		return nil, err
	}
	defer l.s.mu.Unlock()
	var hits []hit
	look(l.s, func(i int, e memshard.Entry) { hits = append(hits, hit{i, e}) })
	return hits, nil
}
