package memshard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
)

// A Shard is one shard's records by id.
type Shard struct {
	Pending, Dead map[string]Record
	Marks         map[string]int64 // by spool, see recovery.Mark
}

// NewShard makes a shard without records.
func NewShard() Shard {
	return Shard{Pending: map[string]Record{}, Dead: map[string]Record{}}
}

// A Record is where a record stands, and its bytes.
type Record struct {
	Spot recovery.Spot
	data []byte // never changed once stored
}

// An Entry is a record with its name.
type Entry struct {
	shard int
	ID    string
	Record
}

// NewEntry names a record of a shard.
func NewEntry(shard int, id string, r Record) Entry { return Entry{shard, id, r} }

// HandOut makes the entry that callbacks get. They must not change its slices.
func (e Entry) HandOut() recovery.Entry {
	return recovery.Entry{Shard: e.shard, ID: []byte(e.ID), Spot: e.Spot, Data: e.data}
}

// Apply makes the changes of a batch, unless the shard has the batch's mark. With strict, it panics
// when a change starts from a place where its record is not.
func (sh *Shard) Apply(b *recovery.Batch, strict bool) {
	if mark := b.Mark(); mark.Number > 0 {
		if sh.Marks[mark.Spool] >= mark.Number {
			return
		}
		if sh.Marks == nil {
			sh.Marks = map[string]int64{}
		}
		sh.Marks[mark.Spool] = mark.Number
	}
	for i := range b.Len() {
		c := b.At(i)
		id := string(c.ID)
		if strict {
			sh.check(id, c)
		}
		switch c.From.Place {
		case recovery.Pending:
			delete(sh.Pending, id)
		case recovery.Dead:
			delete(sh.Dead, id)
		}
		r := Record{Spot: c.To, data: append([]byte{}, c.Data...)}
		switch c.To.Place {
		case recovery.Pending:
			sh.Pending[id] = r
		case recovery.Dead:
			sh.Dead[id] = r
		}
	}
}

// check panics if the record is neither where the change takes it from nor, because the batch is a
// repetition, where it takes it to.
func (sh *Shard) check(id string, c recovery.Change) {
	for _, held := range []map[string]Record{sh.Pending, sh.Dead} {
		if r, ok := held[id]; ok && r.Spot != c.From && r.Spot != c.To {
			panic(fmt.Sprintf("records in memory: %s goes from %+v to %+v, but stands at %+v", id, c.From, c.To, r.Spot))
		}
	}
}

// Buried lists a shard's dead records of a label.
func (sh *Shard) Buried(n int, label string, after recovery.Ref) []Entry {
	var all []Entry
	for id, r := range sh.Dead {
		if label == "" || r.Spot.Label == label && isAfter(r.Spot.At, id, after) {
			all = append(all, Entry{n, id, r})
		}
	}
	return all
}

// VisitDead hands out dead records in the order of ListDead.
func VisitDead(all []Entry, visit func(e recovery.Entry) bool) {
	slices.SortFunc(all, func(a, b Entry) int {
		return cmp.Or(strings.Compare(a.Spot.Label, b.Spot.Label),
			cmp.Compare(a.Spot.At, b.Spot.At), strings.Compare(a.ID, b.ID))
	})
	for _, e := range all {
		if !visit(e.HandOut()) {
			break
		}
	}
}

// isAfter reports whether a record comes after the one that ref names.
func isAfter(at int64, id string, ref recovery.Ref) bool {
	return ref == recovery.Ref{} || at > ref.Next || at == ref.Next && id > ref.ID
}
