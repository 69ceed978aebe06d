package deadindex

import (
	"math"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/store"
)

// An Index has the tasks of a node that are dead, or finished and kept. Guarded by Engine.mu.
type Index struct {
	IDs      map[uint64]struct{} // hashes of the ids of the dead
	Kept     map[uint64]struct{} // hashes of the ids of finished tasks that are kept
	Requeued store.Requeued      // the last that have left
	Burials  *store.Burials      // the records of those of whom memory has them

	loses       bool                     // the ledger may lose what is buried
	comparisons map[*Comparison]struct{} // that are under way
	doubted     bool                     // a comparison of all shards was asked for
	running     bool                     // such a comparison is under way
}

// A Shard has those of one shard: the hashes of their ids, with the numbers of the topics that they
// count in. It is nil if shards cannot leave the node.
type Shard map[uint64]uint32

// burialShare is which part of the memory for tasks each queue of Index.Burials may have.
const burialShare = 64

// New returns an index that is empty. loses says that the ledger may lose what is buried, maxBytes
// what memory all tasks may have.
func New(loses bool, maxBytes int64) Index {
	x := Index{
		IDs: make(map[uint64]struct{}), Kept: make(map[uint64]struct{}),
		Burials: store.NewBurials(maxBytes / burialShare),
		loses:   loses, comparisons: make(map[*Comparison]struct{}),
	}
	x.Requeued.Renew()
	return x
}

func (x *Index) of(kept bool) map[uint64]struct{} {
	if kept {
		return x.Kept
	}
	return x.IDs
}

// Add enters a task of a shard that counts in a topic. It reports false if the task was there. kept
// says that it is finished and kept.
func (x *Index) Add(in Shard, hash uint64, topic uint32, kept bool) bool {
	for c := range x.comparisons {
		delete(c.Missing, hash)
	}
	_, again := x.of(kept)[hash]
	if in != nil {
		if _, again = in[hash]; !again {
			in[hash] = topic
		}
	}
	if !again {
		x.of(kept)[hash] = struct{}{}
	}
	return !again
}

// Remove takes a task of a shard out, with its record. It reports false if the task was not there.
func (x *Index) Remove(in Shard, hash uint64, kept bool) bool {
	if in != nil {
		if _, known := in[hash]; !known {
			return false
		}
		delete(in, hash)
	}
	delete(x.of(kept), hash)
	x.Burials.Remove(hash)
	return true
}

// Remember keeps the record of a task that is buried in the ledger, if the ledger may lose it.
func (x *Index) Remember(hash uint64, shard uint32, id, rec []byte, now time.Duration) {
	if x.loses {
		x.Burials.Add(hash, shard, id, rec, now)
	}
}

// A Comparison of one shard with the ledger has the hashes of those that the ledger has not shown
// so far. A task that is added meanwhile is none of them.
type Comparison struct{ Missing map[uint64]struct{} }

// Begin begins a comparison, of which none is missing yet.
func (x *Index) Begin() *Comparison {
	c := &Comparison{make(map[uint64]struct{})}
	x.comparisons[c] = struct{}{}
	return c
}

// End ends a comparison.
func (x *Index) End(c *Comparison) { delete(x.comparisons, c) }

// Doubt asks for a comparison of all shards. It reports whether the caller has to begin it: none is
// under way.
func (x *Index) Doubt() bool {
	begins := !x.running
	x.doubted, x.running = true, true
	return begins
}

// Next reports whether a comparison of all shards, which the caller has begun, has to go over them
// now, as it was asked for since. Otherwise, or without on, it is over.
func (x *Index) Next(on bool) bool {
	again := x.doubted && on
	x.doubted, x.running = false, again
	return again
}

// None is the time of death of the oldest task of a topic without dead tasks.
const None = math.MaxInt64

// An Oldest is when the oldest dead task of a topic died. It may be too early, but never too late:
// no dead task of the topic died before it.
type Oldest struct {
	at      int64 // Unix ms; None: there is none that could be deleted
	since   int64 // when the first died of those told since the list is read; or None
	gone    bool  // that task is dead no longer: the ledger knows the next one
	looking bool  // the ledger is being read
}

// At returns it, in Unix ms, or None.
func (o *Oldest) At() int64 { return o.at }

// Died notes when a task has died. alone says that there is no other one.
func (o *Oldest) Died(at int64, alone bool) {
	if alone || at < o.at {
		o.at = at
	}
	o.since = min(o.since, at)
}

// Left notes that a task, which had died then, is dead no longer. died is None if the caller knows
// the next one already.
func (o *Oldest) Left(died int64) {
	if died != None && (died <= o.at || o.looking) {
		o.gone = true
	}
}

// Lost notes that the oldest task is perhaps dead no longer.
func (o *Oldest) Lost() { o.gone = true }

// IsDue reports whether the ledger is to be asked for tasks that had died by then.
func (o *Oldest) IsDue(by int64) bool { return o.gone || o.at <= by }

// Ask begins to read a piece of the ledger's list of the dead, from its beginning on or from where
// the piece before has ended. Learn or Stop follows.
func (o *Oldest) Ask(fromStart bool) {
	o.looking, o.gone = true, false
	if fromStart {
		o.since = None
	}
}

// Stop ends a piece that has not told the answer: the ledger is asked again.
func (o *Oldest) Stop() { o.looking, o.gone = false, true }

// Learn ends the last piece with the answer. The list may lack those that have died since it was
// begun, or have them before the place where the reading went on, by a clock that was set back. If
// a task has left the dead meanwhile, the answer may be about that one, and the ledger is asked
// again.
func (o *Oldest) Learn(answer int64) {
	o.looking = false
	o.at = min(answer, o.since)
}
