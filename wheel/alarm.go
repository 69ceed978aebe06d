package wheel

import "time"

// alarmLead is how long before its time an element leaves the queue. The Go runtime waits in whole
// milliseconds on Linux, so a wait in the queue ends up to one too late; the alarm waits for the
// rest.
const alarmLead = 2 * time.Millisecond

// An alarm ends the last wait before something is due. It is a Go timer, and beside it one of the
// operating system if that has finer ones: the first of the two rings. While all processors are
// busy, the Go runtime looks at its own timers more often than at those of the system.
type alarm struct {
	at    int64 // for which element it is set, in Unix milliseconds; notQueued for none
	timer *time.Timer
	fine  *fineTimer // nil: there is none
	rings <-chan struct{}
}

// newAlarm returns an alarm that is not set.
func (r *Runner) newAlarm() *alarm {
	a := &alarm{at: notQueued, timer: time.NewTimer(0)}
	a.timer.Stop()
	rings := make(chan struct{}, 1)
	if a.fine = newFineTimer(); a.fine != nil {
		a.rings = rings
		r.running.Go(func() { a.fine.run(rings) })
	}
	return a
}

// setFor has the alarm ring in d, which is at the time at, unless it rings before.
func (a *alarm) setFor(at int64, d time.Duration) {
	if a.at != notQueued && a.at <= at {
		return
	}
	a.at = at
	a.timer.Reset(d)
	if a.fine != nil {
		a.fine.set(d)
	}
}

func (a *alarm) close() {
	a.timer.Stop()
	if a.fine != nil {
		a.fine.close()
	}
}
