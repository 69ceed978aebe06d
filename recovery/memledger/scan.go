package memledger

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/internal/memshard"
)

// pageSize is small, so that tests with few records see several pages.
const pageSize = 64

// pendingLocked lists the pending records, oldest first.
func (s *store) pendingLocked() []memshard.Entry {
	var all []memshard.Entry
	for sh := range s.shards {
		for id, r := range s.shards[sh].Pending {
			all = append(all, memshard.NewEntry(sh, id, r))
		}
	}
	slices.SortFunc(all, func(a, b memshard.Entry) int {
		return cmp.Or(cmp.Compare(a.Spot.At, b.Spot.At), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// Scan implements recovery.Ledger. The first one since Adopt shows the state at
// Adopt, unless the ledger is nominating; any other only nominates.
func (l *Ledger) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	if err := l.lock(ctx); err != nil {
		return err
	}
	all, withData := l.s.adopted, l.s.first && !l.s.nominating
	if !withData {
		all = l.s.pendingLocked()
	}
	l.s.adopted, l.s.first = nil, false
	if l.s.nominating {
		for i := 0; i < len(all); i += 8 {
			all = append(all, all[i])
		}
		l.s.scans++
		order := rand.New(rand.NewPCG(l.s.scans, 0)) // the same in each run of a test
		order.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	l.s.mu.Unlock()

	for chunk := range slices.Chunk(all, pageSize) {
		if err := l.handOut(ctx, chunk, withData, page); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (l *Ledger) handOut(ctx context.Context, chunk []memshard.Entry, withData bool, page func([]recovery.Entry) error) error {
	if withData {
		l.scanning.Lock()
		defer l.scanning.Unlock()
	}
	if err := l.lock(ctx); err != nil {
		return err
	}
	entries := make([]recovery.Entry, len(chunk))
	for i, e := range chunk {
		entries[i] = e.HandOut()
		if _, exposed := l.s.exposed[e.ID]; exposed || !withData {
			entries[i].Data = nil
		}
	}
	l.s.mu.Unlock()
	return page(entries)
}

// ListDead implements recovery.Ledger.
func (l *Ledger) ListDead(ctx context.Context, label string, after recovery.Ref, visit func(e recovery.Entry) bool) error {
	if label == "" && after != (recovery.Ref{}) {
		return errors.New("memory ledger: a list of all labels cannot be continued")
	}
	if err := l.lock(ctx); err != nil {
		return err
	}
	var all []memshard.Entry
	for sh := range l.s.shards {
		all = append(all, l.s.shards[sh].Buried(sh, label, after)...)
	}
	l.s.mu.Unlock()
	memshard.VisitDead(all, visit)
	return nil
}
