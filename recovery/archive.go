package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// ErrArchiveFull is returned by Rows when a period of a part has more than MaxPeriodBytes. Those
// that are left out are of no certain time.
var ErrArchiveFull = errors.New("the archive has more rows of that time than one read takes")

// Bounds of an archive.
const (
	// MaxKeepBytes bounds the rows of one Keep, by Row.Size.
	MaxKeepBytes = 1 << 20
	// MaxRowBytes bounds the value of a row, MaxRowName its name and its part.
	MaxRowBytes = 64 << 10
	MaxRowName  = 512
	// MaxPeriodBytes bounds what Rows holds at a time: the rows of one period of a part.
	MaxPeriodBytes = 8 << 20
)

// Archive is implemented by ledgers that keep rows for a while beside the tasks: what was counted,
// and who did what. No promise depends on a row. A ledger that loses what it confirmed loses rows,
// and writes none of them again. All nodes of a Fleet share one archive.
type Archive interface {
	// Keep writes rows of a series. A row replaces one of the same part, time and name. now is the
	// wall clock of the caller: what is older than s.Kept is forgotten, at most a period and an
	// hour later, and a row that is older is not written. It forgets no more than Forgets says.
	// After an error some rows may have been written.
	//
	// Keep never waits for a batch of tasks, and delays one by the sync of one small write at most.
	// Errors: ErrRow, ErrClosed, ErrFull, or why the ledger cannot be written.
	Keep(ctx context.Context, s Series, now time.Time, rows []Row) error
	// Rows visits the rows of a part from one time on, until before another one, in the order of
	// time and name, until visit returns false. It holds the rows of one period at a time. What is
	// kept meanwhile may be left out. After a period that has too many it goes on with the next
	// one, and returns ErrArchiveFull in the end. Other errors: ErrClosed, or why the ledger cannot
	// be read; then some rows have been visited.
	Rows(ctx context.Context, s Series, part string, from, to time.Time, visit func(Row) bool) error
}

// A Row is a value that is kept for a while.
type Row struct {
	Part  string // what Rows reads together, such as the minutes of a topic; may be empty
	At    time.Time
	Name  string // tells rows of one time apart, such as those of several nodes
	Value []byte
}

// A Series is a kind of rows: for how long they are kept, and in periods of which length. A ledger
// reads and forgets a period of a part together.
type Series struct {
	Name         string // in keys of Redis
	Code         byte   // in keys on the disk
	Kept, Period time.Duration
}

const day = 24 * time.Hour

// The series. Their names and codes are part of the layout of ledgers.
var (
	// MinuteRows and HourRows have what was counted.
	MinuteRows = Series{"minutes", 'm', day + time.Hour, time.Hour}
	HourRows   = Series{"hours", 'h', 31 * day, day}
	// WaveRows have how tasks have ended, at the minute of their deadline: up to a day ahead.
	WaveRows = Series{"waves", 'w', day + time.Hour, time.Hour}
	// MarkRows have what happened to nodes and topics, ActionRows who did what.
	MarkRows   = Series{"marks", 'k', 31 * day, time.Hour}
	ActionRows = Series{"actions", 'a', 31 * day, time.Hour}
)

// Begins returns when the period of a time began, as Unix time in seconds.
func (s Series) Begins(at time.Time) int64 {
	length := int64(s.Period / time.Second)
	unix := at.Unix()
	return unix - ((unix%length)+length)%length
}

// Oldest returns from when on rows are kept.
func (s Series) Oldest(now time.Time) time.Time { return now.Add(-s.Kept) }

// Forgets returns before when a Keep may forget rows. newest is when the newest row was, or its
// period began, before that Keep: so one clock that is ahead does not take all of a series.
func (s Series) Forgets(newest, now time.Time) time.Time {
	if next := newest.Add(s.Period); next.Before(now) {
		now = next
	}
	return s.Oldest(now)
}

// Periods yields when those periods began which have rows from one time on until before another
// one. It leaves out what is longer ago than twice s.Kept before to, which no ledger has.
func (s Series) Periods(from, to time.Time) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		if oldest := to.Add(-2 * s.Kept); from.Before(oldest) {
			from = oldest
		}
		for at := s.Begins(from); at < to.Unix() || at == to.Unix() && to.Nanosecond() > 0; at += int64(s.Period / time.Second) {
			if !yield(at) {
				return
			}
		}
	}
}

// Size is what a row counts of MaxKeepBytes.
func (r *Row) Size() int { return len(r.Part) + len(r.Name) + len(r.Value) + 16 }

// Compare orders rows by time, to the millisecond, and name.
func (r *Row) Compare(o *Row) int {
	return cmp.Or(cmp.Compare(r.At.UnixMilli(), o.At.UnixMilli()), strings.Compare(r.Name, o.Name))
}

// Within reports whether a row is from one time on and before another one.
func (r *Row) Within(from, to time.Time) bool {
	at := r.At.UnixMilli()
	return at >= from.UnixMilli() && at < to.UnixMilli()
}

// ErrRow is returned by Keep for a row that no ledger takes.
var ErrRow = errors.New("no row of an archive")

// Keepable returns the rows that are not too old already. Errors: ErrRow.
func (s Series) Keepable(now time.Time, rows []Row) ([]Row, error) {
	total, oldest := 0, s.Oldest(now)
	for i := range rows {
		r := &rows[i]
		total += r.Size()
		switch {
		case len(r.Part) > MaxRowName || len(r.Name) > MaxRowName:
			return nil, fmt.Errorf("%w: its part and name may have %d bytes each", ErrRow, MaxRowName)
		case strings.Contains(r.Part, "\x00"):
			return nil, fmt.Errorf("%w: its part has a zero byte: %q", ErrRow, r.Part)
		case len(r.Value) > MaxRowBytes:
			return nil, fmt.Errorf("%w: its value has %d bytes, at most %d are kept", ErrRow, len(r.Value), MaxRowBytes)
		}
	}
	if total > MaxKeepBytes {
		return nil, fmt.Errorf("%w: they have %d bytes, at most %d are kept at once", ErrRow, total, MaxKeepBytes)
	}
	tooOld := func(r Row) bool { return r.At.Before(oldest) }
	if slices.ContainsFunc(rows, tooOld) {
		rows = slices.DeleteFunc(slices.Clone(rows), tooOld)
	}
	return rows, nil
}
