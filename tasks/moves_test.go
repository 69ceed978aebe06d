package tasks_test

import (
	"errors"
	"fmt"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// The moves of a simulation. Each makes a call and compares its answer with the model.

// excused tells whether an error says no more than that the ledger has failed.
func (s *simulation) excused(id string, err error) bool {
	for _, kind := range []error{ErrUnavailable, ErrReplaying, ErrUnknown} {
		if errors.Is(err, kind) {
			if !s.faults {
				s.m.fault(id, "%v, and the ledger is well", err)
			}
			return true
		}
	}
	return false
}

// refused checks an error that says why nothing happened.
func (s *simulation) refused(id string, err error) {
	f := s.m.fact(id)
	switch {
	case errors.Is(err, ErrNotFound):
		s.m.is(id, mayBeAbsent, "not found")
		s.m.saw(id, Task{}, err)
	case errors.Is(err, ErrDead):
		s.m.is(id, mayBeDead, "dead").may = mayBeDead
	case errors.Is(err, ErrExists) && f.may&mayBeAbsent != 0: // a finished one may be kept
		task, err := s.Get(s.T.Context(), id)
		if err == nil || !s.excused(id, err) {
			if s.m.saw(id, task, err); err != nil {
				s.m.fault(id, "it exists, and is not found")
			}
		}
	case errors.Is(err, ErrExists):
		s.m.is(id, mayBeAlive, "exists").may = mayBeAlive
	case errors.Is(err, ErrDelivering):
		s.m.is(id, mayBeAlive, "delivering")
		// A handler may have ended in the very moment.
		if f.open == nil && !f.loose && f.topic != "handled" && f.topic != "" {
			s.m.fault(id, "%v, and no receiver has it", err)
		}
	default:
		s.m.fault(id, "%v", err)
	}
}

func (s *simulation) schedule() {
	id := s.anyID()
	if s.rng.IntN(5) == 0 {
		id = ""
	}
	s.post(s.request(id))
}

// again repeats a request that was accepted.
func (s *simulation) again() {
	if len(s.requests) > 0 {
		s.post(s.requests[s.rng.IntN(len(s.requests))])
	}
}

func (s *simulation) post(r Request) {
	due, req := record.FromMillis(record.Millis(s.Clock.Now().Add(r.Delay))), fmt.Sprint(r)
	s.m.begin()
	task, err := s.Schedule(s.T.Context(), r)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	f := s.m.fact(task.ID)
	if r.ID == "" && task.ID != "" {
		s.m.made = append(s.m.made, task.ID)
	}
	s.m.note(task.ID, "Schedule for %v: repeated %v, %v", due, task.Repeated, err)
	switch {
	case s.m.over(task.ID, s.faults):
	case err == nil && task.Repeated:
		s.m.saw(task.ID, task, nil)
		if f.req != "" && f.req != req {
			s.m.fault(task.ID, "repeated, and the request is another")
		}
	case err == nil:
		s.m.is(task.ID, mayBeAbsent, "created").alive(task.Due)
		f.topic, f.group, f.req = r.Topic, r.Group, req
		s.requests = append(s.requests, r)
	case errors.Is(err, ErrUnknown):
		s.excused(task.ID, err)
		f.unsure(due)
	case s.excused(task.ID, err):
	default:
		if errors.Is(err, ErrExists) && f.may == mayBeAlive && f.req == req {
			s.m.fault(task.ID, "the same request is refused: %v", err)
		}
		s.refused(task.ID, err)
	}
}

// unsure takes a creation or replacement into account whose outcome is not known.
func (f *fact) unsure(due time.Time) {
	if f.dues != nil || f.may == mayBeAbsent {
		f.dues = append(f.dues, due.UnixMilli())
	}
	f.may |= mayBeAlive
	f.req, f.topic, f.loose = "", "", true
}

func (s *simulation) batch() {
	rs := make([]Request, 1+s.rng.IntN(6))
	for i := range rs {
		rs[i] = s.request(s.anyID())
		rs[i].Payload = fmt.Append(rs[i].Payload, s.rng.Uint64()) // no repeat of a finished task
	}
	s.m.begin()
	results, err := s.ScheduleBatch(s.T.Context(), rs)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if err != nil {
		s.m.fault("batch", "%v", err)
		return
	}
	for i, res := range results {
		f := s.m.fact(res.ID)
		s.m.note(res.ID, "batch: %v", res.Err)
		switch {
		case s.m.over(res.ID, s.faults):
		case errors.Is(res.Err, ErrInvalid): // a second record
		case res.Err == nil:
			s.m.is(res.ID, mayBeAbsent|mayBeAlive, "scheduled")
			if f.may&mayBeAbsent != 0 {
				f.alive(s.Clock.Now())
				f.dues, f.topic, f.group, f.req = nil, rs[i].Topic, rs[i].Group, ""
			}
			f.may = mayBeAlive
		case errors.Is(res.Err, ErrUnknown):
			s.excused(res.ID, res.Err)
			f.unsure(time.Time{})
			f.dues = nil
		case s.excused(res.ID, res.Err):
		default:
			s.refused(res.ID, res.Err)
		}
	}
}

func (s *simulation) cancel() {
	id := s.anyID()
	s.m.begin()
	err := s.Cancel(s.T.Context(), id)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	f := s.m.fact(id)
	s.m.note(id, "Cancel: %v", err)
	switch {
	case s.m.over(id, s.faults):
	case err == nil:
		if f.busy() {
			s.m.fault(id, "cancelled while it is being delivered")
		}
		f.gone()
	case errors.Is(err, ErrUnknown):
		s.excused(id, err)
		f.may |= mayBeAbsent
		f.loose = true
	case s.excused(id, err):
	default:
		s.refused(id, err)
	}
}

// moved checks the answer of what moves a deadline.
func (s *simulation) moved(id string, task Task, err error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	f := s.m.fact(id)
	s.m.note(id, "moved to %v: %v", task.Due, err)
	switch {
	case s.m.over(id, s.faults):
	case err == nil:
		if f.busy() {
			s.m.fault(id, "moved while it is being delivered")
		}
		spent := f.spent()
		s.m.is(id, mayBeAlive, "moved").alive(task.Due)
		f.loose = spent // its attempts are what they were
	case errors.Is(err, ErrUnknown):
		s.excused(id, err)
		f.dues, f.loose = nil, true
	case s.excused(id, err):
	default:
		s.refused(id, err)
	}
}

func (s *simulation) reschedule() {
	id, delay := s.anyID(), time.Duration(s.rng.Int64N(int64(time.Minute)))
	s.m.begin()
	s.maybeFreed(id)
	task, err := s.Reschedule(s.T.Context(), id, Move{Delay: &delay})
	s.moved(id, task, err)
}

func (s *simulation) fire() {
	id := s.anyID()
	s.m.begin()
	s.maybeFreed(id)
	task, err := s.Fire(s.T.Context(), id)
	s.moved(id, task, err)
}

func (s *simulation) look() {
	id := s.anyID()
	task, err := s.Get(s.T.Context(), id)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if err == nil || !s.excused(id, err) {
		s.m.saw(id, task, err)
	}
}

// list pages through everything, or through a group, and misses nothing that is there.
func (s *simulation) list() {
	group := s.anyGroup()
	seen := map[string]bool{}
	var last time.Time
	for cursor, pages := "", 0; pages < rig.MostPages; pages++ {
		page, err := s.List(s.T.Context(), Query{Group: group, Limit: 1 + s.rng.IntN(20), Cursor: cursor})
		if err != nil {
			s.m.fault("list", "%v", err)
			return
		}
		s.m.mu.Lock()
		for _, task := range page.Tasks {
			if seen[task.ID] || rig.ListedAt(&task).Before(last) {
				s.m.fault(task.ID, "listed twice, or out of order")
			}
			if group != "" && task.Group != group {
				s.m.fault(task.ID, "of the group %q is listed in %q", task.Group, group)
			}
			seen[task.ID], last = true, rig.ListedAt(&task)
			if !s.faults {
				s.m.saw(task.ID, task, nil)
			}
		}
		s.m.mu.Unlock()
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for id, f := range s.m.facts {
		in := group == "" || f.group == group && f.topic != ""
		if !s.faults && in && f.may == mayBeAlive && !f.spent() && !f.missable && !seen[id] {
			s.m.fault(id, "is not listed")
		}
	}
}

func (s *simulation) reserve() {
	topic := reserved[s.rng.IntN(len(reserved))]
	wait := time.Duration(s.rng.IntN(2)) * time.Duration(s.rng.Int64N(int64(3*time.Second)))
	ds, err := s.Reserve(s.T.Context(), topic, 1+s.rng.IntN(5), wait, 0)
	if err != nil {
		s.m.fault(topic, "Reserve: %v", err)
	}
	for i := range ds {
		s.m.delivered(&ds[i], simulated[topic].Lease, false)
	}
	s.receipts = append(s.receipts, ds...)
	s.fresh += len(ds)
}

// verdict settles one of the last deliveries, perhaps by a receipt that is stale.
func (s *simulation) verdict() {
	n := len(s.receipts)
	if n == 0 {
		return
	}
	k := n - 1 - min(s.rng.IntN(12), s.rng.IntN(n))
	d := s.receipts[max(k, 0)]
	v := Verdict{Verb: []Verb{Ack, Ack, Ack, Release, Release, Extend, Bury}[s.rng.IntN(7)]}
	if v.Verb == Release && s.rng.IntN(2) == 0 {
		v.Delay = rig.Ptr(time.Duration(s.rng.Int64N(int64(10 * time.Second))))
	}
	s.m.mu.Lock()
	f := s.m.fact(d.ID)
	current := f.open != nil && f.open.receipt == d.Receipt()
	must := current && f.busy()
	mustNot := !current && !f.loose && f.written && f.acked != d.Receipt()
	s.m.mu.Unlock()
	a := s.SettleOne(v, d)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.note(d.ID, "verdict %d on attempt %d: %v", v.Verb, d.Attempt, a.Err)
	switch {
	case a.Err != nil:
		if !errors.Is(a.Err, ErrStale) && !s.excused(d.ID, a.Err) {
			s.m.fault(d.ID, "verdict %d: %v", v.Verb, a.Err)
		}
		if must && errors.Is(a.Err, ErrStale) {
			s.m.fault(d.ID, "verdict %d of an open delivery: %v", v.Verb, a.Err)
		}
	case mustNot:
		s.m.fault(d.ID, "verdict %d: accepted by a receipt that is stale", v.Verb)
	case v.Verb == Ack && f.acked == d.Receipt() && !current: // repeated
	case v.Verb == Ack:
		s.m.acknowledged(d.ID, d.Receipt(), a.Recorded)
	case v.Verb == Extend:
		term := simulated[d.Topic].Lease
		f.may, f.open = mayBeAlive, &outstanding{receipt: d.Receipt(), attempt: d.Attempt, until: time.Now().Add(term)}
	default:
		s.m.failed(d.ID, v.Verb == Bury || d.Attempt >= s.maxAttempts(d.Topic), a.Recorded)
	}
}

// returnUnused returns what this process has pulled last.
func (s *simulation) giveBack() {
	if s.fresh == 0 {
		return
	}
	d := s.receipts[len(s.receipts)-1]
	s.Admin().Return([]Delivery{d})
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.note(d.ID, "returned attempt %d", d.Attempt)
	if f := s.m.fact(d.ID); f.open != nil && f.open.receipt == d.Receipt() && !f.open.over {
		f.open = nil
	}
}

// exhume checks what takes a task from among the dead.
func (s *simulation) redrive(id string, call func(topic string) (int, error), done func(f *fact)) {
	s.m.mu.Lock()
	topic := s.m.fact(id).topic
	s.m.mu.Unlock()
	if topic == "" {
		return
	}
	s.m.begin()
	n, err := call(topic)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	f := s.m.fact(id)
	s.m.note(id, "exhumed %d: %v", n, err)
	switch {
	case s.m.over(id, s.faults):
	case err != nil:
		s.excused(id, err)
		f.may |= mayBeAlive | mayBeAbsent
		f.dues, f.loose = nil, true
	case n == 1:
		done(s.m.is(id, mayBeDead, "exhumed"))
	case f.may == mayBeDead && !s.faults:
		s.m.fault(id, "it is dead, and is not found among the dead of %s", topic)
	}
}

func (s *simulation) requeue() {
	id, delay := s.anyID(), time.Duration(s.rng.IntN(2))*time.Duration(s.rng.Int64N(int64(time.Minute)))
	due := s.Clock.Now().UnixMilli()
	if delay != 0 {
		due = record.Millis(s.Clock.Now().Add(delay))
	}
	s.redrive(id, func(topic string) (int, error) {
		return rig.Requeued(s.Admin().Requeue(s.T.Context(), topic, Requeue{IDs: []string{id}, Delay: delay}))
	}, func(f *fact) { f.alive(record.FromMillis(due)) })
}

func (s *simulation) deleteDead() {
	id := s.anyID()
	s.redrive(id, func(topic string) (int, error) { return s.Admin().DeleteDead(s.T.Context(), topic, []string{id}) }, (*fact).gone)
}

func (s *simulation) pauseTopic() {
	err := s.Admin().PauseTopic(s.T.Context(), s.topics[s.rng.IntN(len(s.topics))], s.rng.IntN(3) == 0)
	if err != nil && !s.excused("topic", err) {
		s.m.fault("topic", "%v", err)
	}
}

// setTopic changes what the model need not know.
func (s *simulation) setTopic() {
	name := s.topics[s.rng.IntN(len(s.topics))]
	set := simulated[name]
	set.Spread = time.Duration(s.rng.IntN(3)) * time.Duration(s.rng.Int64N(int64(20*time.Second)))
	if name == "kept" {
		set.KeepFinished = time.Duration(s.rng.IntN(2)) * keepsFinishedFor
	}
	if name == "missed" {
		set.Misfire = []Misfire{MisfireDeliver, MisfireSkip, MisfireCoalesce}[s.rng.IntN(3)]
	}
	if _, err := s.SetTopic(s.T.Context(), name, set, -1); err != nil && !s.excused("topic", err) {
		s.m.fault("topic", "%v", err)
	}
}

func (s *simulation) wait() {
	longest := []time.Duration{10 * time.Millisecond, time.Second, 15 * time.Second, 2 * time.Minute}
	rig.Pass(time.Duration(s.rng.Int64N(int64(longest[s.rng.IntN(len(longest))]))))
}
