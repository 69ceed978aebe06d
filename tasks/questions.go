package tasks

import (
	"context"
	"errors"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// The questions about single tasks, and what a node answers of those that it owns.
var (
	getQuestion      = question[idAsk, Task]{verb: "get"}
	cancelQuestion   = question[idAsk, struct{}]{verb: "cancel", writes: true}
	fireQuestion     = question[idAsk, Task]{verb: "fire", writes: true}
	moveQuestion     = question[moveAsk, Task]{verb: "move", writes: true}
	scheduleQuestion = question[requestAsk, Task]{verb: "schedule", writes: true}
	replaceQuestion  = question[requestAsk, Task]{verb: "replace", writes: true}
	batchQuestion    = question[batchAsk, batchAnswer]{verb: "batch", writes: true}
	hasQuestion      = question[hasAsk, hasAnswer]{verb: "has"}
)

// verbs are all questions that a node answers.
func verbs() map[string]answerer {
	table := make(map[string]answerer)
	add := func(verb string, answer answerer) { table[verb] = answer }
	add(answering(getQuestion, (*Scheduler).answerGet))
	add(answering(cancelQuestion, (*Scheduler).answerCancel))
	add(answering(fireQuestion, (*Scheduler).answerFire))
	add(answering(moveQuestion, (*Scheduler).answerMove))
	add(answering(scheduleQuestion, (*Scheduler).answerSchedule))
	add(answering(replaceQuestion, (*Scheduler).answerReplace))
	add(answering(batchQuestion, (*Scheduler).answerBatch))
	add(answering(settleQuestion, (*Scheduler).answerSettle))
	add(answering(returnQuestion, (*Scheduler).answerReturn))
	add(answering(hasQuestion, (*Scheduler).answerHas))
	add(answering(yieldQuestion, (*Scheduler).answerYield))
	add(answering(takeQuestion, (*Scheduler).answerTake))
	add(answering(drainQuestion, (*Scheduler).answerDrain))
	add(answering(reserveQuestion, (*Scheduler).answerReserve))
	add(answering(demandsQuestion, (*Scheduler).answerDemands))
	add(answering(offerQuestion, (*Scheduler).answerOffer))
	add(answering(backlogQuestion, (*Scheduler).answerBacklog))
	add(answering(offloadQuestion, (*Scheduler).answerOffload))
	add(answering(outcomesQuestion, (*Scheduler).answerOutcomes))
	add(answeringAll(listQuestion, (*Scheduler).listHere))
	add(answeringAll(usedQuestion, (*Scheduler).usedHere))
	add(answeringAll(purgeQuestion, (*Scheduler).purgeHere))
	add(answeringAll(redriveQuestion, (*Scheduler).redriveHere))
	return table
}

type (
	// An idAsk is about one task. The asker believes that it is kept at that home; 0 if
	// it knows only that this node has it.
	idAsk struct {
		ID    string
		Home  recovery.Home
		Terms *wiredTerms `json:",omitempty"`
	}
	moveAsk struct {
		idAsk
		Move Move
	}
	// A requestAsk asks for a task. It belongs to that home; 0 if the asker knows only
	// that the node has the id.
	requestAsk struct {
		Request Request
		Home    recovery.Home
		Terms   *wiredTerms `json:",omitempty"` // not in a batch, which has its own
	}
	batchAsk struct {
		Requests []requestAsk
		Terms    *wiredTerms `json:",omitempty"`
	}
	batchAnswer struct{ Results []wiredResult }
	wiredResult struct {
		ID    string
		Fault *wiredFault `json:",omitempty"`
	}
	// A hasAsk asks which of the ids a node has, filed or not.
	hasAsk    struct{ IDs []string }
	hasAnswer struct{ Has []bool }
)

// aboutID makes an idAsk of a home.
func aboutID(ctx context.Context, id string) func(recovery.Home) idAsk {
	return func(home recovery.Home) idAsk { return idAsk{id, home, wireTerms(ctx)} }
}

// Deadlines travel in UTC: the offset of another zone loses its seconds on the way, so
// that the deadline would be another one, and none at all would be one in the year 1.

func aboutMove(ctx context.Context, id string, m Move) func(recovery.Home) moveAsk {
	m.Due = m.Due.UTC()
	return func(home recovery.Home) moveAsk { return moveAsk{idAsk{id, home, wireTerms(ctx)}, m} }
}

func aboutRequest(r Request, home recovery.Home) requestAsk {
	r.Due = r.Due.UTC()
	return requestAsk{Request: r, Home: home}
}

func (s *Scheduler) answerGet(ctx context.Context, _ string, q idAsk) (Task, error) {
	return owned(ctx, s, q, func(ctx context.Context) (Task, error) { return s.get(ctx, q.ID) })
}

func (s *Scheduler) answerCancel(ctx context.Context, _ string, q idAsk) (struct{}, error) {
	return owned(ctx, s, q, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.cancelHere(ctx, q.ID) })
}

