package tasks_test

import (
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
)

// A task that has died while it was exported stands twice. It is imported as it stands first.
func TestImportOfTaskThatStandsTwice(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		now := time.Now()
		pending := Exported{Task: Task{ID: "a", Topic: "x", State: Pending, Due: now.Add(time.Hour), Next: now.Add(time.Hour), Created: now, Revision: 1}}
		dead := pending
		dead.State, dead.Died = Dead, now
		for _, before := range []bool{false, true} {
			results, err := r.Import(t.Context(), []Exported{pending, dead})
			want(t, "Import", err, nil)
			for i, a := range results {
				if a.Err != nil || a.Repeated != (before || i > 0) || a.ID != "a" {
					t.Errorf("line %d: %+v", i, a)
				}
			}
		}
		_, after := exportAll(t, r, ExportQuery{}, nil)
		if got := byID(after)["a"]; got.State != Pending {
			t.Errorf("it is %v", got.State)
		}
	})
}
