package redisledger

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
)

// Look implements recovery.Directory.
func (l *Ledger) Look(ctx context.Context, ids []string) ([]recovery.Filing, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.directory.Look(ctx, ids)
}

// File implements recovery.Directory.
func (l *Ledger) File(ctx context.Context, changes []recovery.Refiling) ([]recovery.Filing, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.directory.File(ctx, changes)
}

// ScanFilings implements recovery.FilingScanner.
func (l *Ledger) ScanFilings(ctx context.Context, position string, visit func(id string, f recovery.Filing)) (next string, err error) {
	done, err := l.use(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	return l.directory.ScanFilings(ctx, position, visit)
}
