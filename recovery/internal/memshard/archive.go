package memshard

import (
	"bytes"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// Rows are the rows of an archive, by series and part, each part in order.
type Rows map[string]map[string][]recovery.Row

// Keep enters rows, and forgets those of the series that are too old.
func (r Rows) Keep(s recovery.Series, now time.Time, rows []recovery.Row) error {
	rows, err := s.Keepable(now, rows)
	if err != nil {
		return err
	}
	parts := r[s.Name]
	if parts == nil {
		parts = map[string][]recovery.Row{}
		r[s.Name] = parts
	}
	var newest time.Time
	for _, part := range parts {
		if last := part[len(part)-1].At; last.After(newest) {
			newest = last
		}
	}
	for i := range rows {
		row := rows[i]
		row.At = time.UnixMilli(row.At.UnixMilli()).UTC()
		row.Value = bytes.Clone(row.Value)
		part := parts[row.Part]
		at, found := slices.BinarySearchFunc(part, row, func(a, b recovery.Row) int { return a.Compare(&b) })
		if found {
			part[at] = row
			continue
		}
		parts[row.Part] = slices.Insert(part, at, row)
	}
	oldest := s.Forgets(newest, now)
	for name, part := range parts {
		part = slices.DeleteFunc(part, func(row recovery.Row) bool { return row.At.Before(oldest) })
		if parts[name] = part; len(part) == 0 {
			delete(parts, name)
		}
	}
	return nil
}

// Within returns copies of the rows of a part from one time on, until before another one.
func (r Rows) Within(s recovery.Series, part string, from, to time.Time) (rows []recovery.Row) {
	for _, row := range r[s.Name][part] {
		if row.Within(from, to) {
			row.Value = bytes.Clone(row.Value)
			rows = append(rows, row)
		}
	}
	return rows
}
