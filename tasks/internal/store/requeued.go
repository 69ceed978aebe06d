package store

import "math/rand/v2"

// Requeued remembers the ids of the last requeuedKept tasks that were requeued, each under a number
// that grows by one. An export reads from it which tasks have left the dead since it began.
type Requeued struct {
	Run   uint64   // tells these numbers from those of other processes, and of before Renew
	ids   []string // a ring, of up to requeuedKept
	Count uint64   // of all ever added: the number of the next one
}

const requeuedKept = 1 << 16

// Renew has the numbers that were given before count as forgotten: there are tasks now of which
// another process may have requeued some.
func (r *Requeued) Renew() { r.Run = rand.Uint64() }

// Add remembers a task.
func (r *Requeued) Add(id string) {
	if at := r.Count % requeuedKept; at < uint64(len(r.ids)) {
		r.ids[at] = id
	} else {
		r.ids = append(r.ids, id)
	}
	r.Count++
}

// Since returns up to n ids from a number on. It reports false if that number is forgotten, or was
// never given.
func (r *Requeued) Since(number uint64, n int) ([]string, bool) {
	if number > r.Count || r.Count-number > requeuedKept {
		return nil, false
	}
	ids := make([]string, 0, min(uint64(n), r.Count-number))
	for ; number < r.Count && len(ids) < n; number++ {
		ids = append(ids, r.ids[number%requeuedKept])
	}
	return ids, true
}
