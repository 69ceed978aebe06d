package delivertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A tale is a task's story, short to write: a line for each thing that happened.
type tale []told

type told struct {
	at   float64 // in seconds after its deadline
	run  int
	what string // an event, "arrived", or what its receiver said
	n    int    // the attempt
}

func (lines tale) story() *story {
	due := time.Unix(1_700_000_000, 0)
	st := &story{asked: tasks.Request{ID: "a", Topic: subject, Due: due, Payload: []byte("{}")}}
	for _, l := range lines {
		at := due.Add(time.Duration(l.at * float64(time.Second)))
		switch l.what {
		case "arrived":
			st.arrivals = append(st.arrivals, &arrival{Arrival: Arrival{ID: "a", Attempt: l.n, Payload: []byte("{}"), Receipt: "r", At: at}, run: l.run})
		case "started", "delivered", "retried", "dead":
			e := event{tasks.Event{Kind: tasks.EventKind(l.what), At: at, Attempt: l.n}, l.run}
			if l.what != "started" && l.what != "delivered" {
				e.Err = "no"
			}
			st.events = append(st.events, e)
		default:
			a := st.arrivals[len(st.arrivals)-1]
			a.said, a.answered = Say(l.what), at
		}
	}
	return st
}

// once is an attempt from begin to end.
func once(at float64, run, n int, said Say, how tasks.EventKind) tale {
	return tale{{at, run, "started", n}, {at, run, "arrived", n}, {at + 0.1, run, string(said), n}, {at + 0.1, run, string(how), n}}
}

func join(tales ...tale) (all tale) {
	for _, t := range tales {
		all = append(all, t...)
	}
	return all
}

