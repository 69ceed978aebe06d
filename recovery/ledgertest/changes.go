package ledgertest

import (
	"fmt"
	"strings"

	"github.com/lapsehq/lapse/recovery"
)

// noon is a time like those that records have.
const noon = 1_795_000_000_000

func pending(at int64) recovery.Spot {
	return recovery.Spot{Place: recovery.Pending, At: at}
}

func dead(label string, at int64) recovery.Spot {
	return recovery.Spot{Place: recovery.Dead, At: at, Label: label}
}

// change takes id from its place in the model to a new place.
func (f *fixture) change(id string, to recovery.Spot, data string) recovery.Change {
	c := recovery.Change{ID: []byte(id), From: f.model[id].spot, To: to}
	if to.Place != recovery.Nowhere {
		c.Data = append([]byte{}, data...)
	}
	return c
}

func (f *fixture) put(id string, to recovery.Spot, data string) {
	f.Helper()
	f.apply(f.change(id, to, data))
}

func (f *fixture) remove(id string) {
	f.Helper()
	f.apply(f.change(id, recovery.Spot{}, ""))
}

// testChanges does each kind of change.
func testChanges(f *fixture) {
	f.put("move", pending(noon), "1")
	f.put("move", pending(noon+5), "2")
	f.put("move", pending(noon-5), "3")
	f.put("rewrite", pending(noon), "1")
	f.put("rewrite", pending(noon), "a longer one")
	f.put("delete", pending(noon), "1")
	f.remove("delete")
	f.put("again", pending(noon), "1")
	f.remove("again")
	f.put("again", pending(noon), "2")
	f.put("bury", pending(noon), "1")
	f.put("bury", dead("topic", noon+1), "2")
	f.put("requeue", pending(noon), "1")
	f.put("requeue", dead("topic", noon+1), "2")
	f.put("requeue", pending(noon+2), "3")
	f.put("remove", pending(noon), "1")
	f.put("remove", dead("topic", noon+1), "2")
	f.remove("remove")
	f.put("born-dead", dead("topic", noon), "1")
	f.put("requeue-born-dead", dead("topic", noon), "1")
	f.put("requeue-born-dead", pending(noon+2), "2")
	f.put("remove-born-dead", dead("topic", noon), "1")
	f.remove("remove-born-dead")
	f.put("relabel", dead("topic", noon), "1")
	f.put("relabel", dead("other", noon), "2")
	f.put("redate", dead("topic", noon), "1")
	f.put("redate", dead("topic", noon+9), "2")
	f.verify()
	f.crash()
}

// testRepeatedBatch sends each batch twice, as the committer does when the
// first answer was lost.
func testRepeatedBatch(f *fixture) {
	steps := []func(id string, n int) (recovery.Spot, string){
		func(_ string, n int) (recovery.Spot, string) { return pending(noon + int64(n)), "created" },
		func(_ string, n int) (recovery.Spot, string) { return pending(noon - int64(n)), "moved" },
		func(_ string, n int) (recovery.Spot, string) { return dead("topic", noon+int64(n)), "buried" },
		func(_ string, n int) (recovery.Spot, string) { return pending(noon + 2*int64(n)), "requeued" },
		func(_ string, n int) (recovery.Spot, string) {
			if n%2 == 0 {
				return recovery.Spot{}, ""
			}
			return dead("topic", noon), "buried"
		},
		func(string, int) (recovery.Spot, string) { return recovery.Spot{}, "" },
		func(_ string, n int) (recovery.Spot, string) { return dead("topic", noon+int64(n)), "created dead" },
	}
	for _, step := range steps {
		var changes []recovery.Change
		for n := range 50 {
			id := fmt.Sprintf("task-%d", n)
			to, data := step(id, n)
			changes = append(changes, f.change(id, to, data))
		}
		f.apply(changes...)
		f.apply(changes...)
		f.verify()
	}
}

// testRecords writes records of all sizes under ids of all lengths.
func testRecords(f *fixture) {
	f.put("empty", pending(noon), "")
	f.put("empty-dead", dead("topic", noon), "")
	f.put("zero-bytes", pending(noon), "\x00\x00\xff\x00")
	f.put("epoch", pending(0), "x")
	f.put("far", pending(noon*10), "x")
	f.put("a", pending(noon), "short id")
	f.put(strings.Repeat("z", 128), pending(noon), "long id")
	f.put("A.b_c:d@e-f", pending(noon), "the whole alphabet")
	for _, size := range []int{1, 255, 256, 4096, 65536, 1 << 20} {
		f.put(fmt.Sprintf("size-%d", size), pending(noon), strings.Repeat("x", size))
		f.put(fmt.Sprintf("dead-%d", size), dead("topic", noon), strings.Repeat("y", size))
	}
	f.crash()
}

// testBatchLimits writes batches as large as the terms allow, and a change that
// is larger.
func testBatchLimits(f *fixture) {
	var changes []recovery.Change
	for n := range f.terms.MaxChanges {
		changes = append(changes, f.change(fmt.Sprintf("many-%d", n), pending(noon+int64(n)), "x"))
	}
	f.apply(changes...)
	f.put("large", pending(noon), strings.Repeat("x", f.terms.MaxBytes+1))
	f.verify()
	changes = changes[:0]
	for n := range f.terms.MaxChanges {
		changes = append(changes, f.change(fmt.Sprintf("many-%d", n), recovery.Spot{}, ""))
	}
	f.apply(changes...)
}
