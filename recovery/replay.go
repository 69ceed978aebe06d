package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Memory is what Replay fills. Its methods may be called from several goroutines
// at once, each with entries of other shards, which are valid only during the call.
type Memory interface {
	// Load takes entries with Data. It arms those that memory does not know, and skips the
	// others, whose state in memory is newer.
	Load(page []Entry)
	// Lock takes nominated entries (without Data). It locks the ids that memory does not know,
	// so that no call changes them until they are resolved, and returns their positions in the
	// page.
	Lock(page []Entry) []int
	// Resolve unlocks ids of one shard. With found, the entries are their records as just read;
	// otherwise there are no records, and only Shard and ID are set. When reading has ended for
	// good (ctx ended, ErrLost, ErrClosed), the ids still locked are resolved as not found: memory
	// is then being discarded as well.
	Resolve(page []Entry, found bool)
}

// Progress is how far a replay has come.
type Progress struct {
	Read    int64         // entries read by the scan under way
	Began   time.Time     // when Replay was called
	Elapsed time.Duration // since then
	Done    bool          // the scan is complete
	Err     error         // why the last read has failed; nil once another one has succeeded
}

// reportEvery is the time between two calls of report.
const reportEvery = time.Second

// Replay reads the pending records of an adopted ledger into memory. It may run while the
// Committer is already writing. A scan that fails starts anew after a pause, until ctx ends.
// report is called about once a second, when reading fails for the first time, and at the
// end; it may be nil and must not call back. Replay returns nil after one complete scan, or
// else why it gave up: the cause of ctx, or ErrClosed.
func Replay(ctx context.Context, l Ledger, m Memory, report func(Progress)) error {
	return replay(ctx, l, l.Scan, m, report, ErrClosed)
}

// ReplayShard is Replay of one shard that was acquired later. It also gives up with ErrLost.
func ReplayShard(ctx context.Context, l interface {
	Ledger
	Rewinder
}, shard int, m Memory, report func(Progress)) error {
	return replay(ctx, l, func(ctx context.Context, page func([]Entry) error) error {
		return l.ScanShard(ctx, shard, page)
	}, m, report, ErrClosed, ErrLost)
}

// A replayer is one replay. Its scan may hand it pages from several goroutines.
type replayer struct {
	l      Ledger
	m      Memory
	report func(Progress)
	piece  atomic.Int64 // how many ids of a page are locked and read at once

	mu       sync.Mutex // guards everything below
	progress Progress
	reported time.Time
	failed   bool // a failure was reported
}

// replay scans until it has succeeded once, or has met one of the final errors.
func replay(ctx context.Context, l Ledger, scan func(context.Context, func([]Entry) error) error, m Memory, report func(Progress), final ...error) error {
	r := replayer{l: l, m: m, report: report, progress: Progress{Began: time.Now()}}
	r.piece.Store(pieceMost)
	r.reported = r.progress.Began
	var backoff Backoff
	for attempt := 0; ; attempt++ {
		err := scan(ctx, func(page []Entry) error { return r.page(ctx, page) })
		if err == nil {
			r.update(func(p *Progress) { p.Done, p.Err = true, nil })
			return nil
		}
		if slices.ContainsFunc(final, func(f error) bool { return errors.Is(err, f) }) {
			return fmt.Errorf("replay: %w", err)
		}
		r.update(func(p *Progress) { p.Read, p.Err = 0, err })
		if cause := backoff.Wait(ctx, attempt); cause != nil {
			return fmt.Errorf("replay: %w (the last scan failed: %w)", cause, err)
		}
	}
}

// update changes the progress, and reports it from time to time.
func (r *replayer) update(change func(p *Progress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.progress)
	if r.report == nil {
		return
	}
	first := r.progress.Err != nil && !r.failed
	if now := time.Now(); r.progress.Done || first || now.Sub(r.reported) >= reportEvery {
		r.reported, r.progress.Elapsed, r.failed = now, now.Sub(r.progress.Began), r.failed || first
		r.report(r.progress)
	}
}

// came counts entries that were read.
func (r *replayer) came(n int) {
	r.update(func(p *Progress) { p.Read, p.Err = p.Read+int64(n), nil })
}

