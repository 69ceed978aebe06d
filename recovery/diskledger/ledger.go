package diskledger

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery"
)

// A batch's bounds. There is one shard: a second lane would only compete for
// the same disk. A batch takes some milliseconds at the most to be written.
const (
	maxChanges = 4096
	maxBytes   = 4 << 20
)

// DefaultMinFree is Options.MinFree unless set.
const DefaultMinFree = 256 << 20

// Options of a ledger. The zero value is ready to use.
type Options struct {
	// MinFree is the free space on the disk, in bytes, below which Condition returns
	// recovery.ErrFull, and below a quarter of it recovery.ErrReserveUsed as well. 0 means
	// DefaultMinFree; a negative value means that the space is not watched.
	MinFree int64

	// Log gets failures of the disk and the recoveries from them. Nil means slog.Default().
	Log *slog.Logger

	fs        vfs.FS           // for tests; nil means the operating system's
	reopening recovery.Backoff // for tests; zero means the one below
	extent    extent           // for tests; zero means usual
}

// reopening spaces the attempts to open the directory after a failure. Each failed attempt costs
// some file operations on a failing disk.
var reopening = recovery.Backoff{Min: 20 * time.Millisecond, Max: 5 * time.Second}

// A Ledger is a ledger in a directory. It implements recovery.Ledger, Settings, Archive,
// Conditioner and Backer.
type Ledger struct {
	dir       string // without symbolic links once it is locked
	fs        vfs.FS
	real      bool        // fs is the operating system's
	marker    os.FileInfo // the marker file at Adopt
	log       *slog.Logger
	reopening recovery.Backoff
	space     space
	pressure  pressure
	removed   removals
	extent    extent

	// buried is set once there may be dead records. Until then a look-up of one, as every creation
	// with an id of the caller's makes it, reads nothing.
	buried atomic.Bool

	// sent is a sum of the batch that was sent last, with this seed. The same one again may be a
	// repeat of what was written. Batches come one at a time.
	sent uint64
	seed maphash.Seed

	settings sync.Mutex // held by PutSetting
	backup   sync.Mutex // held by Backup

	stop context.CancelFunc // ends keep
	kept chan struct{}      // closed when keep has returned

	closing  sync.Once
	closeErr error // of Close

	mu      sync.Mutex   // guards everything below
	state   state        // opened, adopted or closed
	lock    *pebble.Lock // while adopted
	engine  *engine      // nil while the directory is being opened anew
	outage  error        // why engine is nil
	scanned bool         // the first scan since Adopt has begun
}

// A state is a step in a ledger's life.
type state uint8

const (
	opened state = iota
	adopted
	closed
)

// Open names the directory of a ledger. It does no file operation: Adopt makes the directory and
// the ledger in it, if need be.
func Open(dir string, opts Options) (*Ledger, error) {
	if dir == "" {
		return nil, errors.New("the ledger needs a directory")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("the ledger's directory: %w", err)
	}
	l := &Ledger{dir: dir, fs: opts.fs, log: opts.Log, reopening: opts.reopening, seed: maphash.MakeSeed(), kept: make(chan struct{})}
	if l.fs == nil {
		l.fs, l.real = private{vfs.Default}, true
	}
	if l.log == nil {
		l.log = slog.Default()
	}
	if l.extent = opts.extent; l.extent == (extent{}) {
		l.extent = usual
	}
	if l.reopening == (recovery.Backoff{}) {
		l.reopening = reopening
	}
	switch {
	case opts.MinFree == 0:
		l.space.floor = DefaultMinFree
	case opts.MinFree > 0:
		l.space.floor = uint64(opts.MinFree)
	}
	return l, nil
}

