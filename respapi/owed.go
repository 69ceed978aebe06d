package respapi

import (
	"context"
	"sync"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/resp"
	"github.com/lapsehq/lapse/tasks"
)

// A client that sends one SET at a time has a single write under way. Its connection does not wait
// for the ledger: it owes the answer, and reads on. One goroutine sends the answers of all
// connections whose writes the ledger has recorded together. A connection owes one answer at a
// time: its next command waits until it is sent.
//
//	together -> owe -> StartReplace ... answered -> payer -> pay -> output
//	                -> Next ... settle: is it paid? -> the next command

// owed is the answer that a connection owes, if any.
type owed struct {
	answered func(error) // tells the payer
	timer    *time.Timer // runs while armed; what it finds when it ends may be a later write

	mu     sync.Mutex // guards what follows
	open   bool       // something is owed
	paid   chan struct{}
	verb   *verb // of the command, and more of it:
	begun  time.Time
	key    []byte
	due    deadline
	write  tasks.StartedReplace // once it has begun; before that, an earlier one
	gaveUp bool
	armed  bool
}

// A payer sends the answers that connections owe.
type payer struct {
	mu    sync.Mutex // guards what follows
	queue []payment
	runs  bool // there is a goroutine that sends them
}

// A payment is what became of the write of a connection that owes its answer.
type payment struct {
	c   *conn
	err error
}

// owe begins the write of a command, the only one that has arrived, and reports true if its answer
// is owed from now on. It reports false, and has done nothing, for a command that is no such write,
// or cannot begin at once.
func (c *conn) owe(x *call) bool {
	if x.verb.set == nil || len(c.answer.Buf) > 0 || !c.out.isClear() || x.refusal() != "" {
		return false
	}
	s, value, ok := x.verb.set(x)
	if !ok || !x.plain(&s) {
		c.answer.Buf = c.answer.Buf[:0] // execute says why
		return false
	}
	r, err := x.request(&s.key, value, s.due)
	if err != nil {
		return false
	}
	o, now := &c.owed, time.Now()
	if o.answered == nil {
		o.answered = func(err error) { c.server.payer.add(c, err) }
	}
	o.mu.Lock()
	o.open, o.gaveUp, o.verb, o.begun = true, false, x.verb, now
	o.key, o.due = append(o.key[:0], s.key.name...), s.due
	o.mu.Unlock()
	write, ok := x.scheduler().StartReplace(x.ctx, &r, o.answered)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !ok {
		if o.open = false; r.Held {
			c.server.persistent.takeBack() // execute admits it again
		}
		return false
	}
	if c.begin(x, now); o.open { // it may be paid by now
		o.write, o.gaveUp = write, false
		c.armLocked(x.scheduler().AnswerWithin())
	}
	return true
}

// armLocked has a write looked at that has no answer after so long. The timer is not stopped for
// each: it ends seldom, and then goes on for the rest of the time of the write of that moment.
func (c *conn) armLocked(within time.Duration) {
	o := &c.owed
	switch {
	case o.armed:
	case o.timer == nil:
		o.timer = time.AfterFunc(within, c.lookLate)
	default:
		o.timer.Reset(within)
	}
	o.armed = true
}

// lookLate gives up the write under way if it has been so for as long as calls wait.
func (c *conn) lookLate() {
	o := &c.owed
	o.mu.Lock()
	o.armed = false
	left := c.server.scheduler.Load().Admin().AnswerWithin() - time.Since(o.begun)
	if o.open && left > 0 {
		c.armLocked(left)
	}
	write, late := o.abandonLocked(left <= 0)
	o.mu.Unlock()
	c.giveUp(write, late, nil)
}

// abandonLocked returns the write under way if that is to be given up, and was not before.
func (o *owed) abandonLocked(late bool) (write tasks.StartedReplace, first bool) {
	first = late && o.open && !o.gaveUp
	o.gaveUp = o.gaveUp || first
	return o.write, first
}

// giveUp ends the wait for a write, unless it is answered.
func (c *conn) giveUp(write tasks.StartedReplace, first bool, cause error) {
	if !first {
		return
	}
	if err := c.server.scheduler.Load().Admin().GiveUp(write, cause); err != nil {
		c.server.payer.add(c, err)
	}
}

// settle waits until the answer that is owed was sent. Once the server ends, it waits no longer
// than the scheduler does for its ledger.
func (c *conn) settle() {
	o := &c.owed
	o.mu.Lock()
	if !o.open {
		o.mu.Unlock()
		return
	}
	paid := make(chan struct{})
	o.paid = paid
	o.mu.Unlock()
	select {
	case <-paid:
	case <-c.ctx.Done():
		o.mu.Lock()
		write, first := o.abandonLocked(true)
		o.mu.Unlock()
		c.giveUp(write, first, context.Cause(c.ctx))
		<-paid
	}
}

// stop ends the timer.
func (o *owed) stop() {
	if o.timer != nil {
		o.timer.Stop()
	}
}

// pay sends the answer that the connection owes, once what became of its write is known.
func (c *conn) pay(err error, now time.Time) {
	o := &c.owed
	answer, failed := okAnswer, int64(0)
	if err == nil {
		(&call{c: c}).changed(&key{name: o.key}, o.due)
	} else {
		var w resp.Writer
		w.Error(errorText(err))
		answer, failed = w.Buf, 1
	}
	if _, err := c.out.offer(answer, nil); err != nil {
		c.nc.Close()
	}
	c.server.count(o.verb, 1, failed).took.Observe(now.Sub(o.begun), 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open = false
	if o.paid != nil {
		close(o.paid)
		o.paid = nil
	}
}

var okAnswer = []byte("+OK\r\n")

// add has the answer sent that a connection owes.
func (p *payer) add(c *conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, payment{c, err})
	if !p.runs {
		p.runs = true
		go p.run()
	}
}

// run sends all answers that are known.
func (p *payer) run() {
	var some []payment
	for {
		p.mu.Lock()
		clear(some)
		some, p.queue = p.queue, some[:0]
		if p.runs = len(some) > 0; !p.runs {
			p.queue = nil
		}
		p.mu.Unlock()
		if len(some) == 0 {
			return
		}
		now := time.Now()
		for i := range some {
			some[i].c.pay(some[i].err, now)
		}
	}
}