// page hands a page to memory. Every run of entries of one kind and one shard goes
// together.
func (r *replayer) page(ctx context.Context, page []Entry) error {
	for len(page) > 0 {
		n := 1
		for n < len(page) && page[n].Shard == page[0].Shard && (page[n].Data == nil) == (page[0].Data == nil) {
			n++
		}
		if page[0].Data != nil {
			r.m.Load(page[:n])
			r.came(n)
		} else if err := r.resolve(ctx, page[:n]); err != nil {
			return err
		}
		page = page[n:]
	}
	return nil
}

const (
	// pieceMost and pieceLeast bound the ids that are locked at once. An id is locked until its
	// record is read, and callers that ask for it wait. Where reading takes longer than
	// pieceLong, because records are large or the line is slow, fewer ids are locked at once.
	pieceMost, pieceLeast = 2048, 16
	pieceLong             = 250 * time.Millisecond
)

// resolve reads the records of nominated ids of one shard, some at a time.
func (r *replayer) resolve(ctx context.Context, page []Entry) error {
	for len(page) > 0 {
		most := r.piece.Load()
		n := min(int(most), len(page))
		began := time.Now()
		if err := r.resolvePiece(ctx, page[:n]); err != nil {
			return err
		}
		switch took := time.Since(began); {
		case took > pieceLong:
			r.piece.Store(max(int64(n)/2, pieceLeast))
		case took < pieceLong/8 && int64(n) == most:
			r.piece.Store(min(2*most, pieceMost))
		}
		r.came(n)
		page = page[n:]
	}
	return nil
}

// resolvePiece reads the records of nominated ids under memory's lock. It keeps reading until
// there is an answer: without one, neither "found" nor "not found" would be true. What memory
// has locked is resolved on every return.
func (r *replayer) resolvePiece(ctx context.Context, page []Entry) error {
	shard := page[0].Shard
	left := r.m.Lock(page) // positions of the ids that are locked still
	var err error
	var backoff Backoff
	for attempt := 0; len(left) > 0; attempt++ {
		refs := make([]Ref, len(left))
		for i, at := range left {
			refs[i] = Ref{ID: string(page[at].ID), Next: page[at].Spot.At}
		}
		resolved := make([]bool, len(left))
		batch := resolution{m: r.m}
		err = r.l.Get(ctx, shard, refs, func(i int, e Entry) {
			if !resolved[i] {
				resolved[i] = true
				e.Shard, e.ID = shard, page[left[i]].ID
				batch.add(e)
			}
		})
		batch.flush()
		unread := left[:0]
		for i, at := range left {
			if !resolved[i] {
				unread = append(unread, at)
			}
		}
		left = unread
		if len(left) == 0 {
			err = nil // the error came behind the last record
		}
		if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrClosed) {
			break
		}
		r.update(func(p *Progress) { p.Err = err })
		if backoff.Wait(ctx, attempt) != nil {
			break
		}
	}
	absent := make([]Entry, len(left))
	for i, at := range left {
		absent[i] = Entry{Shard: shard, ID: page[at].ID}
	}
	if len(absent) > 0 {
		r.m.Resolve(absent, false)
	}
	if errors.Is(err, ErrLost) {
		return nil // the other shards are still ours
	}
	return err
}

// resolveMost and resolveBytes bound the records that memory gets at once. One by one, each would
// take memory's lock, for which the callers of an application wait as well.
const resolveMost, resolveBytes = 256, 256 << 10

// A resolution gathers records that were read, which are valid only until the next one is.
type resolution struct {
	m       Memory
	entries []Entry
	buf     []byte
}

func (r *resolution) add(e Entry) {
	if len(r.entries) == resolveMost || len(r.buf)+len(e.Data) > resolveBytes {
		r.flush()
	}
	start := len(r.buf)
	r.buf = append(r.buf, e.Data...) // if it grows, earlier entries keep the memory of before
	e.Data = r.buf[start:len(r.buf):len(r.buf)]
	r.entries = append(r.entries, e)
}

// flush hands on what was gathered.
func (r *resolution) flush() {
	if len(r.entries) > 0 {
		r.m.Resolve(r.entries, true)
	}
	r.entries, r.buf = r.entries[:0], r.buf[:0]
}
