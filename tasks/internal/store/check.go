package store

import (
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/record"
)

// Check compares slots, index, arena and groups, and reports everything that does not agree. It
// looks at all of memory: it is meant for tests.
func (b *Store) Check() error {
	return errors.Join(b.checkSlots(), b.checkIndex(), b.checkGroups())
}

// checkSlots compares the slots with the index and the arena.
func (b *Store) checkSlots() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	used, vacancies := 0, 0
	var live int64
	segments := make(map[uint64]int)
	for n := uint32(1); int(n) < len(b.chunks)*ChunkSlots; n++ {
		sl := b.Slot(n)
		if sl.State == Vacant {
			continue
		}
		used++
		if n >= b.Slots() {
			fault("slot %d is in use, and only %d are looked at", n, b.Slots())
		}
		id := b.ID(sl)
		if at, ok := b.Find(id); !ok || at != n {
			fault("slot %d of %s: the index says %d, %v", n, id, at, ok)
		}
		e := b.arena.at(sl.rec)
		live += int64(len(e))
		segments[uint64(sl.rec>>32)] += len(e)
	}
	for n := b.vacant; n != 0; n = b.Slot(n).hash {
		vacancies++
	}
	if total := max(0, len(b.chunks)*ChunkSlots-1); used != b.used || vacancies != total-used {
		fault("%d slots in use; the store counts %d; %d of %d are vacant", used, b.used, vacancies, total)
	}
	if live != b.arena.live {
		fault("%d bytes of entries, the arena counts %d", live, b.arena.live)
	}
	for i := range b.arena.segments {
		if seg := &b.arena.segments[i]; seg.live != segments[uint64(i)] {
			fault("segment %d: %d bytes of entries, it counts %d", i, segments[uint64(i)], seg.live)
		}
	}
	return errs
}

// checkIndex counts the entries of the index.
func (b *Store) checkIndex() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	indexed := 0
	for i := range b.index.tables {
		t, held := &b.index.tables[i], 0
		for _, e := range t.entries {
			if e != 0 {
				held++
			}
		}
		if held != t.used {
			fault("index table %d counts %d, holds %d", i, t.used, held)
		}
		indexed += held
	}
	if indexed != b.used {
		fault("the index holds %d of %d", indexed, b.used)
	}
	return errs
}

// checkGroups compares the lists of groups with the records.
func (b *Store) checkGroups() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	grouped := make(map[uint32]string)
	for n := uint32(1); n < b.Slots(); n++ {
		sl := b.Slot(n)
		if sl.State == Vacant {
			continue
		}
		group := record.Group(b.Record(sl))
		if b.Grouped(sl) != (len(group) > 0) {
			fault("%s of the group %q: it has links: %v", b.ID(sl), group, b.Grouped(sl))
		} else if len(group) > 0 {
			grouped[n] = string(group)
		}
	}
	seen := make(map[string]bool)
	for i := range b.groups.tables {
		t, held := &b.groups.tables[i], 0
		for at, first := range t.firsts {
			if first == 0 {
				continue
			}
			held++
			n, before := uint32(first), uint32(0)
			group := grouped[n]
			if group == "" || seen[group] {
				fault("slot %d is the first of the group %q, seen %v", n, group, seen[group])
				continue
			}
			seen[group] = true
			if h := b.index.hash([]byte(group)); h>>56 != uint64(i) || t.positionOf(b, uint32(h), []byte(group)) != uint32(at) {
				fault("the group %q cannot be found", group)
			}
			for ; n != 0; before, n = n, b.following(n) {
				if grouped[n] != group || b.preceding(n) != before {
					fault("slot %d of the group %q is listed in %q, or listed twice; %d stands before it, it says %d", n, grouped[n], group, before, b.preceding(n))
					break
				}
				delete(grouped, n)
			}
		}
		if held != t.used {
			fault("group table %d counts %d, holds %d", i, t.used, held)
		}
	}
	for n, group := range grouped {
		fault("slot %d is not listed in its group %q", n, group)
	}
	if n := len(b.groups.cursors); n != 0 {
		fault("%d cursors were never closed", n)
	}
	return errs
}
