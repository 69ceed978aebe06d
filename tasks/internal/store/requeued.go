package store

import (
	"math/rand/v2"
	"strconv"
)

// Requeued is a log of the ids of the last requeuedKept tasks that were requeued, each under a
// number that grows by one. An export reads from it which tasks have left the dead since it began.
type Requeued struct {
	run   string   // tells its numbers from those of other nodes and processes, and of before Renew
	ids   []string // a ring, of up to requeuedKept
	count uint64   // of all ever added: the number of the next one
}

const requeuedKept = 1 << 16

// Marks are places in the logs of some nodes: by the run of a log, the number of the next task.
type Marks map[string]uint64

// Renew has the marks that were given before count as forgotten: there are tasks now of which
// another process may have requeued some.
func (r *Requeued) Renew() { r.run = strconv.FormatUint(rand.Uint64(), 36) }

// Add remembers a task.
func (r *Requeued) Add(id string) {
	if at := r.count % requeuedKept; at < uint64(len(r.ids)) {
		r.ids[at] = id
	} else {
		r.ids = append(r.ids, id)
	}
	r.count++
}

// Since returns up to n ids from the mark of this log on, which is run and number. It reports false
// if there is no such mark, or it is forgotten: then run and number are the end of the log.
func (r *Requeued) Since(marks Marks, n int) (ids []string, run string, number uint64, known bool) {
	number, known = marks[r.run]
	if !known || number > r.count || r.count-number > requeuedKept {
		return nil, r.run, r.count, false
	}
	for at := number; at < r.count && len(ids) < n; at++ {
		ids = append(ids, r.ids[at%requeuedKept])
	}
	return ids, r.run, number, true
}
