package diskledger

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
)

// Scan implements recovery.Ledger. The first one after Adopt shows the state at Adopt, with Data;
// any other nominates what is there while it runs. The engine is in use while a page is read, not
// while it is visited.
func (l *Ledger) Scan(ctx context.Context, visit func([]recovery.Entry) error) error {
	e, err := l.use(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	first := !l.scanned
	l.scanned = true
	l.mu.Unlock()
	if !first {
		err = e.settle(ctx)
	}
	e.users.Done()
	if err != nil {
		return err
	}
	if first {
		defer l.forgetAdoption()
	}

	p := page{next: []byte{kindPending}}
	upper := []byte{kindPending + 1}
	var entries []recovery.Entry
	for !p.last {
		if err := l.readScanPage(ctx, e, first, &p, upper); err != nil {
			return err
		}
		entries = entries[:0]
		for i := range p.items {
			at, id, err := decodePending(p.key(i))
			if err != nil {
				return err
			}
			entry := recovery.Entry{ID: id, Spot: recovery.Spot{Place: recovery.Pending, At: at}}
			if first {
				entry.Data = p.value(i)
			}
			entries = append(entries, entry)
		}
		if len(entries) > 0 {
			if err := visit(entries); err != nil {
				return err
			}
		}
	}
	return nil
}

// readScanPage reads a page from the engine with which the scan began; another
// one has no snapshot of the state at Adopt.
func (l *Ledger) readScanPage(ctx context.Context, began *engine, first bool, p *page, upper []byte) error {
	e, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer e.users.Done()
	if !first {
		return p.read(e, e.db, upper)
	}
	if e != began || e.snapshot == nil {
		return fmt.Errorf("the ledger in %s was opened anew during the scan", l.dir)
	}
	return p.read(e, e.snapshot, upper)
}

// forgetAdoption drops the state at Adopt. No scan will need it again.
func (l *Ledger) forgetAdoption() {
	if e, err := l.use(context.Background()); err == nil {
		e.dropSnapshot()
		e.users.Done()
	}
}
