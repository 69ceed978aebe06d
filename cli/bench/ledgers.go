package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/tasks"
)

// A Ledger is a kind of ledger to measure on. Each system that is opened on it has
// a new and empty one.
type Ledger struct {
	Name string // memory, disk or redis
	// make prepares one. open may be called again once what it returned was closed; remove deletes
	// it.
	make func() (place, error)
}

type place struct {
	open   func() (recovery.Ledger, error)
	remove func() error
}

var quiet = slog.New(slog.DiscardHandler)

// Memory keeps nothing beyond the process.
func Memory() Ledger {
	return Ledger{"memory", func() (place, error) {
		return place{
			open:   func() (recovery.Ledger, error) { return memledger.New(), nil },
			remove: func() error { return nil },
		}, nil
	}}
}

// Disk is the embedded ledger, in a temporary directory beneath dir.
func Disk(dir string) Ledger {
	return Ledger{"disk", func() (place, error) {
		sub, err := os.MkdirTemp(dir, "lapse-bench-")
		return place{
			open: func() (recovery.Ledger, error) {
				return diskledger.Open(sub, diskledger.Options{Log: quiet})
			},
			remove: func() error { return os.RemoveAll(sub) },
		}, err
	}}
}

// removeWithin bounds the removal of keys from Redis.
const removeWithin = time.Minute

// Redis is the ledger in a Redis, under a prefix of its own.
func Redis(url string) Ledger {
	return Ledger{"redis", func() (place, error) {
		opts := redisledger.Options{URL: url, Node: "bench", Prefix: uniqueName("lapse-bench-") + ":", Log: quiet}
		return place{
			open: func() (recovery.Ledger, error) { return redisledger.Open(opts) },
			remove: func() error {
				ctx, cancel := context.WithTimeout(context.Background(), removeWithin)
				defer cancel()
				if _, err := redisledger.Erase(ctx, opts); err != nil {
					return fmt.Errorf("%w; what is left begins with %s", err, opts.Prefix)
				}
				return nil
			},
		}, nil
	}}
}

func uniqueName(prefix string) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// Embedded opens a scheduler in this process on a new ledger.
func (l Ledger) Embedded(ctx context.Context) (System, error) {
	s, err := l.start(ctx)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (l Ledger) start(ctx context.Context) (*embedded, error) {
	p, err := l.make()
	if err != nil {
		return nil, err
	}
	return p.start(ctx, tasks.TopicSettings{}, p.remove)
}
