package minutes

import (
	"cmp"
	"slices"
)

// A Missed counts the tasks of a topic whose deadline has passed and of which an attempt has failed
// since, until they are delivered or dead, or get another deadline.
type Missed struct {
	hours []missedHour // by hour, none of them empty
	Count int64        // all of them
	Ready int64        // of these, those that are ready
}

// A missedHour has the tasks whose deadlines are in one hour. So a year of deadlines moves by
// thousands of rows when one is entered, and not by half a million.
type missedHour struct {
	hour    int64          // Unix
	minutes []missedMinute // by minute, none of them empty
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
	minute := MinuteOf(due)
	i, found := m.find(hourOf(minute))
	if !found {
		m.hours = slices.Insert(m.hours, i, missedHour{hour: hourOf(minute)})
	}
	h := &m.hours[i]
	k, found := h.find(minute)
	if !found {
		h.minutes = slices.Insert(h.minutes, k, missedMinute{minute: minute, first: due})
	}
	h.minutes[k].tasks++
	h.minutes[k].first = min(h.minutes[k].first, due)
}

// Leave takes back what Enter did.
func (m *Missed) Leave(due int64) {
	minute := MinuteOf(due)
	i, found := m.find(hourOf(minute))
	if !found {
		return
	}
	h := &m.hours[i]
	k, found := h.find(minute)
	if !found {
		return
	}
	m.Count--
	if h.minutes[k].tasks--; h.minutes[k].tasks > 0 {
		return
	}
	if h.minutes = slices.Delete(h.minutes, k, k+1); len(h.minutes) > 0 {
		return
	}
	if m.hours = slices.Delete(m.hours, i, i+1); len(m.hours) == 0 {
		m.hours = nil
	}
}

func (m *Missed) find(hour int64) (int, bool) {
	return slices.BinarySearchFunc(m.hours, hour, func(h missedHour, hour int64) int { return cmp.Compare(h.hour, hour) })
}

func (h *missedHour) find(minute int64) (int, bool) {
	return slices.BinarySearchFunc(h.minutes, minute, func(r missedMinute, minute int64) int { return cmp.Compare(r.minute, minute) })
}

// Oldest returns the earliest deadline, in Unix milliseconds. It is that of a task which has left
// since only if another one remains whose deadline is in the same minute.
func (m *Missed) Oldest() (due int64, ok bool) {
	if len(m.hours) == 0 {
		return 0, false
	}
	return m.hours[0].minutes[0].first, true
}

// SameMinutes reports whether two count as many tasks in each minute.
func (m *Missed) SameMinutes(o *Missed) bool {
	return slices.EqualFunc(m.hours, o.hours, func(a, b missedHour) bool {
		return slices.EqualFunc(a.minutes, b.minutes, func(a, b missedMinute) bool {
			return a.minute == b.minute && a.tasks == b.tasks && a.first <= b.first
		})
	})
}

// hourOf returns the Unix hour of a Unix minute, rounded towards 1970.
func hourOf(minute int64) int64 { return minute / 60 }

// MinuteOf returns the Unix minute of a time in Unix milliseconds.
func MinuteOf(at int64) int64 {
	minute := at / 60_000
	if at < 60_000*minute {
		minute--
	}
	return minute
}
