package rediskeys

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/cli/internal/movein"
	"github.com/lapsehq/lapse/client"
	"golang.org/x/sync/errgroup"
)

const (
	// lookForNodes is how often a cluster is asked for masters that are new.
	lookForNodes = 10 * time.Second
	// leastRescan is the shortest time between two scans.
	leastRescan = 5 * time.Second
)

// follow imports, and goes on with what changes until ctx ends.
func (m *importer) follow(ctx context.Context) error {
	if err := m.checkNotifications(ctx); err != nil {
		return interruptedOr(ctx, err)
	}
	if err := m.Prepare(ctx, m.Topic); err != nil {
		return interruptedOr(ctx, err)
	}
	m.hands.activate()
	heard := make(map[string]*subscriber)
	defer func() {
		for _, s := range heard {
			s.close()
		}
	}()
	if err := m.hearAll(ctx, heard); err != nil {
		return interruptedOr(ctx, err)
	}
	m.hands.takeLost() // nothing was lost yet
	work, end := movein.Grace(ctx)
	defer end()
	group, groupCtx := errgroup.WithContext(ctx)
	scans, scanned := make(chan struct{}, 1), make(chan struct{}, 1)
	group.Go(func() error {
		for {
			select {
			case <-scans:
				if err := m.scan(groupCtx); err != nil {
					return err
				}
				if m.Size != nil {
					m.Size(-1)
				}
				scanned <- struct{}{} // the receiver asks for one scan at a time
			case <-groupCtx.Done():
				return nil
			}
		}
	})
	group.Go(func() error { return m.following(groupCtx, work, heard, scans, scanned) })
	return interruptedOr(ctx, group.Wait())
}

// interruptedOr is nil once ctx has ended: that is how a source is followed to the end.
func interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// following handles changes until ctx ends, and asks for scans. Writes that have begun go on with
// work.
func (m *importer) following(ctx, work context.Context, heard map[string]*subscriber, scans chan<- struct{}, scanned <-chan struct{}) error {
	scanning, first, began := true, true, time.Now()
	scans <- struct{}{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	looked, lost := time.Now(), false
	for {
		if err := m.changes(ctx, work); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.hands.wake:
		case <-scanned:
			scanning = false
			if first {
				first = false
				m.Tell("all keys are in; following the changes, until interrupted")
			}
			if err := m.compare(ctx, func(ctx context.Context) error { return m.changes(ctx, work) }); err != nil {
				return err
			}
		case <-tick.C:
		}
		if time.Since(looked) >= lookForNodes {
			looked = time.Now()
			if err := m.hearAll(ctx, heard); err != nil {
				return err
			}
		}
		lost = m.hands.takeLost() || lost
		if age := time.Since(began); !scanning && (age >= m.Rescan || lost && age >= leastRescan) {
			if lost {
				m.Tell("notifications may have been lost; scanning the keys again")
			}
			scanning, lost, began = true, false, time.Now()
			scans <- struct{}{}
		}
	}
}

// hearAll subscribes at servers that are new.
func (m *importer) hearAll(ctx context.Context, heard map[string]*subscriber) error {
	nodes, err := m.source.nodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		addr := node.Options().Addr
		if heard[addr] != nil {
			continue
		}
		err := m.source.try(ctx, func() (err error) {
			heard[addr], err = m.subscribe(ctx, node)
			return err
		})
		if err != nil {
			delete(heard, addr)
			return err
		}
		m.hands.lose() // what changed before is not known
	}
	return nil
}

// changes handles the keys that have changed, until none is left that can be taken.
func (m *importer) changes(ctx, work context.Context) error {
	for ctx.Err() == nil {
		taken := m.hands.take(batchSize)
		if len(taken) == 0 {
			return nil
		}
		keys := make([]string, 0, len(taken))
		for key := range taken {
			keys = append(keys, key)
		}
		all, err := m.source.anywhere(work, keys, m.Values)
		if err != nil {
			return err
		}
		m.counts.Read.Add(int64(len(all)))
		if err := m.apply(work, all, func(key string) bool { return taken[key] }); err != nil {
			return err
		}
	}
	return nil
}

// apply makes tasks be as their keys are. A task whose key was evicted stays.
func (m *importer) apply(ctx context.Context, all []deadline, evicted func(key string) bool) error {
	var with []deadline
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	cancelled := make([]bool, len(all))
	for i := range all {
		d := &all[i]
		_, again := m.cancelled[d.key]
		switch r, ok := m.request(d); {
		case ok && again:
			delete(m.cancelled, d.key)
			group.Go(func() error { return m.Writer.Again(groupCtx, r) })
		case ok:
			with = append(with, *d)
		case d.at < 0 && !evicted(d.key):
			group.Go(func() (err error) {
				cancelled[i], err = m.Writer.Cancel(groupCtx, movein.IDOf(d.key), m.source.deleted(d))
				return err
			})
		}
	}
	err := group.Wait()
	for i, yes := range cancelled {
		if yes {
			m.counts.Cancelled.Add(1)
			m.remember(all[i].key)
		}
	}
	if err != nil {
		return err
	}
	return m.write(ctx, with)
}

// mostCancelled bounds the keys that are remembered as cancelled.
const mostCancelled = 1 << 20

func (m *importer) remember(key string) {
	if len(m.cancelled) >= mostCancelled {
		clear(m.cancelled)
	}
	m.cancelled[key] = struct{}{}
}

// deleted returns a function that reports whether a key without a deadline was deleted, or lost
// its TTL, before the deadline of its task. A key that is gone at its deadline has expired.
func (s *source) deleted(d *deadline) func(*client.Task) bool {
	return func(t *client.Task) bool {
		if d.at == noTTL {
			return true
		}
		asOf := time.UnixMilli(d.asOf)
		if s.isCluster() {
			asOf = asOf.Add(skew)
		}
		return t.Due.After(asOf)
	}
}

// comparedAtOnce is how many tasks are compared with their keys at once.
const comparedAtOnce = 1000

// compare cancels the tasks of earlier imports whose keys are gone before their deadlines. Between
// pages it calls between. Nothing is cancelled unless a scan has found a key.
func (m *importer) compare(ctx context.Context, between func(context.Context) error) error {
	switch {
	case !m.CancelGone:
		return nil
	case m.source.evicts:
		m.Tell("no task is cancelled because its key is gone: Redis may have evicted the key (maxmemory-policy), or does not say (INFO)")
		return nil
	case m.counts.Accepted() == 0:
		m.Tell("no task is cancelled because its key is gone: no key with a TTL matches")
		return nil
	}
	query := client.Query{Topic: m.Topic, State: client.Pending, Limit: comparedAtOnce}
	for {
		page, err := m.Writer.List(ctx, query)
		if err != nil {
			return err
		}
		var keys []string
		for i := range page.Tasks {
			t := &page.Tasks[i]
			if key := keyOf(t); t.Headers[movein.ImportedHeader] == m.Writer.Source && movein.IDOf(key) == t.ID {
				keys = append(keys, key)
			}
		}
		if len(keys) > 0 {
			all, err := m.source.anywhere(ctx, keys, false)
			if err != nil {
				return err
			}
			without := all[:0]
			for _, d := range all {
				if d.at < 0 {
					without = append(without, d)
				}
			}
			if err := m.apply(ctx, without, func(string) bool { return false }); err != nil {
				return err
			}
		}
		if query.Cursor = page.NextCursor; query.Cursor == "" {
			return nil
		}
		if err := between(ctx); err != nil {
			return err
		}
	}
}
