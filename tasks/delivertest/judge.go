package delivertest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// slack is by how much a record may differ from its event: schedulers count in milliseconds, and a
// record is made a moment before or after the event.
const slack = 3 * time.Millisecond

// A judge compares histories with the requests.
type judge struct {
	settings tasks.TopicSettings // with defaults
	cannot   map[Ability]string
	answers  bool // the receiver decides the outcome of attempts
	crashed  map[int]bool
	broken   bool // there was a fault between way and receiver
	faults   []string
}

// An attempt is one delivery by the scheduler's account.
type attempt struct {
	run, n         int
	started, ended time.Time
	how            tasks.EventKind // delivered, retried, dead; empty: its end is not known
	err            string
	arrivals       []*arrival
}

// attempts puts the events of a story together. The reports of a run that has crashed since may not
// have been recorded: its retry is replaced by what a later run reports of the same attempt.
func (st *story) attempts(crashed map[int]bool) (all []*attempt) {
	for _, e := range st.events {
		switch e.Kind {
		case tasks.EventStarted:
			all = append(all, &attempt{run: e.run, n: e.Attempt, started: e.At})
		case tasks.EventDelivered, tasks.EventRetried, tasks.EventDied:
			// The end of an attempt that began before a restart may be reported after it.
			for _, a := range slices.Backward(all) {
				unrecorded := a.how == tasks.EventRetried && crashed[a.run] && a.run != e.run
				if a.n == e.Attempt && (a.how == "" || unrecorded) {
					a.ended, a.how, a.err = e.At, e.Kind, e.Err
					break
				}
			}
		}
	}
	return all
}

// judge finds the faults in a task's story. end is the present state of the task, nil if it is
// finished.
func (j *judge) judge(st *story, end *tasks.Task) []string {
	j.faults = nil
	if st.asked.Topic == "" {
		return []string{"it was not requested"}
	}
	st.order()
	all := st.attempts(j.crashed)
	for i, a := range all {
		j.sequence(st, all[:i], a)
	}
	j.end(all, end)
	for _, a := range st.arrivals {
		j.content(st, a)
	}
	if j.answers {
		j.answered(st, all)
	} else {
		j.stored(st, all, end)
	}
	return j.faults
}

func (j *judge) fault(format string, args ...any) {
	j.faults = append(j.faults, fmt.Sprintf(format, args...))
}

// sequence judges when an attempt began, and with which number.
func (j *judge) sequence(st *story, before []*attempt, a *attempt) {
	if early := st.asked.Due.Sub(a.started); early > 0 {
		j.fault("attempt %d began %v early", a.n, early)
	}
	if a.n > j.settings.Retry.MaxAttempts {
		j.fault("attempt %d of %d", a.n, j.settings.Retry.MaxAttempts)
	}
	if len(before) == 0 {
		// An attempt may have been counted, and cut off before it began.
		if a.n != 1 && !(a.n == 2 && j.settings.CountCrashes && j.crashed[a.run-1]) {
			j.fault("the first attempt has the number %d", a.n)
		}
		return
	}
	prev := before[len(before)-1]
	known := prev.run == a.run || !j.crashed[prev.run] // the scheduler knew how prev ended
	switch {
	case !known:
		if a.n < 1 || a.n > prev.n+1 {
			j.fault("after a crash, attempt %d follows attempt %d", a.n, prev.n)
		}
		return
	case prev.how == "" && prev.run != a.run:
		if a.n != prev.n && a.n != prev.n+1 {
			j.fault("after a restart, attempt %d follows attempt %d", a.n, prev.n)
		}
		return
	case a.n != prev.n+1:
		j.fault("attempt %d follows attempt %d", a.n, prev.n)
	}
	switch prev.how {
	case "":
		j.fault("attempt %d began while attempt %d was under way", a.n, prev.n)
	case tasks.EventRetried:
		if pause := a.started.Sub(prev.ended); !st.hurried && pause < j.settings.Retry.MinBackoff-slack {
			j.fault("attempt %d began %v after attempt %d failed; at least %v were asked for", a.n, pause, prev.n, j.settings.Retry.MinBackoff)
		}
	default:
		j.fault("attempt %d began although the task was %s", a.n, prev.how)
	}
}

