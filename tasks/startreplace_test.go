package tasks_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
)

// start starts a Replace, and returns where its outcome comes.
func (r *rig) start(request Request) (s StartedReplace, outcome chan error, ok bool) {
	outcome = make(chan error, 2)
	s, ok = r.StartReplace(r.t.Context(), &request, func(err error) { outcome <- err })
	return s, outcome, ok
}

// A Replace that is started makes a task, or takes the place of one, and tells its outcome once.
func TestStartReplace(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		for i, payload := range []string{"first", "second"} {
			_, outcome, ok := r.start(Request{ID: "t", Topic: "jobs", Payload: []byte(payload), Delay: time.Hour})
			if !ok {
				t.Fatalf("%s is not started", payload)
			}
			if err := <-outcome; err != nil {
				t.Fatal(err)
			}
			if got := r.get("t"); string(got.Payload) != payload || got.Revision != int64(i+1) {
				t.Errorf("the task is %+v", got)
			}
		}
		for _, bad := range []Request{{ID: "", Topic: "jobs"}, {ID: "t", Topic: "?"}} {
			if _, _, ok := r.start(bad); ok {
				t.Errorf("%+v is started", bad)
			}
		}
		r.checkConsistency()
	})
}

// A Replace that was started can be given up, and is told no more. One of a task that is being
// written is not started.
func TestGiveUpReplace(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		one := Request{ID: "t", Topic: "jobs", Delay: time.Hour}
		_, release := r.faulty.Hold(ledgertest.Apply)
		s, outcome, ok := r.start(one)
		if !ok {
			t.Fatal("it is not started")
		}
		if _, _, ok := r.start(one); ok {
			t.Error("a second one is started meanwhile")
		}
		synctest.Wait()
		if err := r.GiveUp(s, nil); !errors.Is(err, ErrUnknown) {
			t.Errorf("the error is %v", err)
		}
		release()
		synctest.Wait()
		if len(outcome) > 0 {
			t.Errorf("an outcome is told: %v", <-outcome)
		}
		pass(time.Second)
		r.inLedger("t", recovery.Nowhere) // its caller did not ask again
		s, outcome, _ = r.start(one)
		if err := <-outcome; err != nil {
			t.Error(err)
		}
		if err := r.GiveUp(s, nil); err != nil {
			t.Errorf("given up after its answer: %v", err)
		}
		r.checkConsistency()
	})
}
