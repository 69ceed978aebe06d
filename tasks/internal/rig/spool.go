package rig

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// A SpoolRig is a rig with a spool, which fails as it is told too.
type SpoolRig struct {
	*Rig
	SpoolMem    *memledger.Ledger
	SpoolFaulty *ledgertest.Faulty
}

// SpoolBubble runs a test with fake time, on a rig with a spool.
func SpoolBubble(t *testing.T, test func(t *testing.T, r *SpoolRig), options ...memledger.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &SpoolRig{SpoolMem: memledger.New(memledger.Strict())}
		r.SpoolFaulty = ledgertest.Wrap(r.SpoolMem)
		r.Rig = New(t, tasks.Config{Spool: r.SpoolFaulty}, options...)
		t.Cleanup(func() { r.SpoolFaulty.Heal() })
		synctest.Wait()
		test(t, r)
	})
}

// CrashBoth ends the process as kill -9 would, and starts the next one.
func (r *SpoolRig) CrashBoth() {
	r.T.Helper()
	r.SpoolMem.Crash()
	r.Cut()
	r.SpoolMem = r.SpoolMem.Reopen()
	r.SpoolFaulty = ledgertest.Wrap(r.SpoolMem)
	r.Cfg.Spool = r.SpoolFaulty
	r.Open()
	synctest.Wait()
}

// Away makes the ledger stop answering, and keeps one caller waiting for it, so that
// every caller knows. What that caller wanted may happen or not.
func (r *SpoolRig) Away() {
	r.T.Helper()
	r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
	for i := range r.Engine().Terms.Shards {
		for n := 0; ; n++ {
			if id := fmt.Sprintf("probe-%d-%d", i, n); r.Engine().Terms.ShardOf([]byte(id)) == i {
				_, err := r.Schedule(r.T.Context(), tasks.Request{ID: id, Topic: "probe", Delay: time.Hour})
				Want(r.T, "Schedule of a chosen id", err, tasks.ErrUnknown)
				break
			}
		}
	}
}

// Spooled schedules a task that has to go to the spool.
func (r *SpoolRig) Spooled(topic string, delay time.Duration) string {
	r.T.Helper()
	task := r.Must(tasks.Request{Topic: topic, Delay: delay, Payload: []byte(`{"a":1}`)})
	if !task.Spooled {
		r.T.Fatalf("%s is not spooled", task.ID)
	}
	return task.ID
}

// WantSpool waits for the mover, and fails unless the spool holds and has moved so many.
func (r *SpoolRig) WantSpool(tasks int, moved int64) {
	r.T.Helper()
	Pass(3 * time.Second)
	if s := r.Stats().Spool; s.Tasks != tasks || s.Moved != moved {
		r.T.Errorf("the spool has %d tasks, and %d were moved; want %d, %d", s.Tasks, s.Moved, tasks, moved)
	}
}
