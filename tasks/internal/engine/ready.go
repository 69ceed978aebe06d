package engine

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
	"github.com/lapsehq/lapse/wheel"
)

// AtOnce is how many tasks are dealt with before others get the lock.
const AtOnce = 256

// An arrival says how a task comes to be ready.
type arrival uint8

const (
	fresh    arrival = iota // by its time: EventDue is emitted
	again                   // it was ready before
	returned                // again, and not delivered since: it comes before others of its instant
	unwanted                // again, and no receiver wants it: it waits outside of the queue
	behind                  // again from there: it comes behind all that is due
)

// armLocked makes a task wait for its next attempt, or ready if that is now.
func (s *Engine) armLocked(n uint32, sl *store.Slot, now int64, how arrival) {
	leaveWindow(s.Store, sl)
	sl.Gen++
	sl.Timer = 0
	if sl.Next <= now {
		s.dueLocked(n, sl, now, how)
	} else {
		s.waitLocked(n, sl)
	}
}

// waitLocked makes a task wait in the wheel, or a held one outside of it.
func (s *Engine) waitLocked(n uint32, sl *store.Slot) {
	s.SetLocked(sl, store.Pending)
	if sl.Next != record.HeldUntil {
		sl.Timer = s.Runner.Add(sl.Next, sl.Value(n))
	}
}

// dueLocked makes a task whose time has come ready, unless it first has to wait for its
// place in its topic's window. Its generation is fresh.
func (s *Engine) dueLocked(n uint32, sl *store.Slot, now int64, how arrival) {
	if t := s.TopicTable.ByNumber[sl.Topic]; t.Settings.Spread != 0 && t.enterWindow(s.Store, sl) && sl.Next > now {
		s.waitLocked(n, sl)
		return
	}
	if how == fresh {
		s.emitDueLocked(sl, now)
	}
	s.readyLocked(n, sl, how)
}

// trimAtOnce is more than one, so that a queue loses stale items in front faster than it gets them.
const trimAtOnce = 16

// DisarmLocked takes a pending or ready task out of the wheel or its queue.
func (s *Engine) DisarmLocked(sl *store.Slot) {
	sl.Gen++
	switch sl.State {
	case store.Pending:
		if sl.Timer != 0 {
			s.Runner.Cancel(sl.Timer)
			sl.Timer = 0
		}
	case store.Ready:
		t := s.TopicTable.ByNumber[sl.Topic]
		switch {
		case sl.Flags&store.Stray != 0:
			s.unstrayLocked(t, sl)
		case sl.Flags&store.InGroup != 0:
			s.leaveGroupLocked(t, sl)
		default:
			s.unqueuedLocked(t)
			t.Queue.Trim(trimAtOnce, s.Store.Stale)
		}
	}
}

// Fired is called by the wheel with tasks whose time has come.
func (s *Engine) Fired(values []uint64) { s.fired(values, false) }

// fired is Fired, or of tasks that the sweep has rescued from a wheel which does not fire.
func (s *Engine) fired(values []uint64, rescued bool) {
	for len(values) > 0 {
		n := min(AtOnce, len(values))
		s.lockFirst()
		now := s.Now()
		for _, v := range values[:n] {
			if n, sl, ok := s.Store.Unpack(v, store.Pending); ok {
				sl.Timer = wheel.Timer(0)
				sl.Gen++
				if rescued {
					s.emitLocked(task.EventRescued, sl, task.Event{})
				}
				s.dueLocked(n, sl, now, fresh)
			}
		}
		s.unlock()
		s.Life.pulse.Step()
		values = values[n:]
	}
}

// readyLocked queues a task for its receiver. Its generation is fresh.
func (s *Engine) readyLocked(n uint32, sl *store.Slot, how arrival) {
	s.SetLocked(sl, store.Ready)
	t := s.TopicTable.ByNumber[sl.Topic]
	if how == unwanted {
		strayLocked(n, t, sl)
		t.unwanted.any = true
		tryLaterLocked(s, t)
		return
	}
	if t.Groups != nil && s.joinGroupLocked(n, t, sl, how) {
		s.WakeLocked(t)
		return
	}
	if it := itemOf(s, n, sl, how); how == returned {
		t.Queue.Return(it)
	} else {
		t.Queue.Push(it)
	}
	s.QueuedLocked(t)
	s.WakeLocked(t)
	if t.Queue.Crowded() {
		t.Queue.Clean(s.Store.Stale)
	}
}

