package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lapsehq/lapse/cli/bench"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/tasks"
)

const (
	deleteBatch   = 1024
	deleteWriters = 4
	recordBytes   = 250 // of a task with a payload of 200
)

// bareDeletes measures how fast Lapse's Redis ledger deletes records when it has no other work:
// whole batches, prepared before, over all shards.
func bareDeletes(ctx context.Context, url string, n int) (r bench.Result, err error) {
	opts := redisledger.Options{URL: url, Node: "deletes", Prefix: "compare-deletes:", Log: slog.New(slog.DiscardHandler)}
	l, err := redisledger.Open(opts)
	if err != nil {
		return r, err
	}
	defer func() {
		err = errors.Join(err, l.Close())
		_, erased := redisledger.Erase(context.WithoutCancel(ctx), opts)
		err = errors.Join(err, erased)
	}()
	terms, err := l.Adopt(ctx)
	if err != nil {
		return r, err
	}
	puts, deletes := prepare(terms, n)
	if _, err := apply(ctx, l, puts); err != nil {
		return r, err
	}
	took, err := apply(ctx, l, deletes)
	return bench.Result{Workload: "deletes", Tasks: n, Seconds: took.Seconds(), TasksPerSecond: float64(n) / took.Seconds()}, err
}

// A load is the batches of one shard, in order.
type load []*recovery.Batch

func prepare(terms recovery.Terms, n int) (puts, deletes []load) {
	puts, deletes = make([]load, terms.Shards), make([]load, terms.Shards)
	data := make([]byte, recordBytes)
	pending := recovery.Spot{Place: recovery.Pending, At: time.Now().Add(time.Hour).UnixMilli()}
	add := func(l *load, c recovery.Change) {
		if k := len(*l); k == 0 || (*l)[k-1].Len() == deleteBatch {
			*l = append(*l, &recovery.Batch{})
		}
		(*l)[len(*l)-1].Add(c)
	}
	for range n {
		id := []byte(tasks.NewID())
		shard := terms.ShardOf(id)
		add(&puts[shard], recovery.Change{ID: id, To: pending, Data: data})
		add(&deletes[shard], recovery.Change{ID: id, From: pending})
	}
	return puts, deletes
}

// apply writes the batches: a shard's one after the other, several shards at once.
func apply(ctx context.Context, l recovery.Ledger, loads []load) (time.Duration, error) {
	var group sync.WaitGroup
	faults := make([]error, deleteWriters)
	began := time.Now()
	for w := range deleteWriters {
		group.Go(func() {
			for shard := w; shard < len(loads); shard += deleteWriters {
				for _, b := range loads[shard] {
					if err := l.Apply(ctx, shard, b); err != nil {
						faults[w] = fmt.Errorf("shard %d: %w", shard, err)
						return
					}
				}
			}
		})
	}
	group.Wait()
	return time.Since(began), errors.Join(faults...)
}
