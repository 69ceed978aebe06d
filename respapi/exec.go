package respapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// runExec answers EXEC. Its commands run part by part: a command about all keys ends a part, since
// it needs what was written before it. So does one that may change the client's rights or protocol.
func runExec(x *call) {
	c, t := x.c, x.c.multi
	c.multi = nil
	if t != nil {
		defer c.forget()
	}
	switch {
	case t == nil:
		x.out.Error("ERR EXEC without MULTI")
		return
	case t.spoilt:
		x.out.Error(errAborted)
		return
	case c.crowded():
		x.out.Error(errUnread)
		return
	}
	d := newDraft(x, c.watched)
	for list, told := t.queued, false; len(list) > 0 || !told; told = true {
		part, last := list, (*call)(nil)
		if n := slices.IndexFunc(list, func(y *call) bool { return y.verb.flags&divides != 0 }); n >= 0 {
			part, last = list[:n], list[n]
		}
		list = list[min(len(part)+1, len(list)):]
		p := d.plan(part, last)
		p.whole = last == nil && !told
		err := d.settle(p)
		early := err == nil && !d.begun && last != nil && last.verb.aboutKeys()
		if early { // it may find that EXEC is nil
			d.runAlone(last)
		}
		switch {
		case errors.Is(err, errWatched), d.broken:
			x.out.NullArray()
			return
		case err != nil && !d.begun:
			x.fail(err)
			return
		case !told:
			x.out.Array(len(t.queued))
		}
		d.begun = true
		d.answer(p, err)
		d.proceed()
		switch {
		case last == nil:
		case last.verb.aboutKeys():
			if !early {
				d.runAlone(last)
			}
			x.out.Buf = append(x.out.Buf, d.alone.Buf...)
			c.holdLarge()
			c.spill()
		default:
			d.runNow(last)
		}
	}
}

// runAlone runs a command that does not run on the draft, since what it makes of one key depends on
// another one, and keeps its answer.
func (d *draft) runAlone(y *call) {
	c := d.exec.c
	c.recheck()
	d.alone.Buf, d.alone.Three = d.alone.Buf[:0], d.exec.out.Three
	y.ctx, y.out, y.beside = c.ctx, &d.alone, d
	if denied := y.denied(); denied != "" {
		y.out.Error(denied)
		return
	}
	y.verb.run(y)
}

// A plan says which commands of a part run on the draft before it is written: those that write, and
// those that read a key which is written after them. The others run when they are answered.
type plan struct {
	part  []*call
	first []bool   // it runs before
	keys  []key    // to be read before
	ids   []string // of the keys that are written
	whole bool     // there is no other part
	// decide is what is done with the one key, in the place of a part, and tell tells subscribers;
	// nil: there is a part.
	decide func(old *tasks.Task) change
	tell   func()
}

// plan makes the plan of a part. last is the command that divides it from the next one; nil: it is
// the last part.
func (d *draft) plan(part []*call, last *call) *plan {
	p := &plan{part: part, first: make([]bool, len(part))}
	var written map[string]bool // made by the first key that is
	if last != nil && last.verb.aboutKeys() {
		written = make(map[string]bool)
		for _, k := range last.keys() {
			written[k.id] = true
		}
	}
	// A script may be about any key.
	scripted := slices.ContainsFunc(part, func(y *call) bool { return y.verb.isScript() })
	for i, y := range slices.Backward(part) {
		if !y.verb.aboutKeys() {
			continue
		}
		if y.verb.isScript() {
			y.script = d.exec.compile(y)
		}
		keys, writes := y.keys(), y.verb.flags&writes != 0
		p.first[i] = writes || scripted || slices.ContainsFunc(keys, func(k key) bool { return written[k.id] })
		for _, k := range keys {
			if writes {
				if written == nil {
					written = make(map[string]bool)
				}
				if !written[k.id] || last != nil {
					p.ids = append(p.ids, k.id)
				}
				written[k.id] = true
			}
			if _, watched := d.watched[k.id]; p.first[i] || watched {
				p.keys = append(p.keys, k)
			}
		}
	}
	return p
}

// settle runs commands of a part on the draft, and writes. Errors: errWatched; why commands could
// not run.
func (d *draft) settle(p *plan) error {
	turns := d.exec.c.server.turns
	switch {
	case p.whole && len(p.ids) == 1 && len(d.compared) == 0:
		return d.settleInTurn(turns, p)
	case len(p.ids) <= mostTurns:
		done, err := turns.takeAll(d.exec.c.ctx, p.ids)
		if err != nil {
			return err
		}
		defer done()
	}
	return d.tryOften(p, new(waiter))
}

