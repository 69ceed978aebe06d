package diskledger

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// An engine is one instance of Pebble behind its fence.
type engine struct {
	db    *pebble.DB
	fence *fence
	users sync.WaitGroup // calls under way; Add under Ledger.mu while current

	mu       sync.Mutex       // guards snapshot
	snapshot *pebble.Snapshot // the state at Adopt; nil after the first scan, or a reopening
}

// tuning returns Pebble's options for this use: batches of some hundred bytes a
// record that are written once, in order of their deadlines more or less, live
// for minutes or days, are hardly ever read, and are deleted at the front.
func tuning(fs vfs.FS, log pebble.Logger) *pebble.Options {
	o := &pebble.Options{
		FS:     fs,
		Logger: log,

		// Named, so that a new version of the library does not rewrite stores
		// in a way that an older Lapse cannot read. From FormatWALSyncChunks
		// on, Pebble notices a log that is damaged before its end.
		FormatMajorVersion: pebble.FormatTableFormatV6,

		// A task that is finished before its memtable is flushed costs no table at all, so a larger
		// memtable pays. It is also what a start after a crash has to replay. Pebble holds up to
		// two while it is idle, and takes only the first 256 KiB, until there are writes.
		MemTableSize: 16 << 20,
		// While one is being flushed the next one takes the writes. A third would only delay work
		// that the disk cannot keep up with, and lengthen the log that a crash leaves to be read.
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

// openEngine opens the store in dir, whose lock the caller holds.
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
	return &engine{db: db, fence: f}, nil
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
	return e.db.Close()
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

// commit writes a batch durably. After an error the outcome is open.
//
// db.Apply must not be used: when the sync fails, it ends the process or, if
// its logger returns, answers nil.
func (e *engine) commit(b *pebble.Batch) error {
	err := e.db.ApplyNoSyncWait(b, pebble.Sync)
	if err == nil {
		// Behind a cut fence Pebble may have returned without queueing the sync, and the wait would
		// never end.
		if err = e.fence.broken(); err == nil {
			err = b.SyncWait()
		}
	}
	if err != nil {
		e.fence.cut(err)
	}
	if err := e.fence.broken(); err != nil {
		return fmt.Errorf("writing to the store: %w", err)
	}
	return b.Close()
}
