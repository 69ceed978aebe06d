package portable

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Bounds of a part.
const (
	// MostItems is how many tasks a part has at most.
	MostItems = 10_000
	// readFor is how long a part is read before it ends where it is.
	readFor = time.Second
	// itemBytes is what an item counts for besides its id and its record.
	itemBytes = 64
)

// A reading is a Query that is being answered.
type reading struct {
	*engine.Engine
	query  *Query
	part   Part
	shards []int // of the items
	bytes  int
	most   int // bytes
	items  int // at most
	until  time.Time
	now    int64           // as of Item.SeenAt
	brief  []byte          // a record without its payload
	told   map[string]bool // with a text: groups that the part has
}

// Read answers a Query about the tasks of this node. shards are the numbers of the shards, at this
// node, that have the items. Errors: ErrReplaying, ErrUnavailable, ErrClosed.
func Read(ctx context.Context, e *engine.Engine, q *Query) (part Part, shards []int, err error) {
	return ReadUntil(ctx, e, q, time.Now().Add(readFor))
}

// ReadUntil is Read for a part that ends at a time, but not before it has got on.
func ReadUntil(ctx context.Context, e *engine.Engine, q *Query, until time.Time) (part Part, shards []int, err error) {
	if err := e.AwaitRead(ctx); err != nil {
		return Part{}, nil, err
	}
	r := &reading{Engine: e, query: q, until: until, now: e.Now()}
	if q.Text != "" {
		r.told = make(map[string]bool)
		r.sum()
	}
	r.most = min(cmp.Or(q.Bytes, task.MaxPageBytes), task.MaxPageBytes)
	r.items = min(max(cmp.Or(q.Items, MostItems), 1), MostItems)
	switch q.Pass {
	case InMemory:
		err = r.memory(ctx)
	case Buried:
		err = r.buried(ctx)
	case Requeued:
		err = r.requeued(ctx)
	default: // of a newer version
		err = fmt.Errorf("%w: the pass %d of an export", task.ErrUnavailable, q.Pass)
	}
	return r.part, r.shards, err
}

// full reports whether the part ends here. It looks at the clock, so it is asked after a step: a
// part that ends by time has got on.
func (r *reading) full() bool { return r.filled() || time.Now().After(r.until) }

// filled reports whether the part has as much as is wanted.
func (r *reading) filled() bool { return r.bytes >= r.most || len(r.part.Items) >= r.items }

// wants reports whether tasks of a topic are asked for.
func (r *reading) wants(topic string) bool {
	return task.AnyMatches(r.query.Topics, topic) && task.AnyMatches(r.query.Grant, topic)
}

// add adds a task. It reports false if no more are wanted.
func (r *reading) add(at Position, rec []byte, shard int) bool {
	r.part.Items = append(r.part.Items, Item{Position: at, Record: bytes.Clone(rec), SeenAt: r.now})
	r.shards = append(r.shards, shard)
	r.bytes += itemBytes + len(at.ID) + len(rec)
	return !r.filled()
}

// memory reads tasks that are neither dead nor finished, one list of the Order after the other.
func (r *reading) memory(ctx context.Context) error {
	r.log(nil, 0)
	patience := r.Config.AnswerWithin
	if r.query.Text != "" {
		patience = min(patience, time.Until(r.until))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, engine.ErrOrder)
	defer cancel()
	for list := r.query.From.firstList(); list < store.OrderLists; list++ {
		next, slots, err := r.OrderedSlots(ctx, list)
		switch {
		case r.query.Text != "" && errors.Is(err, engine.ErrOrder): // it has got on with the Order
			r.part.Last = &r.query.From
			return nil
		case err != nil:
			return err
		}
		if list = next; list == store.OrderLists {
			return nil
		}
		r.part.Last = r.list(list, slots)
		switch {
		case r.part.Last != nil:
			return nil
		case list+1 < store.OrderLists && r.full():
			at := endOf(list)
			r.part.Last = &at
			return nil
		}
	}
	return nil
}

// A candidate is a task of a list that may be exported.
type candidate struct {
	Position
	slot uint32
}

// list reads the tasks of one list, in their order. last is where it has ended before their end;
// nil if it has not. A task that was in memory when list began is read, unless it has left memory
// by then.
func (r *reading) list(list int, slots []uint32) (last *Position) {
	var all []candidate
	for part := range slices.Chunk(slots, engine.AtOnce) {
		r.VisitSlots(part, func(i int, sl *store.Slot) (more bool) {
			id := r.Store.ID(sl)
			at := Position{Place: store.PlaceOf(id)}
			if store.ListOf(at.Place) != list || r.query.Text != "" && !r.hasText(id, r.Store.Group(sl)) || !r.wants(string(record.Topic(r.Store.Record(sl)))) {
				return true
			}
			if at.ID = string(id); at.Compare(r.query.From) > 0 {
				all = append(all, candidate{at, part[i]})
			}
			return true
		})
		if len(all) > 2*MostItems {
			all = first(all)
			last = &Position{}
		}
	}
	all = slices.CompactFunc(sorted(all), func(a, b candidate) bool { return a.ID == b.ID })
	if last != nil {
		*last = all[len(all)-1].Position
	}
	for part := range slices.Chunk(all, engine.AtOnce) {
		if r.copied(part) {
			at := r.part.Items[len(r.part.Items)-1].Position
			return &at
		}
	}
	return last
}

