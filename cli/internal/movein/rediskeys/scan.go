package rediskeys

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/cli/internal/movein"
)

// scansAtMost bounds how often a scan begins again because another server has answered.
const scansAtMost = 5

// scan reads all keys that match, and creates or moves their tasks.
func (m *importer) scan(ctx context.Context) error {
	if m.Size != nil {
		m.Size(m.source.size(ctx))
	}
	nodes, err := m.source.nodes(ctx)
	if err != nil {
		return err
	}
	work, end := movein.Grace(ctx)
	defer end()
	writing, work := errgroup.WithContext(work)
	batches := make(chan []deadline, writers)
	for range writers {
		writing.Go(func() error {
			for batch := range batches {
				if err := m.write(work, batch); err != nil {
					return err
				}
				m.hands.release(batch)
			}
			return nil
		})
	}
	reading, scanCtx := errgroup.WithContext(ctx)
	for _, node := range nodes {
		reading.Go(func() error { return m.scanNode(scanCtx, node, batches, work.Done()) })
	}
	err = reading.Wait()
	close(batches)
	if failed := writing.Wait(); failed != nil {
		return failed
	}
	return err
}

var errWriters = errors.New("the tasks cannot be written") // the writers return why

// scanNode scans one server. If another one answers in its place meanwhile, as after a failover,
// the scan begins again: a cursor means something to its own server only.
func (m *importer) scanNode(ctx context.Context, node *redis.Client, batches chan<- []deadline, failed <-chan struct{}) error {
	identity := m.source.identity(ctx, node)
	for range scansAtMost {
		if err := m.scanOnce(ctx, node, batches, failed); err != nil {
			return err
		}
		now := m.source.identity(ctx, node)
		if now == identity {
			return nil
		}
		identity = now
	}
	return fmt.Errorf("%w: another server answers again and again", movein.ErrSource)
}

// identity names the process that answers, "" if that is not known.
func (s *source) identity(ctx context.Context, node *redis.Client) string {
	text, err := node.Info(ctx, "server").Result()
	if err != nil {
		return ""
	}
	_, id, _ := strings.Cut(text, "\nrun_id:")
	id, _, _ = strings.Cut(id, "\r")
	return id
}

func (m *importer) scanOnce(ctx context.Context, node *redis.Client, batches chan<- []deadline, failed <-chan struct{}) error {
	pace := newPacer(m.limit, m.Values)
	var batch []deadline
	send := func() error {
		select {
		case batches <- batch:
			batch = nil
			return nil
		case <-failed:
			return errWriters
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for cursor := uint64(0); ; {
		if pace.pingDue() {
			began := time.Now()
			if err := m.source.try(ctx, func() error { return node.Ping(ctx).Err() }); err != nil {
				return err
			}
			pace.pinged(time.Since(began))
		}
		var keys []string
		var next uint64
		var took time.Duration
		err := m.source.try(ctx, func() (err error) {
			began := time.Now()
			keys, next, err = node.Scan(ctx, cursor, m.Match, pace.page).Result()
			took = time.Since(began)
			return err
		})
		if err != nil {
			return err
		}
		pace.scanned(took)
		if len(keys) > 0 {
			m.hands.hold(keys)
			began := time.Now()
			page, err := m.source.deadlines(ctx, node, keys, m.Values)
			if err != nil {
				return err
			}
			took += time.Since(began)
			batch = append(batch, m.counted(page)...)
			if len(batch) >= batchSize || m.Values && len(batch) >= valueBatch {
				if err := send(); err != nil {
					return err
				}
			}
		}
		if cursor = next; cursor == 0 {
			break
		}
		if err := pace.rest(ctx, len(keys), took); err != nil {
			return err
		}
	}
	if len(batch) == 0 {
		return nil
	}
	return send()
}

// counted counts what a scan has read, and returns the keys that have a TTL. Those that have none
// are not held any more.
func (m *importer) counted(page []deadline) []deadline {
	m.counts.Read.Add(int64(len(page)))
	with, without := make([]deadline, 0, len(page)), page[:0:0]
	for _, d := range page {
		switch d.at {
		case noTTL:
			m.counts.NoTTL.Add(1)
			without = append(without, d)
		case gone:
			m.counts.Gone.Add(1)
			without = append(without, d)
		default:
			with = append(with, d)
		}
	}
	m.hands.release(without)
	return with
}