// itemOf returns what stands in a queue for a ready task.
func itemOf(s *Engine, n uint32, sl *store.Slot, how arrival) dispatch.Item {
	it := dispatch.Item{Next: sl.Next, Value: sl.Value(n)}
	if how == behind {
		it.Next = max(it.Next, s.Now())
	}
	return it
}

// outagePausesLocked reports whether nothing may be handed out because the ledger does not answer,
// and remembers it, so that no worker is started in vain until CertaintyLoop says otherwise.
func (s *Engine) outagePausesLocked() bool {
	if s.Fleet == nil || s.Config.OnOutage != task.OutagePause {
		return false
	}
	if !s.Dispatch.Paused && s.Unsure() {
		s.Dispatch.Paused = true
	}
	return s.Dispatch.Paused
}

// QueuedLocked counts a task that has joined a topic's queue.
func (s *Engine) QueuedLocked(t *Topic) {
	if !t.Pushed {
		return
	}
	s.Dispatch.Backlog++
	s.sweepNowLocked()
}

// unqueuedLocked tells a topic's queue, and the backlog, that one of its live tasks
// has been taken or has become stale.
func (s *Engine) unqueuedLocked(t *Topic) {
	t.Queue.Gone()
	if t.Pushed {
		s.Dispatch.Backlog--
	}
}

// countBacklogLocked is called when a topic may have begun or ceased to count.
func (s *Engine) countBacklogLocked(t *Topic) {
	pushed := t.Deliverer != nil && !t.Settings.Paused && !t.Lacks()
	if pushed == t.Pushed {
		return
	}
	t.Pushed = pushed
	if !pushed {
		s.Dispatch.Backlog -= t.countedReady()
		return
	}
	s.Dispatch.Backlog += t.countedReady()
	s.sweepNowLocked()
}

// WakeLocked has a worker or a receiver take the ready tasks of a topic, if one may.
func (s *Engine) WakeLocked(t *Topic) { s.carryOutLocked(s.Dispatch.Wake(&t.Line)) }

// carryOutLocked does what dispatch has decided.
func (s *Engine) carryOutLocked(actions []dispatch.Action) {
	for _, a := range actions {
		t := s.TopicTable.ByNumber[a.Line.Number]
		if &t.Line != a.Line {
			continue // of a topic that is forgotten; another has its number now
		}
		if a.Serve != nil {
			a.Serve()
			continue
		}
		if a.Places > 0 {
			s.Life.Handlers.Add(1)
			go s.work(t, a.Places)
			continue
		}
		t.rest = time.AfterFunc(a.Rest, func() {
			s.mu.Lock()
			defer s.unlock()
			t.rest = nil
			s.carryOutLocked(s.Dispatch.Rested(&t.Line))
		})
	}
}

// A worker delivers a topic's ready tasks, as many at once as it has places, until there are none.
// It ends deliveries and begins the next ones under one hold of the lock.
type worker struct {
	beginning
	places   int
	verdicts []task.Judgement // on what is begun
	took     time.Duration    // the last attempt
}

func (s *Engine) work(t *Topic, places int) {
	w := &worker{beginning: beginning{topic: t, by: dispatch.ByWorker}, places: places}
	w.worker = w
	defer s.Life.Handlers.Done()
	defer func() { // also when a handler has ended this goroutine
		s.mu.Lock()
		defer s.unlock()
		s.endWorkLocked(w)
		s.carryOutLocked(s.Dispatch.EndWorker(&t.Line, w.places))
	}()
	for s.beginWork(w) {
		s.attempt(w)
	}
}

// beginWork ends what a worker has begun, and begins deliveries with the settings that the topic
// has then. It reports false if there are none to make, or if there are more workers than there
// should be.
func (s *Engine) beginWork(w *worker) bool {
	w.taken, w.recording, w.checked, w.lease = w.taken[:0], nil, false, 0
	s.run(s.Life.Context, &w.beginning)
	if len(w.begun) == 0 && w.checked {
		s.mu.Lock()
		w.begun = s.takeOffloadedLocked(w.topic, w.places)
		w.deliverNowLocked(len(w.begun))
		s.unlock()
	}
	w.verdicts = w.verdicts[:0]
	for range w.begun {
		w.verdicts = append(w.verdicts, task.Judgement{Verb: task.Release, Reason: "the handler ended its goroutine"})
	}
	return len(w.begun) > 0
}

