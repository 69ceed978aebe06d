package diskledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery/diskledger/internal/journal"
)

// An engine is one instance of Pebble, with the journal before it, behind their fence.
type engine struct {
	db      *pebble.DB
	journal *journal.Journal
	young   *young
	extent  extent
	fence   *fence
	users   sync.WaitGroup // calls under way; Add under Ledger.mu while current

	writing sync.Mutex // guards draft, and is held by what writes to the journal
	draft   draft

	retiring  sync.Mutex    // held while segments are retired
	unflushed atomic.Bool   // the store has got something since its last flush
	full      chan struct{} // holds a token when there may be something to retire

	mu        sync.Mutex       // guards everything below
	snapshot  *pebble.Snapshot // the state at Adopt; nil after the first scan, or a reopening
	forgotten map[byte]int64   // by series: before which period its rows were deleted
}

// tuning returns Pebble's options for this use: records of some hundred bytes that outlive the
// journal, are written once, live for minutes or days, are hardly ever read, and are deleted at the
// front.
func tuning(fs vfs.FS, log pebble.Logger) *pebble.Options {
	o := &pebble.Options{
		FS:     fs,
		Logger: log,

		// Named, so that a new version of the library does not rewrite stores
		// in a way that an older Lapse cannot read. From FormatWALSyncChunks
		// on, Pebble notices a log that is damaged before its end.
		FormatMajorVersion: pebble.FormatTableFormatV6,

		// The journal has what is not in a table yet.
		DisableWAL: true,

		// What is left of a segment of the journal comes in one batch. Pebble sorts a batch of at
		// least half of this size and writes it to a table, without a memtable. It takes only the
		// first 256 KiB until there are writes.
		MemTableSize: 8 << 20,
		// While one is being flushed the next one takes the writes. A third would only delay work
		// that the disk cannot keep up with, and lengthen the journal.
		MemTableStopWritesThreshold: 2,

		// Tables are read at replay, once, front to back, and by small audits.
		CacheSize:    4 << 20,
		MaxOpenFiles: 512,

		L0CompactionThreshold: 4,
		L0StopWritesThreshold: 64,
		LBaseMaxBytes:         64 << 20,
	}
	o.EnsureDefaults()
	return o
}

// openEngine opens the store in the directory, whose lock the caller holds, or makes one.
func (l *Ledger) openEngine(lock *pebble.Lock, exists bool) (e *engine, err error) {
	f := newFence(l.fs)
	log := pebbleLog{l.log, f}
	o := tuning(f, log)
	o.Lock = lock
	o.ErrorIfNotExists = exists
	o.ErrorIfNotPristine = !exists
	o.EventListener = newAlarms(log, l.dir).listener()
	// Pebble panics on some contents of a damaged directory.
	defer func() {
		if r := recover(); r != nil {
			e, err = nil, fmt.Errorf("opening the store in %s: %v", l.dir, r)
		}
	}()
	db, err := pebble.Open(l.dir, o)
	if err == nil && f.broken() != nil {
		_ = db.Close() // it has written nothing since it broke
		err = f.broken()
	}
	switch {
	case f.broken() != nil:
		return nil, fmt.Errorf("opening the store in %s: %w", l.dir, f.broken())
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		return nil, fmt.Errorf("the ledger in %s is torn: it has no manifest, which lists its files", l.dir)
	case errors.Is(err, pebble.ErrDBNotPristine) && exists:
		return nil, fmt.Errorf("the ledger in %s is torn: it has no marker.format-version", l.dir)
	case errors.Is(err, pebble.ErrDBNotPristine):
		return nil, fmt.Errorf("the ledger in %s is torn: it holds records, but no file %s", l.dir, markerName)
	case err != nil:
		return nil, fmt.Errorf("opening the store in %s: %w", l.dir, err)
	}
	recent := &young{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	e = &engine{db: db, young: recent, extent: l.extent, fence: f, full: make(chan struct{}, 1)}
	if err := e.openJournal(l.dir, exists); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the store in %s: %w", l.dir, err), e.close())
	}
	return e, nil
}

// openJournal opens the journal, and has the store take what that has.
func (e *engine) openJournal(dir string, exists bool) (err error) {
	e.journal, err = journal.Open(journal.Options{FS: e.fence, Dir: dir, Size: e.extent.segment}, exists)
	if err == nil {
		err = e.journal.Replay(func(at journal.Place, frame []byte) error { return e.take(at, frame, true) })
	}
	if err == nil {
		err = e.retireTo(context.Background(), 0, 1)
	}
	if err == nil {
		err = e.journal.Begin()
	}
	return cmp.Or(e.fence.broken(), err)
}

// close waits for the calls under way and closes the store.
func (e *engine) close() (err error) {
	e.users.Wait()
	e.dropSnapshot()
	defer func() {
		// Behind a cut fence Pebble may find its own files missing.
		if r := recover(); r != nil {
			err = fmt.Errorf("closing the store: %v", r)
		}
	}()
	if e.journal != nil {
		err = e.journal.Close()
	}
	return errors.Join(err, e.db.Close())
}

// dropSnapshot releases the state at Adopt.
func (e *engine) dropSnapshot() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snapshot != nil {
		_ = e.snapshot.Close() // cannot fail on an open store
		e.snapshot = nil
	}
}