func sorted(all []candidate) []candidate {
	slices.SortFunc(all, func(a, b candidate) int { return a.Compare(b.Position) })
	return all
}

// first returns the first of many candidates.
func first(all []candidate) []candidate { return sorted(all)[:MostItems] }

// copied copies the records of some candidates, and reports whether no more are wanted.
func (r *reading) copied(some []candidate) (full bool) {
	slots := make([]uint32, len(some))
	for i := range some {
		slots[i] = some[i].slot
	}
	r.VisitSlots(slots, func(i int, sl *store.Slot) (more bool) {
		if i%engine.AtOnce == 0 { // a new hold of the mutex
			r.now = r.Now()
		}
		if string(r.Store.ID(sl)) != some[i].ID {
			return true // another task has taken the slot
		}
		full = !r.live(some[i].Position, some[i].slot)
		return !full
	})
	return full
}

// live adds a task that is in memory, under the lock.
func (r *reading) live(at Position, n uint32) (more bool) {
	sl := r.Store.Slot(n)
	if r.query.Text != "" {
		return r.found(at, r.ListedLocked(n, true), int(sl.Shard))
	}
	rec := r.Store.Record(sl)
	if r.query.Brief {
		f := r.Store.Fields(sl)
		f.Payload, f.Target, f.Attempts = nil, nil, nil
		r.brief = f.Append(r.brief[:0])
		rec = r.brief
	}
	return r.add(at, rec, int(sl.Shard))
}

// dead adds a task that the ledger has at the place of the dead.
func (r *reading) dead(at Position, e *recovery.Entry) {
	f, err := record.Decode(e.Data)
	switch {
	case err != nil:
		r.part.Unreadable++
	case !r.hasText(e.ID, f.Group) || !r.wants(string(f.Topic)):
	case r.query.Text != "":
		r.found(at, r.ListedBuried(at.ID, &f, true), e.Shard)
	default:
		r.add(at, e.Data, e.Shard)
	}
}

// buried reads dead and finished tasks, one label of the ledger after the other.
func (r *reading) buried(ctx context.Context) error {
	labels, err := r.BuriedLabels(ctx, r.query.From.Label, r.wants)
	if err != nil {
		return err
	}
	for _, label := range labels {
		if r.query.From == endOfLabel(label) {
			continue
		}
		var after recovery.Ref
		if label == r.query.From.Label {
			after = recovery.Ref{ID: r.query.From.ID, Next: r.query.From.At}
		}
		at, full := Position{}, false
		err := r.ListDead(ctx, label, after, func(e recovery.Entry) bool {
			if full {
				r.part.Last = &at
				return false
			}
			at = Position{Label: label, At: e.Spot.At, ID: string(e.ID)}
			r.part.Looked++
			r.dead(at, &e)
			full = r.full()
			return true
		})
		switch {
		case errors.Is(err, recovery.ErrClosed):
			return task.ErrClosed
		case err != nil:
			return err
		case r.part.Last != nil:
			return nil
		case r.full():
			at = endOfLabel(label)
			r.part.Last = &at
			return nil
		}
	}
	return nil
}

// log reads up to n ids of the log of requeued tasks from a mark on, or finds the end of the log if
// there is none. The part has that mark then.
func (r *reading) log(since store.Marks, n int) (ids []string, run string, known bool) {
	ids, run, number, known := r.Requeued(since, n)
	r.part.Marks = store.Marks{run: number}
	return ids, run, known
}

// requeued reads tasks that were requeued since the mark of the query, wherever they are by now.
func (r *reading) requeued(ctx context.Context) error {
	// So few at once that the largest payloads make half of the part.
	few := min(max(r.most/2/r.Config.MaxPayload, 1), engine.AtOnce)
	for since := r.query.Since; ; since = r.part.Marks {
		ids, run, known := r.log(since, min(few, r.items-len(r.part.Items)))
		if r.part.Forgotten = !known; len(ids) == 0 {
			return nil
		}
		if err := r.named(ctx, query.Once(ids)); err != nil {
			return err
		}
		if r.part.Marks[run] += uint64(len(ids)); r.full() {
			r.part.Unread = r.query.Text != ""
			return nil
		}
	}
}

// named reads the tasks with some ids.
func (r *reading) named(ctx context.Context, ids []string) error {
	for len(ids) > 0 {
		dead, err := r.VisitNamed(ids, func(id string, sl *store.Slot) {
			if n, ok := r.Store.Find([]byte(id)); ok && r.hasText([]byte(id), r.Store.Group(sl)) && r.wants(string(record.Topic(r.Store.Record(sl)))) {
				r.live(Position{ID: id}, n)
			}
		})
		if err != nil {
			return err
		}
		found := make(map[string]bool, len(dead))
		if err := r.Ledger.GetDead(ctx, dead, func(i int, e recovery.Entry) {
			found[dead[i]] = true
			r.dead(Position{ID: dead[i]}, &e)
		}); err != nil {
			return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}
		ids = slices.DeleteFunc(dead, func(id string) bool { return found[id] })
		if len(ids) == 0 {
			break
		}
		// They have just been requeued, or the ledger has lost them.
		if err := r.RecheckDead(ctx, ids); err != nil {
			return err
		}
		if err := r.RestWithin(ctx, engine.BusyPause); err != nil {
			return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}
	}
	return nil
}
