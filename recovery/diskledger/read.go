package diskledger

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lapsehq/lapse/recovery"
)

// A reader reads records one by one and keeps copies, so that they are visited when the engine is
// no longer in use: a callback may take long, and may call the ledger.
type reader struct {
	*engine
	value []byte // what get has read, until the next get
	err   error

	entries   []recovery.Entry
	positions []int
}

// get reads one key, and reports whether it is there.
func (r *reader) get(key []byte) bool {
	if r.err != nil {
		return false
	}
	value, closer, err := r.db.Get(key)
	if err != nil {
		if !errors.Is(err, pebble.ErrNotFound) {
			r.err = fmt.Errorf("reading the store: %w", err)
		}
		return false
	}
	r.value = append(r.value[:0], value...)
	r.err = closer.Close()
	return true
}

// seeksAtOnce is after how many lookups other goroutines get the processor. One may take 50 µs. The
// runtime interrupts a goroutine only after 10 ms, and so late would be a task that is due then.
const seeksAtOnce = 4

// seekEach looks up n keys of one kind and calls hit for those that exist. One iterator does that
// in a fraction of the time of as many Gets: most dead ids that are looked up are absent, and an
// audit looks up many at once.
func (r *reader) seekEach(kind byte, n int, key func(i int) []byte, hit func(i int, value []byte)) {
	it, err := r.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kind}, UpperBound: []byte{kind + 1}})
	if err != nil {
		r.err = fmt.Errorf("reading the store: %w", err)
		return
	}
	var limit []byte
	for i := 0; i < n && r.err == nil; i++ {
		if i%seeksAtOnce == seeksAtOnce-1 {
			runtime.Gosched()
		}
		k := key(i)
		// Without a limit, an absent key would be sought beyond all the
		// deleted ones that follow it.
		limit = append(append(limit[:0], k...), 0)
		if it.SeekGEWithLimit(k, limit) == pebble.IterValid && bytes.Equal(it.Key(), k) {
			var value []byte
			if value, r.err = it.ValueAndErr(); r.err == nil {
				hit(i, value)
			}
		}
	}
	r.err = errors.Join(r.err, it.Error(), it.Close())
}

// keep copies an entry, which belongs to the i-th ref.
func (r *reader) keep(i int, e recovery.Entry) {
	e.ID = append([]byte{}, e.ID...)
	e.Data = append([]byte{}, e.Data...)
	r.entries = append(r.entries, e)
	r.positions = append(r.positions, i)
}

// handOut releases the engine and then visits the entries, unless a read has failed.
func (r *reader) handOut(found func(i int, e recovery.Entry)) error {
	err := r.err
	if broken := r.fence.broken(); broken != nil {
		err = fmt.Errorf("reading the store: %w", broken)
	}
	r.users.Done()
	if err != nil {
		return err
	}
	for i, e := range r.entries {
		found(r.positions[i], e)
	}
	return nil
}

// A page is a copy of consecutive keys and values.
type page struct {
	buf   []byte
	items []struct{ key, value, end int } // offsets in buf
	next  []byte                          // where the next page begins
	last  bool                            // there is no next page
}

// A page's bounds: what Memory loads under one lock, and what is copied.
const (
	pageEntries = 1024
	pageBytes   = 1 << 20
)

// read fills the page with keys from p.next on, below upper, of a store or a
// snapshot of it.
func (p *page) read(e *engine, from pebble.Reader, upper []byte) error {
	p.buf, p.items = p.buf[:0], p.items[:0]
	it, err := from.NewIter(&pebble.IterOptions{LowerBound: p.next, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	runtime.Gosched() // for the reason of seeksAtOnce; a page may take milliseconds
	valid := it.First()
	for ; valid && len(p.items) < pageEntries && len(p.buf) < pageBytes; valid = it.Next() {
		start := len(p.buf)
		p.buf = append(p.buf, it.Key()...)
		split := len(p.buf)
		value, err := it.ValueAndErr()
		if err != nil {
			return errors.Join(fmt.Errorf("reading the store: %w", err), it.Close())
		}
		p.buf = append(p.buf, value...)
		p.items = append(p.items, struct{ key, value, end int }{start, split, len(p.buf)})
	}
	p.last = !valid
	if n := len(p.items); n > 0 {
		p.next = append(append(p.next[:0], p.key(n-1)...), 0)
	}
	if err := errors.Join(it.Error(), it.Close(), e.fence.broken()); err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	return nil
}

func (p *page) key(i int) []byte {
	it := &p.items[i]
	return p.buf[it.key:it.value:it.value]
}

// value is never nil.
func (p *page) value(i int) []byte {
	it := &p.items[i]
	return p.buf[it.value:it.end:it.end]
}
