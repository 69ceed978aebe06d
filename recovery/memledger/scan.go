package memledger

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
)

// pageSize is small, so that tests with few records see several pages.
const pageSize = 64

// pendingLocked lists the pending records, oldest first.
func (s *store) pendingLocked() []entry {
	var all []entry
	for sh := range s.shards {
		for id, r := range s.shards[sh].pending {
			all = append(all, entry{sh, id, r})
		}
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.spot.At, b.spot.At), cmp.Compare(a.id, b.id))
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
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	l.s.mu.Unlock()

	for chunk := range slices.Chunk(all, pageSize) {
		if err := l.handOut(ctx, chunk, withData, page); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (l *Ledger) handOut(ctx context.Context, chunk []entry, withData bool, page func([]recovery.Entry) error) error {
	if withData {
		l.scanning.Lock()
		defer l.scanning.Unlock()
	}
	if err := l.lock(ctx); err != nil {
		return err
	}
	entries := make([]recovery.Entry, len(chunk))
	for i, e := range chunk {
		entries[i] = e.handOut()
		if _, exposed := l.s.exposed[e.id]; exposed || !withData {
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
	var all []entry
	for sh := range l.s.shards {
		all = append(all, l.s.shards[sh].buried(sh, label, after)...)
	}
	l.s.mu.Unlock()
	visitDead(all, visit)
	return nil
}

// buried lists a shard's dead records of a label.
func (sh *shard) buried(n int, label string, after recovery.Ref) []entry {
	var all []entry
	for id, r := range sh.dead {
		if label == "" || r.spot.Label == label && isAfter(r.spot.At, id, after) {
			all = append(all, entry{n, id, r})
		}
	}
	return all
}

// visitDead hands out dead records in the order of ListDead.
func visitDead(all []entry, visit func(e recovery.Entry) bool) {
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(strings.Compare(a.spot.Label, b.spot.Label),
			cmp.Compare(a.spot.At, b.spot.At), strings.Compare(a.id, b.id))
	})
	for _, e := range all {
		if !visit(e.handOut()) {
			break
		}
	}
}

// isAfter reports whether a record comes after the one that ref names.
func isAfter(at int64, id string, ref recovery.Ref) bool {
	return ref == recovery.Ref{} || at > ref.Next || at == ref.Next && id > ref.ID
}
