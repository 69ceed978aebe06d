package minutes

import (
	"cmp"
	"slices"
)

// A Missed counts the tasks of a topic whose deadline has passed and of which an attempt has failed
// since, until they are delivered or dead, or get another deadline.
type Missed struct {
	rows  []missedMinute // by minute, none of them empty
	Count int64          // all of them
	Ready int64          // of these, those that are ready
}

// A missedMinute counts the tasks whose deadlines are in one minute.
type missedMinute struct {
	minute int64 // Unix
	tasks  int64
	first  int64 // the earliest of the deadlines since the row was made, Unix ms
}

// Enter counts a task by its deadline, in Unix milliseconds.
func (m *Missed) Enter(due int64) {
	m.Count++
	i, found := m.find(due)
	if !found {
		m.rows = slices.Insert(m.rows, i, missedMinute{minute: MinuteOf(due), first: due})
	}
	m.rows[i].tasks++
	m.rows[i].first = min(m.rows[i].first, due)
}

// Leave takes back what Enter did.
func (m *Missed) Leave(due int64) {
	i, found := m.find(due)
	if !found {
		return
	}
	m.Count--
	if m.rows[i].tasks--; m.rows[i].tasks == 0 {
		if m.rows = slices.Delete(m.rows, i, i+1); len(m.rows) == 0 {
			m.rows = nil
		}
	}
}

func (m *Missed) find(due int64) (int, bool) {
	return slices.BinarySearchFunc(m.rows, MinuteOf(due), func(r missedMinute, minute int64) int {
		return cmp.Compare(r.minute, minute)
	})
}

// Oldest returns the earliest deadline, in Unix milliseconds. It is that of a task which has left
// since only if another one remains whose deadline is in the same minute.
func (m *Missed) Oldest() (due int64, ok bool) {
	if len(m.rows) == 0 {
		return 0, false
	}
	return m.rows[0].first, true
}

// SameMinutes reports whether two count as many tasks in each minute.
func (m *Missed) SameMinutes(o *Missed) bool {
	return slices.EqualFunc(m.rows, o.rows, func(a, b missedMinute) bool {
		return a.minute == b.minute && a.tasks == b.tasks && a.first <= b.first
	})
}

// MinuteOf returns the Unix minute of a time in Unix milliseconds.
func MinuteOf(at int64) int64 {
	minute := at / 60_000
	if at < 60_000*minute {
		minute--
	}
	return minute
}
