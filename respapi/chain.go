package respapi

import (
	"bytes"
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A key that many clients change would be written once for each of them, one after the other. So
// drafts that wait for their turn with it make a chain, see turns.go. A draft of a chain is about
// that key alone.

// errAlone is why a draft is not written with those before it: its turn comes again.
var errAlone = errors.New("the draft is written by itself")

// settleInTurn is settle for a draft that changes one key, which may be one of a chain.
func (d *draft) settleInTurn(t *turns, p *plan) error {
	s, until := t.stripe(p.ids[0]), time.Now().Add(turnWithin)
	w := &waiter{id: p.ids[0], draft: d, plan: p, caller: d.exec.c.caller, until: until}
	for {
		if err := s.enter(d.exec.c.ctx, w); err != nil {
			return err
		}
		if !w.ran {
			break
		}
		if !errors.Is(w.err, errAlone) {
			return w.err
		}
		d.restart()
		w = &waiter{id: w.id, until: until}
	}
	defer s.leave()
	defer s.putBack(w, 0) // those that are left, before the turn is given up
	return d.tryOften(p, w)
}

// writeChain runs the drafts behind this one, each on what the one before has made of the key, and
// writes the last value. The rest is as of write.
func (d *draft) writeChain(w *waiter) (again bool, err error) {
	s, e := d.exec.c.server.turns.stripe(w.id), d.keys[w.id]
	if e == nil || e.err != nil || d.changesOthers(e) {
		s.putBack(w, 0)
		return d.write()
	}
	last, changed := e, e.changed
	for i, next := range w.chain {
		now := time.Now()
		switch {
		case now.Sub(e.read) > d.exec.c.server.turns.within:
			s.putBack(w, i)
		case now.After(next.until):
			next.err = errContended
		case next.err == nil:
			next.err = next.draft.runAfter(next.plan, last)
		}
		if i >= len(w.chain) {
			break
		}
		if next.err == nil {
			last = next.draft.keys[w.id]
			changed = changed || last.changed
		}
	}
	own, since := e.now, e.changed
	e.now, e.changed = last.now, changed
	again, err = d.write()
	e.now, e.changed = own, since
	switch {
	case err != nil:
		return again, err
	case again: // perhaps since it has taken so long
		s.putBack(w, len(w.chain)/2)
		return again, nil
	case e.lost != nil && !isOpen(e.lost) && len(w.chain) > 0: // perhaps for what another one wants
		s.putBack(w, 0)
		return true, nil
	case e.lost != nil:
		w.release(e.lost)
		return false, nil
	}
	d.tellEvents(w.plan)
	for _, next := range w.chain {
		if next.err == nil {
			next.draft.writtenWith(w.id, e)
			next.draft.tellEvents(next.plan)
		}
	}
	w.release(nil)
	return false, nil
}

// changesOthers reports whether another key than e is changed.
func (d *draft) changesOthers(e *draftKey) bool {
	for _, other := range d.keys {
		if other != e && other.changed {
			return true
		}
	}
	return false
}

// runAfter runs the draft on what another one has made of its key. Error: errAlone.
func (d *draft) runAfter(p *plan, before *draftKey) error {
	if caller := d.exec.c.caller; caller != nil && caller.Withdrawn() {
		return errAlone
	}
	d.restart()
	e := &draftKey{key: p.keys[0], task: before.task, seen: before.seen, read: before.read, base: before.now, now: before.now}
	n := keyOverhead + len(e.key.name)
	if e.base.task != nil {
		n += len(e.base.task.Payload)
	}
	for i := range p.keys {
		if p.keys[i].id != e.key.id {
			return errAlone
		}
	}
	if d.grow(e, n) != nil {
		return errAlone
	}
	d.keys[e.key.id] = e
	// What it reads of another key may change until the chain is written.
	if again, err := d.run(p); again || err != nil || len(d.keys) > 1 {
		return errAlone
	}
	return nil
}

// writtenWith notes that the key of a draft is written, as a part of what the first one of its
// chain has written.
func (d *draft) writtenWith(id string, first *draftKey) {
	e := d.keys[id]
	e.task, e.written, e.done = first.task, true, first.done
	d.begun, d.wrote = true, true
}

// tellEvents tells subscribers, once, what commands have done whose keys are written.
func (d *draft) tellEvents(p *plan) {
	for i := range d.runs {
		d.runs[i].tell(d.exec.c.server)
	}
	if p.tell != nil {
		p.tell()
		p.tell = nil
	}
}

// updateInChain is update for a key whose turn others have.
func (x *call) updateInChain(k *key, decide func(old *tasks.Task) change, tell func()) (tasks.Task, error) {
	d := newDraft(x, nil)
	defer d.close()
	kept := func(old *tasks.Task) change {
		c := decide(old)
		c.value = bytes.Clone(c.value) // from what the client has sent, which others go on with
		return c
	}
	p := &plan{keys: []key{*k}, ids: []string{k.id}, whole: true, decide: kept, tell: tell}
	if err := d.settle(p); err != nil {
		return tasks.Task{}, err
	}
	e := d.keys[k.id]
	if e.lost != nil {
		return tasks.Task{}, e.lost
	}
	d.tellEvents(p)
	if e.now.task == nil || !e.changed {
		return tasks.Task{}, nil
	}
	t := *e.now.task
	if t.Revision, t.Created = e.task.Revision, e.task.Created; e.now.task != e.done.task {
		t.Revision = -1 // another client has changed it since: no version is that of this change
	}
	return t, nil
}