func (s *Scheduler) answerFire(ctx context.Context, _ string, q idAsk) (Task, error) {
	return owned(ctx, s, q, func(ctx context.Context) (Task, error) { return s.fireNow(ctx, q.ID) })
}

func (s *Scheduler) answerMove(ctx context.Context, _ string, q moveAsk) (Task, error) {
	return owned(ctx, s, q.idAsk, func(ctx context.Context) (Task, error) { return s.reschedule(ctx, q.ID, q.Move) })
}

func (s *Scheduler) answerSchedule(ctx context.Context, _ string, q requestAsk) (Task, error) {
	return s.createOwned(ctx, &q, s.create)
}

func (s *Scheduler) answerReplace(ctx context.Context, _ string, q requestAsk) (Task, error) {
	return s.createOwned(ctx, &q, s.replace)
}

// createOwned creates a task that another node was asked for, if it belongs here.
func (s *Scheduler) createOwned(ctx context.Context, q *requestAsk, create func(context.Context, *plan) (Task, error)) (Task, error) {
	ctx, cancel := s.within(q.Terms.in(ctx))
	defer cancel()
	p, err := s.planFor(ctx, &q.Request)
	if err != nil {
		return Task{}, err
	}
	defer p.release()
	if !p.chosen || !s.owns(p.id, q.Home) {
		return Task{}, errNotMine
	}
	var t Task
	if err = s.tell(ctx, &p, false); err == nil {
		t, err = create(ctx, &p)
	}
	return t, owning(err)
}

// owns tells that a task is known here, or that its shard is held.
func (s *Scheduler) owns(id string, home recovery.Home) bool {
	return s.knows(id) || home != 0 && s.tenure(home) != nil
}

// owning makes of an error of a creation what another node is told.
func owning(err error) error {
	if _, ok := errors.AsType[*elsewhere](err); ok || errors.Is(err, ErrClosed) || errors.Is(err, ErrDraining) {
		return errNotMine
	}
	return err
}

// answerHas tells which ids this node has. From then on it files those that are created:
// what it has not by now, it will not have without the directory.
func (s *Scheduler) answerHas(ctx context.Context, _ string, q hasAsk) (hasAnswer, error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	a := hasAnswer{Has: make([]bool, len(q.IDs))}
	switch {
	case s.unsure() && !s.knowsAllSpooled(q.IDs):
		return a, errUnsure
	case s.gaining(): // who asks has asked nobody else who may have had it until now
		return a, errGaining
	}
	ids := slices.DeleteFunc(slices.Clone(q.IDs), func(id string) bool { return !validName(id) })
	if slices.ContainsFunc(ids, s.isInDoubt) {
		return a, errInDoubt
	}
	if err := s.loadUnknown(ctx, ids); err != nil {
		return a, err
	}
	for i, id := range q.IDs {
		a.Has[i] = s.knows(id)
	}
	return a, nil
}

// loadUnknown makes sure that memory knows those of the ids that exist: while replay runs, it
// looks up the others together.
func (s *Scheduler) loadUnknown(ctx context.Context, ids []string) error {
	for !s.isReplayed() {
		loads, busy := s.unknownOf(ids)
		switch {
		case busy != nil: // replay, or another caller, looks an id up at the moment
			if err := s.waitBusy(ctx, busy, 0); err != nil {
				return err
			}
			continue
		case len(loads) == 0:
			return nil
		}
		s.loadAllByID(ctx, loads)
		ids = nil
		for _, f := range loads {
			switch {
			case f.err != nil:
				return f.err
			case !f.absent && !f.found:
				ids = append(ids, f.id) // it was in other hands
			}
		}
	}
	return nil
}

// unknownOf returns those of the ids that memory does not know. If one of them is being looked
// up, busy is closed when that is over.
func (s *Scheduler) unknownOf(ids []string) (unknown []idLoad, busy <-chan struct{}) {
	for part := range slices.Chunk(ids, atOnce) {
		s.mu.Lock()
		for _, id := range part {
			n, entered := s.book.find([]byte(id))
			switch {
			case entered && s.book.slot(n).state == checking:
				busy = s.watchLocked(n)
			case entered, s.knowsLocked([]byte(id)):
				// One that is being registered is no node's yet; it was looked for before.
			default:
				unknown = append(unknown, idLoad{id: id})
			}
		}
		s.unlock()
	}
	return unknown, busy
}
