package diskledger

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/lapsehq/lapse/recovery"
)

// The floor of each benchmark is bare Pebble with the same options, doing the same in batches of
// the same size. Both run in turns within one benchmark, and the ratio is the result.
// -benchtime=5x means five turns; the first one warms up.

const benchRecord = 250

// benchID is an id like those that Lapse makes.
func benchID(dst []byte, n int) []byte {
	raw := [16]byte{0: 1, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
	return hex.AppendEncode(dst[:0], raw[:])
}

// bare is Pebble as a program without the ledger would use it.
type bare struct {
	b  *testing.B
	db *pebble.DB
}

func openBare(b *testing.B) *bare {
	o := tuning(vfs.Default, pebbleLog{quiet(), newFence(vfs.Default)})
	o.DisableWAL, o.MemTableSize = false, 16<<20
	db, err := pebble.Open(b.TempDir(), o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	return &bare{b, db}
}

func (w *bare) write(from, to, batch int, remove bool) {
	record := make([]byte, benchRecord)
	var id, key []byte
	for n := from; n < to; n += batch {
		wb := w.db.NewBatch()
		for i := n; i < min(n+batch, to); i++ {
			id = benchID(id, i)
			key = appendPending(key[:0], int64(i), id)
			var err error
			if remove {
				err = wb.Delete(key, nil)
			} else {
				err = wb.Set(key, record, nil)
			}
			if err != nil {
				w.b.Fatal(err)
			}
		}
		if err := wb.Commit(pebble.Sync); err != nil {
			w.b.Fatal(err)
		}
		_ = wb.Close()
	}
}

// committed is the ledger behind its committer.
type committed struct {
	b      *testing.B
	ledger *Ledger
	terms  recovery.Terms
	mixed  int // deadlines are mixed within this many records; 0: they are in order
}

// deadline is when record i is due.
func (w *committed) deadline(i int) int64 {
	if w.mixed == 0 {
		return int64(i)
	}
	// An odd number that no power of two divides: each deadline comes once.
	return int64(uint64(i) * 2_654_435_761 % uint64(w.mixed))
}

func openCommitted(b *testing.B) *committed {
	l, err := Open(b.TempDir(), Options{Log: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	terms, err := l.Adopt(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	// As every node does: the scan releases the state at Adopt.
	if err := l.Scan(b.Context(), func([]recovery.Entry) error { return nil }); err != nil {
		b.Fatal(err)
	}
	return &committed{b: b, ledger: l, terms: terms}
}

func (w *committed) write(from, to, batch int, remove bool) {
	record := make([]byte, benchRecord)
	terms := w.terms
	terms.MaxChanges = batch
	room := make(chan int, 4) // how many batches the caller may be ahead
	for range cap(room) {
		room <- batch
	}
	committer := recovery.NewCommitter(recovery.CommitterConfig[struct{}]{
		Ledger: w.ledger,
		Terms:  terms,
		Done: func(_ int, tags []struct{}, err error) {
			if err != nil {
				w.b.Error(err)
			}
			room <- len(tags)
		},
		Log: quiet(),
	})
	var id []byte
	left := 0
	for i := from; i < to; i++ {
		for left == 0 {
			left = <-room
		}
		left--
		id = benchID(id, i)
		c := recovery.Change{ID: id, To: recovery.Spot{Place: recovery.Pending, At: w.deadline(i)}, Data: record}
		if remove {
			c.From, c.To, c.Data = c.To, recovery.Spot{}, nil
		}
		committer.Submit(0, c, struct{}{})
	}
	go func() { // Done must not block while Close waits
		for range room {
		}
	}()
	if err := committer.Close(w.b.Context()); err != nil {
		w.b.Fatal(err)
	}
	close(room)
}

// compare runs one turn of each, b.N times, and reports both rates and the ratio. The two take
// turns at going first: compactions that one leaves behind slow the other down.
func compare(b *testing.B, unit string, per int, floor, ours func(turn int)) {
	var spent [2]time.Duration
	for turn := range b.N {
		for i := range spent {
			side := (i + turn) % len(spent)
			began := time.Now()
			[]func(int){floor, ours}[side](turn)
			if turn > 0 || b.N == 1 {
				spent[side] += time.Since(began)
			}
		}
	}
	done := float64(max(b.N-1, 1) * per)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(done/spent[0].Seconds(), "bare-"+unit+"/s")
	b.ReportMetric(done/spent[1].Seconds(), unit+"/s")
	b.ReportMetric(spent[0].Seconds()/spent[1].Seconds(), "ratio")
}

// settle ends the compactions that preparing a benchmark has left to do.
func (w *committed) settle() {
	if err := w.ledger.engine.settle(w.b.Context()); err != nil {
		w.b.Fatal(err)
	}
	compact(w.b, w.ledger.engine.db)
}

func compact(b *testing.B, db *pebble.DB) {
	if err := db.Compact(b.Context(), []byte{0}, []byte{0xFF}, false); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkPut(b *testing.B) {
	for _, batch := range []int{1024, 64} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			per := 200 * batch
			floor, ours := openBare(b), openCommitted(b)
			compare(b, "puts", per,
				func(turn int) { floor.write(turn*per, (turn+1)*per, batch, false) },
				func(turn int) { ours.write(turn*per, (turn+1)*per, batch, false) })
		})
	}
}

func BenchmarkDeleteAtFront(b *testing.B) {
	for _, batch := range []int{1024, 64} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			per := 200 * batch
			floor, ours := openBare(b), openCommitted(b)
			floor.write(0, b.N*per, 1024, false)
			ours.write(0, b.N*per, 1024, false)
			compact(b, floor.db)
			ours.settle()
			compare(b, "deletes", per,
				func(turn int) { floor.write(turn*per, (turn+1)*per, batch, true) },
				func(turn int) { ours.write(turn*per, (turn+1)*per, batch, true) })
		})
	}
}