// Adopt implements recovery.Ledger. It may be called again after an error.
func (l *Ledger) Adopt(ctx context.Context) (recovery.Terms, error) {
	if err := ctx.Err(); err != nil {
		return recovery.Terms{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.state {
	case closed:
		return recovery.Terms{}, l.closedError()
	case adopted:
		return recovery.Terms{}, fmt.Errorf("%w: this process has adopted %s already", recovery.ErrHeld, l.dir)
	}
	lock, err := l.lockDirectory()
	if err != nil {
		return recovery.Terms{}, err
	}
	e, err := l.adoptLocked(lock)
	if err != nil {
		return recovery.Terms{}, errors.Join(err, lock.Close())
	}
	l.state, l.lock, l.engine = adopted, lock, e
	ctx, l.stop = context.WithCancel(context.Background())
	go l.keep(ctx)
	return recovery.Terms{
		Shards:     1,
		ShardOf:    func([]byte) int { return 0 },
		MaxChanges: maxChanges,
		MaxBytes:   maxBytes,
	}, nil
}

func (l *Ledger) adoptLocked(lock *pebble.Lock) (*engine, error) {
	exists, err := l.readMarker()
	if err == nil {
		err = l.closeToOthers()
	}
	if err != nil {
		return nil, err
	}
	e, err := l.openEngine(lock, exists)
	if err != nil {
		return nil, err
	}
	if !exists {
		err = l.writeMarker()
	}
	if err == nil {
		err = l.noteMarker()
	}
	if err == nil {
		err = l.lookForDead(e)
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.snapshot = e.db.NewSnapshot()
	return e, nil
}

// Close implements recovery.Ledger. It waits for the calls under way, and up to 5 s for the store
// to flush its log.
func (l *Ledger) Close() error {
	l.closing.Do(func() {
		l.mu.Lock()
		before := l.state
		l.state = closed
		l.mu.Unlock()
		if before == adopted {
			l.closeErr = l.giveBack()
		}
	})
	return l.closeErr
}

func (l *Ledger) giveBack() error {
	l.stop()
	<-l.kept
	var err error
	l.mu.Lock()
	e := l.engine
	l.mu.Unlock()
	if e != nil {
		e.users.Wait()
		if e.fence.broken() == nil {
			if err := e.flush(flushWithin); err != nil {
				l.log.Warn("closing without a flush: the next start reads the journal", "dir", l.dir, "error", err)
			}
		}
		err = e.close()
	}
	return errors.Join(err, l.lock.Close())
}

func (l *Ledger) closedError() error {
	return fmt.Errorf("ledger in %s: %w", l.dir, recovery.ErrClosed)
}

// use returns the engine for one call, which ends with engine.users.Done.
func (l *Ledger) use(ctx context.Context) (*engine, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state != adopted:
		return nil, l.closedError()
	case l.engine == nil:
		return nil, fmt.Errorf("the ledger in %s is being opened anew after: %w", l.dir, l.outage)
	}
	if err := l.engine.fence.broken(); err != nil {
		return nil, fmt.Errorf("the ledger in %s has failed: %w", l.dir, err)
	}
	l.engine.users.Add(1)
	return l.engine, nil
}

// keep maintains the engine, and replaces one whose fence was cut.
func (l *Ledger) keep(ctx context.Context) {
	defer close(l.kept)
	for {
		l.mu.Lock()
		e := l.engine
		l.mu.Unlock()
		l.tend(ctx, e)
		if ctx.Err() != nil {
			return
		}
		cause := e.fence.broken()
		l.log.Error("the embedded store failed; opening it anew", "dir", l.dir, "error", cause)
		l.mu.Lock()
		l.engine, l.outage = nil, cause
		l.mu.Unlock()
		if err := e.close(); err != nil {
			l.log.Warn("closing the failed store", "dir", l.dir, "error", err)
		}
		if !l.reopen(ctx) {
			return
		}
	}
}

// reopen opens the directory until it succeeds, or returns false because ctx has ended.
func (l *Ledger) reopen(ctx context.Context) bool {
	began := time.Now()
	for attempt := 0; ; attempt++ {
		if l.reopening.Wait(ctx, attempt) != nil {
			return false
		}
		e, err := l.openEngine(l.lock, true)
		l.mu.Lock()
		l.engine, l.outage = e, err
		l.mu.Unlock()
		if err == nil {
			l.log.Info("the embedded store is open again", "dir", l.dir, "after", time.Since(began))
			return true
		}
		if attempt == 0 {
			l.log.Error("the embedded store cannot be opened; trying again", "dir", l.dir, "error", err)
		}
	}
}
