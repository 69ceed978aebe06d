package respapi

import (
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
	w := &waiter{id: p.ids[0], draft: d, plan: p, caller: d.exec.c.caller}
	for {
		if err := s.enter(d.exec.c.ctx, w, until); err != nil {
			return err
		}
		if !w.ran {
			break
		}
		if !errors.Is(w.err, errAlone) {
			return w.err
		}
		d.restart()
		w = &waiter{id: w.id}
	}
	defer s.leave()
	err := d.tryOften(p, w)
	if errors.Is(err, errContended) {
		w.release(err)
	} else {
		w.release(errAlone) // the error is that of this client
	}
	return err
}

// writeChain runs the drafts behind this one, each on what the one before has made of the key, and
// writes the last value. The rest is as of write.
func (d *draft) writeChain(w *waiter) (again bool, err error) {
	e := d.keys[w.id]
	if e == nil || e.err != nil || d.changesOthers(e) {
		w.release(errAlone)
		return d.write()
	}
	last, changed := e, e.changed
	for _, next := range w.chain {
		if next.err == nil {
			next.err = next.draft.runAfter(next.plan, last)
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
	case again || err != nil:
		return again, err
	case e.lost != nil && !isOpen(e.lost): // perhaps for what one of the others wants
		w.release(errAlone)
		return true, nil
	case e.lost != nil:
		w.release(e.lost)
		return false, nil
	}
	d.tellEvents()
	for _, next := range w.chain {
		if next.err == nil {
			next.draft.writtenWith(w.id, e)
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
	if again, err := d.run(p); again || err != nil || d.changesOthers(e) {
		return errAlone
	}
	return nil
}

// writtenWith notes that the key of a draft is written, as a part of what the first one of its
// chain has written. Events of the commands are told in the order of the chain.
func (d *draft) writtenWith(id string, first *draftKey) {
	e := d.keys[id]
	e.task, e.written, e.done = first.task, true, first.done
	d.begun, d.wrote = true, true
	d.tellEvents()
}

// tellEvents tells subscribers what commands have done whose keys are written.
func (d *draft) tellEvents() {
	for i := range d.runs {
		r := &d.runs[i]
		for _, e := range r.events {
			if e.key != nil && e.key.lost == nil {
				d.exec.c.server.notify(e.class, e.name, e.key.key.name)
			}
		}
		r.events = nil
	}
}

// updateInChain is update for a key whose turn others have.
func (x *call) updateInChain(k *key, decide func(old *tasks.Task) change) (tasks.Task, error) {
	d := newDraft(x, nil)
	defer d.close()
	if err := d.settle(&plan{keys: []key{*k}, ids: []string{k.id}, whole: true, decide: decide}); err != nil {
		return tasks.Task{}, err
	}
	e := d.keys[k.id]
	switch {
	case e.lost != nil:
		return tasks.Task{}, e.lost
	case e.now.task == nil || !e.changed:
		return tasks.Task{}, nil
	}
	d.tellEvents()
	t := *e.now.task
	if t.Revision, t.Created = e.task.Revision, e.task.Created; !e.now.equal(&e.done) {
		t.Revision = -1 // another client has changed it since: no version is that of this change
	}
	return t, nil
}