// end judges the outcome of the task.
func (j *judge) end(all []*attempt, end *tasks.Task) {
	if len(all) == 0 {
		j.fault("lost: it was never delivered")
		return
	}
	last := all[len(all)-1]
	switch {
	case end == nil && last.how != tasks.EventDelivered:
		j.fault("finished, and its last attempt %d was not acknowledged but %q", last.n, last.how)
	case end == nil:
	case end.State != tasks.Dead:
		j.fault("not settled: it is %v", end.State)
	case last.how != tasks.EventDied:
		j.fault("dead, and its last attempt %d was %q", last.n, last.how)
	case end.Attempt != last.n:
		j.fault("dead with %d attempts, after %d", end.Attempt, last.n)
	case end.LastError == "" || !strings.HasPrefix(last.err, end.LastError):
		j.fault("dead with the last error %q, after %q", end.LastError, last.err)
	}
}

// content judges the content of an arrival.
func (j *judge) content(st *story, a *arrival) {
	if early := st.asked.Due.Sub(a.At); early > 0 {
		j.fault("arrived %v early", early)
	}
	if j.can(Payloads) && !bytes.Equal(a.Payload, st.asked.Payload) {
		j.fault("arrived with a payload of %d bytes that are not the %d asked for", len(a.Payload), len(st.asked.Payload))
	}
	if j.can(Headers) {
		for name, value := range st.asked.Headers {
			if a.Headers[name] != value {
				j.fault("arrived with %q in the header %s", a.Headers[name], name)
			}
		}
	}
	if j.can(Attempts) && a.Attempt < 1 {
		j.fault("arrived as attempt %d", a.Attempt)
	}
	if j.can(Receipt) && a.Receipt == "" {
		j.fault("attempt %d arrived without a receipt", a.Attempt)
	}
}

func (j *judge) can(a Ability) bool {
	_, cannot := j.cannot[a]
	return !cannot && (j.answers || !ofReceivers[a])
}

// answered compares attempts with the answers of their receiver.
func (j *judge) answered(st *story, all []*attempt) {
	for _, a := range st.arrivals {
		i := slices.IndexFunc(all, func(t *attempt) bool { return t.run == a.run && t.n == a.Attempt })
		if i < 0 {
			j.fault("attempt %d arrived, and was never begun", a.Attempt)
			continue
		}
		all[i].arrivals = append(all[i].arrivals, a)
	}
	for _, t := range all {
		if len(t.arrivals) != 1 {
			if t.how != "" || len(t.arrivals) > 1 {
				j.fault("attempt %d of run %d arrived %d times", t.n, t.run, len(t.arrivals))
			}
			continue
		}
		j.answer(t, t.arrivals[0])
	}
}

func (j *judge) answer(t *attempt, a *arrival) {
	counts := a.said != "" && a.answered.Before(t.started.Add(j.settings.Lease-slack))
	switch {
	case t.how == tasks.EventDelivered && a.said != Accept:
		j.fault("attempt %d counts as delivered; its receiver said %q", t.n, a.said)
	case t.how == tasks.EventRetried && counts && (a.said == Accept || a.said == Bury):
		j.fault("attempt %d counts as failed (%s); its receiver said %q", t.n, t.err, a.said)
	case t.how == tasks.EventDied && counts && a.said == Accept:
		j.fault("the task died (%s); its receiver said %q", t.err, a.said)
	case t.how == tasks.EventDied && !(counts && a.said == Bury) && t.n != j.settings.Retry.MaxAttempts:
		j.fault("the task died after attempt %d of %d (%s)", t.n, j.settings.Retry.MaxAttempts, t.err)
	case counts && (a.said == Fail || a.said == Bury) && t.how != "" && j.can(Reason) && !strings.Contains(t.err, a.why):
		j.fault("attempt %d failed because of %q; its receiver said %q", t.n, t.err, a.why)
	}
}

// stored compares attempts with the entries of a broker.
func (j *judge) stored(st *story, all []*attempt, end *tasks.Task) {
	if end == nil && len(st.arrivals) == 0 {
		j.fault("finished, and nothing has arrived")
	}
	if len(st.arrivals) > len(all) && !j.broken {
		j.fault("arrived %d times in %d attempts", len(st.arrivals), len(all))
	}
	if end != nil && end.State == tasks.Dead && end.Attempt != j.settings.Retry.MaxAttempts {
		j.fault("dead after attempt %d of %d", end.Attempt, j.settings.Retry.MaxAttempts)
	}
	for _, a := range st.arrivals {
		if a.Attempt != 0 && !slices.ContainsFunc(all, func(t *attempt) bool { return t.n == a.Attempt }) {
			j.fault("attempt %d arrived, and was never begun", a.Attempt)
		}
	}
}
