package engine_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// start starts a Replace, and returns where its outcome comes.
func start(r *rig.Rig, request Request) (s StartedReplace, outcome chan error, ok bool) {
	outcome = make(chan error, 2)
	s, ok = r.Admin().StartReplace(r.T.Context(), &request, func(err error) { outcome <- err })
	return s, outcome, ok
}

// A Replace that is started makes a task, or takes the place of one, and tells its outcome once.
func TestStartReplace(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for i, payload := range []string{"first", "second"} {
			_, outcome, ok := start(r, Request{ID: "t", Topic: "jobs", Payload: []byte(payload), Delay: time.Hour})
			if !ok {
				t.Fatalf("%s is not started", payload)
			}
			if err := <-outcome; err != nil {
				t.Fatal(err)
			}
			if got := r.MustGet("t"); string(got.Payload) != payload || got.Revision != int64(i+1) {
				t.Errorf("the task is %+v", got)
			}
		}
		for _, bad := range []Request{{ID: "", Topic: "jobs"}, {ID: "t", Topic: "?"}} {
			if _, _, ok := start(r, bad); ok {
				t.Errorf("%+v is started", bad)
			}
		}
		r.CheckConsistency()
	})
}

// A Replace that was started can be given up, and is told no more. One of a task that is being
// written is not started.
func TestGiveUpReplace(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		one := Request{ID: "t", Topic: "jobs", Delay: time.Hour}
		_, release := r.Faulty.Hold(ledgertest.Apply)
		s, outcome, ok := start(r, one)
		if !ok {
			t.Fatal("it is not started")
		}
		if _, _, ok := start(r, one); ok {
			t.Error("a second one is started meanwhile")
		}
		synctest.Wait()
		if err := r.Admin().GiveUp(s, nil); !errors.Is(err, ErrUnknown) {
			t.Errorf("the error is %v", err)
		}
		release()
		synctest.Wait()
		if len(outcome) > 0 {
			t.Errorf("an outcome is told: %v", <-outcome)
		}
		rig.Pass(time.Second)
		r.InLedger("t", recovery.Nowhere) // its caller did not ask again
		s, outcome, _ = start(r, one)
		if err := <-outcome; err != nil {
			t.Error(err)
		}
		if err := r.Admin().GiveUp(s, nil); err != nil {
			t.Errorf("given up after its answer: %v", err)
		}
		r.CheckConsistency()
	})
}
