package portable

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/tasks/task"
)

// notKept are fields of a task that say how it stands at a node, or follow from others.
var notKept = map[string]bool{"Node": true, "Spooled": true, "Repeated": true, "Remaining": true, "SeenAt": true}

// whole returns a pending task of which each field says something.
func whole() task.Exported {
	at := time.UnixMilli(1_900_000_000_000).UTC()
	return task.Exported{
		Fingerprint: 1 << 63, Stamp: 7,
		Task: task.Task{
			ID: "a", Topic: "x", State: task.Pending, Due: at, Next: at.Add(time.Second), Payload: []byte(" {}\n"), Headers: map[string]string{"b": "1", "a": ""},
			Group: "g", MaxLateness: time.Minute, Attempt: 3, Revision: 4, Created: at.Add(-time.Hour), LastError: "no",
			Attempts: []task.Attempt{
				{Number: 2, Ended: at, Took: time.Second, By: "one", Outcome: task.AttemptFailed, Error: "no"},
				{Number: 3, Ended: at, By: "one", Outcome: task.AttemptLeaseExpired, Error: "late"},
			},
			Target: &task.Target{
				Settings: json.RawMessage(`{"url":"https://x.example"}`), Kind: "webhook", Receiver: "https://x.example",
				Retry: task.Retry{MaxAttempts: 5, MaxAge: time.Hour, MinBackoff: time.Second, MaxBackoff: time.Minute},
			},
		},
	}
}

// A task of any state is the same after it was a record. A new field of tasks fails this test until
// whole has it, or notKept says why it is not kept.
func TestRecordKeepsTasks(t *testing.T) {
	pending, held, dead, finished := whole(), whole(), whole(), whole()
	at := pending.Due
	held.State, held.HeldAt, held.Remaining = task.Held, at.Add(-time.Minute), held.Next.Sub(at.Add(-time.Minute))
	dead.State, dead.Next, dead.Died, dead.Reason = task.Dead, dead.Due, at.Add(time.Hour), task.Buried
	finished.State, finished.Next, finished.Finished, finished.Outcome = task.Finished, finished.Due, at.Add(time.Hour), task.OutcomeSkipped
	said := map[string]bool{}
	for _, x := range []task.Exported{pending, held, dead, finished} {
		rec, err := Record(&x)
		if err != nil {
			t.Fatalf("%v: %v", x.State, err)
		}
		got, err := Exported(x.ID, rec)
		if diff := cmp.Diff(x, got); err != nil || diff != "" {
			t.Errorf("%v: %v %s", x.State, err, diff)
		}
		for f, v := range reflect.ValueOf(x.Task).Fields() {
			said[f.Name] = said[f.Name] || !v.IsZero()
		}
	}
	for name, is := range said {
		if !is && !notKept[name] {
			t.Errorf("the field %s of a task is not tested", name)
		}
	}
	unknown := whole()
	unknown.State, unknown.Died = task.Dead, at
	if rec, err := Record(&unknown); err != nil {
		t.Errorf("dead for a reason that is not known: %v", err)
	} else if got, _ := Exported("a", rec); got.State != task.Dead || got.Reason != "" {
		t.Errorf("dead for a reason that is not known: %+v", got)
	}
}
