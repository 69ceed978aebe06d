package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Memory is what Replay fills. Its methods may be called from several goroutines
// at once, each with entries of other shards, which are valid only during the call.
type Memory interface {
	// Load takes entries with Data: it arms those that memory does not know,
	// and skips the others, whose state in memory is the newer one.
	Load(page []Entry)
	// Lock takes nominated entries (without Data). It locks the ids that
	// memory does not know, so that nothing else happens to them until they
	// are resolved, and returns their positions in the page.
	Lock(page []Entry) []int
	// Resolve unlocks an id. With found, e is its record as just read;
	// otherwise there is none, and only e.Shard and e.ID are set. When reading
	// has ended for good (ctx ended, ErrLost, ErrClosed), the ids still locked
	// are resolved as not found: memory is then being given up as well.
	Resolve(e Entry, found bool)
}

// Progress tells how far a replay has come.
type Progress struct {
	Read    int64         // entries read by the scan under way
	Elapsed time.Duration // since Replay was called
	Done    bool          // the scan is complete
}

// reportEvery is the time between two calls of report.
const reportEvery = time.Second

// Replay reads the pending records of an adopted ledger into memory. It may run
// while the Committer is writing already. A scan that fails is started anew
// after a pause, until ctx ends; report, which may be nil and must not call back, is
// called about once a second and at the end. Replay returns nil after one complete scan, or else
// why it gave up: the cause of ctx, or ErrClosed.
func Replay(ctx context.Context, l Ledger, m Memory, report func(Progress)) error {
	return replay(ctx, l, l.Scan, m, report, ErrClosed)
}

// ReplayShard is Replay of one shard that was gained since. It also gives up with ErrLost.
func ReplayShard(ctx context.Context, f Fleet, shard int, m Memory, report func(Progress)) error {
	return replay(ctx, f, func(ctx context.Context, page func([]Entry) error) error {
		return f.ScanShard(ctx, shard, page)
	}, m, report, ErrClosed, ErrLost)
}

// replay scans until it has succeeded once, or has met one of the final errors.
func replay(ctx context.Context, l Ledger, scan func(context.Context, func([]Entry) error) error, m Memory, report func(Progress), final ...error) error {
	began := time.Now()
	var (
		mu       sync.Mutex // guards the two below
		reported = began
		read     int64
	)
	tell := func(more int, done bool) {
		mu.Lock()
		defer mu.Unlock()
		read += int64(more)
		if now := time.Now(); report != nil && (done || now.Sub(reported) >= reportEvery) {
			reported = now
			report(Progress{Read: read, Elapsed: now.Sub(began), Done: done})
		}
	}
	var backoff Backoff
	for attempt := 0; ; attempt++ {
		read = 0
		err := scan(ctx, func(page []Entry) error {
			if err := replayPage(ctx, l, m, page); err != nil {
				return err
			}
			tell(len(page), false)
			return nil
		})
		if err == nil {
			tell(0, true)
			return nil
		}
		if slices.ContainsFunc(final, func(f error) bool { return errors.Is(err, f) }) {
			return fmt.Errorf("replay: %w", err)
		}
		if cause := backoff.Wait(ctx, attempt); cause != nil {
			return fmt.Errorf("replay: %w (the last scan failed: %w)", cause, err)
		}
	}
}

// replayPage hands a page to memory. Every run of entries of one kind and one
// shard goes together.
func replayPage(ctx context.Context, l Ledger, m Memory, page []Entry) error {
	for len(page) > 0 {
		n := 1
		for n < len(page) && page[n].Shard == page[0].Shard && (page[n].Data == nil) == (page[0].Data == nil) {
			n++
		}
		if page[0].Data != nil {
			m.Load(page[:n])
		} else if err := resolvePage(ctx, l, m, page[:n]); err != nil {
			return err
		}
		page = page[n:]
	}
	return nil
}

// resolvePage reads the records of nominated ids under memory's lock. It keeps
// reading until there is an answer, since an id without one cannot be unlocked
// honestly; what memory has locked is resolved on every way out.
func resolvePage(ctx context.Context, l Ledger, m Memory, page []Entry) error {
	shard := page[0].Shard
	locked := m.Lock(page)
	if len(locked) == 0 {
		return nil
	}
	refs := make([]Ref, len(locked))
	for i, at := range locked {
		refs[i] = Ref{ID: string(page[at].ID), Next: page[at].Spot.At}
	}
	resolved := make([]bool, len(refs))
	var err error
	var backoff Backoff
	for attempt := 0; ; attempt++ {
		err = l.Get(ctx, shard, refs, func(i int, e Entry) {
			if !resolved[i] {
				resolved[i] = true
				e.Shard, e.ID = shard, page[locked[i]].ID
				m.Resolve(e, true)
			}
		})
		if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrClosed) {
			break
		}
		if backoff.Wait(ctx, attempt) != nil {
			break
		}
	}
	for i, at := range locked {
		if !resolved[i] {
			m.Resolve(Entry{Shard: shard, ID: page[at].ID}, false)
		}
	}
	if errors.Is(err, ErrLost) {
		return nil // the other shards are still ours
	}
	return err
}