// tryOften runs commands of a part, and the drafts that wait behind it, until they are written.
// Errors: as of settle.
func (d *draft) tryOften(p *plan, w *waiter) error {
	c := d.exec.c
	begun := time.Now()
	d.until = begun.Add(supersedeAfter)
	again, err := true, error(nil)
	for try := 0; again && err == nil; try++ {
		if err = rest(c.ctx, try); try == mostTries || time.Since(begun) > turnWithin {
			err = errContended
		}
		if err == nil {
			d.restart()
			again, err = d.try(p, w)
		}
	}
	switch {
	case err == nil:
	case d.wrote:
		d.giveUp(err)
	default:
		d.restart()
	}
	return err
}

// try runs commands of a part on the draft, and writes. The rest is as of write.
func (d *draft) try(p *plan, w *waiter) (again bool, err error) {
	if again, err := d.run(p); again || err != nil {
		return again, err
	}
	if len(w.chain) > 0 {
		return d.writeChain(w)
	}
	return d.write()
}

// run runs commands of a part on the draft. It reports whether they have to run again, with other
// rights.
func (d *draft) run(p *plan) (again bool, err error) {
	c := d.exec.c
	d.running = true
	defer func() { d.running = false }()
	if p.decide != nil {
		if c.caller != nil && c.caller.Withdrawn() { // while it has waited for its turn
			return false, edge.ErrWithdrawn
		}
		d.runs, d.at = make([]run, 1), 0
		_, err := d.update(&p.keys[0], p.decide)
		return false, err
	}
	c.recheck()
	caller := c.caller
	d.exec.ctx = c.ctx
	d.fetch(p.keys)
	d.runs = slices.Grow(d.runs, len(p.part))[:len(p.part)]
	d.out.Three = d.exec.out.Three
	for i, y := range p.part {
		if !p.first[i] {
			continue
		}
		if err := context.Cause(c.ctx); err != nil {
			return false, err
		}
		d.at = i
		y.tx, y.ctx, y.out = d, c.ctx, &d.out
		if denied := y.denied(); denied != "" && !d.wrote {
			y.out.Error(denied)
		} else {
			y.verb.run(y)
		}
		end := len(d.out.Buf)
		d.runs[i].ran, d.runs[i].end = true, end
		switch more := int64(end - d.answers); {
		case end > mostAnswers:
			return false, errAnswersLarge
		case more > 0 && !c.held.kept.Take(more):
			return false, errDraftFull
		}
		d.answers = max(d.answers, end)
	}
	c.recheck()
	return c.caller != caller, nil // the rights count that the client has when it is written
}

// answer answers the commands of a part: those that have run on the draft, or could not with err,
// and the others, which run now.
func (d *draft) answer(p *plan, err error) {
	x, from := d.exec, 0
	for i, y := range p.part {
		if !p.first[i] {
			d.runNow(y)
			continue
		}
		switch {
		case i < len(d.runs) && d.runs[i].ran:
			from = d.conclude(i, from)
		case d.wrote: // in an earlier try, perhaps for this command
			x.fail(fmt.Errorf("%w: %w", tasks.ErrUnknown, err))
		default:
			x.fail(err)
		}
		x.c.holdLarge()
		x.c.spill()
	}
}

// conclude gives the answer of a command that has run on the draft, which begins at from in d.out,
// and tells its events. It returns where the answer ends.
func (d *draft) conclude(i, from int) int {
	x, r := d.exec, &d.runs[i]
	r.tell(x.c.server)
	if err := r.failed(i); err != nil {
		x.fail(err)
		return r.end
	}
	for _, m := range r.told {
		x.c.publish(m.channel, m.text)
	}
	x.out.Buf = append(x.out.Buf, d.out.Buf[from:r.end]...)
	return r.end
}

// tell tells subscribers, once, what the command has done with keys that are written.
func (r *run) tell(s *Server) {
	for _, e := range r.events {
		if e.key != nil && e.key.lost == nil {
			s.notify(e.class, e.name, e.key.key.name)
		}
	}
	r.events = nil
}

// failed returns why a command was not done, though it has run on the draft; i is its place.
func (r *run) failed(i int) error {
	for _, e := range r.keys {
		if e.lost != nil && i >= e.since {
			return e.lost
		}
	}
	return nil
}

// runNow runs a command that writes no key of the draft.
func (d *draft) runNow(y *call) {
	c := d.exec.c
	c.recheck() // the rights count that the client has when a command runs
	y.ctx, y.out = c.ctx, d.exec.out
	switch denied := y.denied(); {
	case denied != "":
		y.out.Error(denied)
	case y.verb.tells(y.args) && c.crowded():
		y.out.Error(errUnread)
	case y.verb.aboutKeys():
		y.tx = d
		if y.verb.last != 1 { // it has several, which are read together
			d.fetch(y.keys())
		}
		y.verb.run(y)
	default:
		from := len(y.out.Buf)
		y.verb.run(y)
		if y.verb.flags&(divides|writes) == divides|writes && y.out.Buf[from] != '-' {
			// All keys are deleted.
			for _, e := range d.keys {
				d.drop(e)
			}
			d.watched = nil
		}
	}
	c.holdLarge()
	c.spill()
}