// endWorkLocked ends what a worker has begun. The worker may lose some of its places to topics with
// a better claim. It reports false if the worker should end.
func (s *Engine) endWorkLocked(w *worker) bool {
	if len(w.begun) == 0 {
		return true
	}
	t := w.topic
	if h := s.Dispatch.Took[t.Kind()]; h != nil {
		h.Observe(w.took, len(w.begun))
	}
	s.judgeReceiverLocked(t, w.arrivals, w.verdicts)
	for i, d := range w.begun {
		s.returnLocked(t, d, w.verdicts[i])
	}
	kept, actions := s.Dispatch.CountPasses(&t.Line, len(w.begun), w.places)
	s.carryOutLocked(actions)
	w.begun, w.places = w.begun[:0], kept
	return kept > 0 && !s.Dispatch.Surplus(&t.Line)
}

// returnLocked ends a worker's part in a delivery.
func (s *Engine) returnLocked(t *Topic, d *Delivery, v task.Judgement) {
	later := t.AsyncSettle // which the conclusion may make so
	t.Busy--
	l, ok := s.Dispatch.Leases[d.Slot]
	switch {
	case d.Source != nil:
		s.Cluster.EndOffloadedLocked(d, v)
	case !ok || l.Nonce != d.Lease.Nonce:
		// The lease has run out, and the task is no longer this delivery's; or its
		// shard has left.
		s.endDetachedLocked(d, v)
	case s.Store.Slot(d.Slot).State == store.Parking, s.Store.Slot(d.Slot).State == store.Replacing:
		s.Detached.Verdicts[l.Nonce] = pendingVerdict{d, v}
	default:
		s.concludeLocked(t, d.Slot, v)
	}
	if later {
		s.freeLocked(0, 1) // now that it is either settled or away
	}
}

// attempt calls the deliverer within the lease, the first one if there are several.
func (s *Engine) attempt(w *worker) {
	ds, vs := w.begun, w.verdicts
	lease := s.leases.New(s.Life.Context, s.Started.Add(ds[0].Lease.Until))
	began := s.Elapsed()
	defer func() {
		w.took = s.Elapsed() - began
		lease.End()
	}()
	ctx := context.Context(lease)
	if s.Config.Tracer != nil {
		var spans []func(task.Judgement)
		ctx, spans = s.trace(ctx, ds)
		defer endSpans(spans, vs)
	}
	defer func() {
		if p := recover(); p != nil {
			d := ds[0]
			for i := range vs {
				vs[i] = task.Judgement{Verb: task.Release, Reason: fmt.Sprintf("panic: %v", p)}
			}
			s.Config.Log.Error("a handler panicked", "node", s.Config.Node, "task", d.ID, "topic", d.Topic, "attempt", d.Attempt, "deliveries", len(ds), "panic", p, "stack", string(debug.Stack()))
			s.mu.Lock()
			if t, ok := s.TopicTable.ByName[d.Topic]; ok {
				t.Counts.Panicked += int64(len(ds))
			}
			s.unlock()
		}
	}()
	deliver(ctx, w.deliverer, ds, vs)
}

func takesBatches(by task.Deliverer) bool {
	_, ok := by.(task.BatchDeliverer)
	return ok
}

// deliver hands tasks to a deliverer, several only to one that takes batches, and judges the
// outcomes.
func deliver(ctx context.Context, by task.Deliverer, ds []*Delivery, vs []task.Judgement) {
	batcher, ok := by.(task.BatchDeliverer)
	if !ok {
		vs[0] = task.Judge(by.Deliver(ctx, &ds[0].Delivery))
		return
	}
	batch := make([]*task.Delivery, len(ds))
	for i, d := range ds {
		batch[i] = &d.Delivery
	}
	errs := batcher.DeliverBatch(ctx, batch)
	if len(errs) != len(ds) {
		panic(fmt.Sprintf("%d outcomes of %d deliveries", len(errs), len(ds)))
	}
	for i, err := range errs {
		vs[i] = task.Judge(err)
	}
}
