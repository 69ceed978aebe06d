package redisledger

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
)

// Lookup implements recovery.Directory.
func (l *Ledger) Lookup(ctx context.Context, ids []string) ([]recovery.DirectoryEntry, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.directory.Lookup(ctx, ids)
}

// Update implements recovery.Directory.
func (l *Ledger) Update(ctx context.Context, changes []recovery.DirectoryUpdate) ([]recovery.DirectoryEntry, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return l.directory.Update(ctx, changes)
}

// ScanDirectory implements recovery.DirectoryScanner.
func (l *Ledger) ScanDirectory(ctx context.Context, position string, visit func(id string, f recovery.DirectoryEntry)) (next string, err error) {
	done, err := l.use(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	return l.directory.ScanDirectory(ctx, position, visit)
}