func TestJudge(t *testing.T) {
	dead := func(n int) *tasks.Task { return &tasks.Task{State: tasks.Dead, Attempt: n, LastError: "no"} }
	done, failed := once(0, 1, 1, Accept, tasks.EventDelivered), once(0, 1, 1, Fail, tasks.EventRetried)
	// A receiver settles by receipt a delivery that its node gave up while it was killed.
	crashedRetry := tale{{0, 1, "started", 1}, {0, 1, "arrived", 1}, {0.1, 1, "retried", 1}, {0.2, 2, "delivered", 1}, {0.2, 1, "accept", 1}}
	for _, c := range []struct {
		name  string
		tale  tale
		end   *tasks.Task
		crash bool   // of the first run
		fault string // empty: none
	}{
		{name: "delivered", tale: done},
		{name: "delivered at last", tale: join(failed, once(5, 1, 2, Accept, tasks.EventDelivered))},
		{name: "died", tale: join(failed, once(5, 1, 2, Fail, tasks.EventRetried), once(9, 1, 3, Fail, tasks.EventDied)), end: dead(3)},
		{name: "buried", tale: once(0, 1, 1, Bury, tasks.EventDied), end: dead(1)},
		{name: "again after a crash", tale: join(done, once(5, 2, 1, Accept, tasks.EventDelivered)), crash: true},
		{name: "interrupted", tale: join(once(0, 1, 1, Silence, ""), once(5, 2, 1, Accept, tasks.EventDelivered))},
		{name: "settled by receipt after a crash", tale: crashedRetry, crash: true},
		{name: "lease ran out", tale: join(tale{{0, 1, "started", 1}, {0, 1, "arrived", 1}, {30, 1, "retried", 1}},
			once(35, 1, 2, Accept, tasks.EventDelivered), tale{{50, 1, "accept", 2}})},

		{name: "settled by receipt after a retry", tale: crashedRetry, fault: "not acknowledged"},
		{name: "lost", fault: "never delivered"},
		{name: "left", tale: failed, end: &tasks.Task{State: tasks.Pending}, fault: "not settled"},
		{name: "retry lost", tale: failed, fault: "not acknowledged"},
		{name: "early", tale: once(-0.001, 1, 1, Accept, tasks.EventDelivered), fault: "early"},
		{name: "twice", tale: join(done, once(5, 1, 2, Accept, tasks.EventDelivered)), fault: "although the task was delivered"},
		{name: "twice by restart", tale: join(done, once(5, 2, 2, Accept, tasks.EventDelivered)), fault: "although the task was delivered"},
		{name: "twice at once", tale: join(once(0, 1, 1, Accept, ""), once(0.01, 1, 2, Accept, tasks.EventDelivered)), fault: "under way"},
		{name: "arrived twice", tale: join(done, tale{{0.2, 1, "arrived", 1}, {0.3, 1, "accept", 1}}), fault: "arrived 2 times"},
		{name: "never arrived", tale: tale{{0, 1, "started", 1}, {0, 1, "delivered", 1}}, fault: "arrived 0 times"},
		{name: "never begun", tale: join(done, tale{{1, 1, "arrived", 2}}), fault: "never begun"},
		{name: "not the first", tale: once(0, 1, 2, Accept, tasks.EventDelivered), fault: "number 2"},
		{name: "attempt left out", tale: join(failed, once(5, 1, 3, Accept, tasks.EventDelivered)), fault: "attempt 3 follows attempt 1"},
		{name: "attempt repeated", tale: join(failed, once(5, 1, 1, Accept, tasks.EventDelivered)), fault: "attempt 1 follows attempt 1"},
		{name: "no pause", tale: join(failed, once(0.5, 1, 2, Accept, tasks.EventDelivered)), fault: "at least 1s were asked for"},
		{name: "too many", tale: join(failed, once(5, 1, 2, Fail, tasks.EventRetried), once(9, 1, 3, Fail, tasks.EventRetried),
			once(15, 1, 4, Accept, tasks.EventDelivered)), fault: "attempt 4 of 3"},
		{name: "dead too soon", tale: once(0, 1, 1, Fail, tasks.EventDied), end: dead(1), fault: "died after attempt 1 of 3"},
		{name: "dead after all", tale: join(failed, once(5, 1, 2, Bury, tasks.EventDied), once(9, 1, 3, Fail, tasks.EventDied)), end: dead(3), fault: "although the task was dead"},
		{name: "failure taken for success", tale: once(0, 1, 1, Fail, tasks.EventDelivered), fault: "counts as delivered"},
		{name: "success taken for failure", tale: join(once(0, 1, 1, Accept, tasks.EventRetried), once(5, 1, 2, Accept, tasks.EventDelivered)), fault: "counts as failed"},
		{name: "killed and retried", tale: join(once(0, 1, 1, Bury, tasks.EventRetried), once(5, 1, 2, Accept, tasks.EventDelivered)), fault: "counts as failed"},
		{name: "dead, wrong attempts", tale: once(0, 1, 1, Bury, tasks.EventDied), end: dead(2), fault: "dead with 2 attempts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := &judge{
				answers: true, crashed: map[int]bool{1: c.crash},
				settings: tasks.TopicSettings{Lease: 30 * time.Second, Retry: tasks.Retry{MaxAttempts: 3, MinBackoff: time.Second}},
			}
			faults := j.judge(c.tale.story(), c.end)
			if text := strings.Join(faults, "\n"); c.fault == "" && text != "" || !strings.Contains(text, c.fault) {
				t.Errorf("found %q, want %q", text, c.fault)
			}
		})
	}
}

// Content is compared byte by byte, unless the way cannot carry it.
func TestJudgeContent(t *testing.T) {
	for _, cannot := range []map[Ability]string{nil, {Payloads: "it is a doorbell"}} {
		st := once(0, 1, 1, Accept, tasks.EventDelivered).story()
		st.arrivals[0].Payload = []byte("{ }")
		j := &judge{answers: true, cannot: cannot, settings: tasks.TopicSettings{Lease: time.Second, Retry: tasks.Retry{MaxAttempts: 3}}}
		if faults := j.judge(st, nil); (len(faults) == 0) != (cannot != nil) {
			t.Errorf("cannot %v: %v", cannot, faults)
		}
	}
	j := &judge{answers: true}
	if faults := fmt.Sprint(j.judge(&story{}, nil)); !strings.Contains(faults, "not requested") {
		t.Errorf("a stranger: %s", faults)
	}
}
