package wheel

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// Where the system has finer timers than the Go runtime, a Runner uses them; in a bubble, whose
// time is not that of the system, it does not.
func TestFineTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if newFineTimer() != nil {
			t.Error("there is one in a bubble")
		}
	})
	fine := newFineTimer()
	if fine == nil {
		if runtime.GOOS == "linux" {
			t.Error("there is none")
		}
		return
	}
	rings, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		fine.run(rings)
	}()
	began := time.Now()
	for range 3 {
		fine.set(time.Millisecond)
		<-rings
	}
	if passed := time.Since(began); passed < 3*time.Millisecond {
		t.Errorf("it has rung three times within %v", passed)
	}
	fine.close()
	<-ended
}

// An alarm rings for the soonest of what it is set for.
func TestAlarmRingsForTheSoonest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := new(Runner).newAlarm()
		defer a.close()
		began := time.Now()
		a.setFor(5, 5*time.Millisecond)
		a.setFor(3, 3*time.Millisecond)
		a.setFor(4, 4*time.Millisecond)
		if <-a.timer.C; time.Since(began) != 3*time.Millisecond {
			t.Errorf("it rings after %v", time.Since(began))
		}
	})
}