// BenchmarkMixedDeadlines compares deadlines in order with deadlines in no order at all, which
// compaction has to sort. A turn writes 2^20 records into a new store of each kind; the cost is
// the ratio of the times until compaction is done too.
func BenchmarkMixedDeadlines(b *testing.B) {
	const records = 1 << 20
	turn := func(mixed int) (put, all time.Duration) {
		w := openCommitted(b)
		w.mixed = mixed
		began := time.Now()
		w.write(0, records, 1024, false)
		put = time.Since(began)
		w.settle()
		all = time.Since(began)
		return put, all
	}
	var puts, alls [2]time.Duration
	for n := range b.N {
		for i := range puts {
			side := (i + n) % len(puts)
			put, all := turn(side * records)
			puts[side] += put
			alls[side] += all
		}
	}
	done := float64(b.N * records)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(done/puts[0].Seconds(), "in-order-puts/s")
	b.ReportMetric(done/puts[1].Seconds(), "mixed-puts/s")
	b.ReportMetric(alls[1].Seconds()/alls[0].Seconds(), "cost")
}

// BenchmarkLoneCaller is one change at a time: no other caller shares its sync. Its floor is a
// write of as many bytes into a file that is long enough, and a sync.
func BenchmarkLoneCaller(b *testing.B) {
	const per = 200
	ours := openCommitted(b)
	file, err := os.Create(filepath.Join(b.TempDir(), "file"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = file.Close() })
	if _, err := file.Write(make([]byte, usual.segment)); err != nil {
		b.Fatal(err)
	}
	var d draft
	d.reset()
	d.change(recovery.Change{ID: benchID(nil, 0), To: recovery.Spot{Place: recovery.Pending}, Data: make([]byte, benchRecord)})
	answered := make(chan error, 1)
	committer := recovery.NewCommitter(recovery.CommitterConfig[struct{}]{
		Ledger: ours.ledger, Terms: ours.terms, Log: quiet(),
		Done: func(_ int, _ []struct{}, err error) { answered <- err },
	})
	b.Cleanup(func() { _ = committer.Close(b.Context()) })
	record := make([]byte, benchRecord)
	var id []byte
	compare(b, "commits", per,
		func(turn int) {
			for i := range per {
				if _, err := file.WriteAt(d.frame, int64((turn*per+i)*len(d.frame)%usual.segment)); err != nil {
					b.Fatal(err)
				}
				if err := unix.Fdatasync(int(file.Fd())); err != nil {
					b.Fatal(err)
				}
			}
		},
		func(turn int) {
			for i := range per {
				id = benchID(id, turn*per+i)
				committer.Submit(0, recovery.Change{
					ID: id, To: recovery.Spot{Place: recovery.Pending, At: int64(i)}, Data: record,
				}, struct{}{})
				if err := <-answered; err != nil {
					b.Fatal(err)
				}
			}
		})
}

// BenchmarkOpenAndScan is the cost of a restart with a million tasks.
func BenchmarkOpenAndScan(b *testing.B) {
	const records = 1_000_000
	w := openCommitted(b)
	w.write(0, records, 1024, false)
	dir := w.ledger.dir
	if err := w.ledger.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		scanAll(b, dir, records)
	}
}

// BenchmarkScanAfterDeletes is the same after 90 % went at the front, at once.
func BenchmarkScanAfterDeletes(b *testing.B) {
	const records = 1_000_000
	w := openCommitted(b)
	w.write(0, records, 1024, false)
	w.write(0, records*9/10, 1024, true)
	dir := w.ledger.dir
	if err := w.ledger.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		scanAll(b, dir, records/10)
	}
}

func scanAll(b *testing.B, dir string, want int) {
	l, err := Open(dir, Options{Log: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Adopt(b.Context()); err != nil {
		b.Fatal(err)
	}
	got := 0
	if err := l.Scan(b.Context(), func(page []recovery.Entry) error {
		got += len(page)
		return nil
	}); err != nil || got != want {
		b.Fatalf("read %d records of %d: %v", got, want, err)
	}
}
