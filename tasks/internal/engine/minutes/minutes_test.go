package minutes

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// What is older than task.RecentTime does not count, and its place is used again.
func TestRecentForgets(t *testing.T) {
	var r Recent
	bucket := task.LatenessBucket(2 * time.Second)
	r.At(0).Observe(2*time.Second, bucket)
	r.At(time.Minute).Failed++
	for _, c := range []struct {
		now          time.Duration
		late, failed int64
		longest      time.Duration
		any          bool
	}{
		{now: time.Minute, late: 1, failed: 1, longest: 2 * time.Second, any: true},
		{now: task.RecentTime, late: 1, failed: 1, longest: 2 * time.Second, any: true},
		{now: task.RecentTime + time.Minute, failed: 1, any: true},
		{now: task.RecentTime + 2*time.Minute},
	} {
		var counts task.Counts
		any := r.AddTo(&counts, c.now)
		if any != c.any || counts.Recent.Counts[bucket] != c.late || counts.FailedRecent != c.failed || counts.Recent.Max != c.longest || r.Failures(c.now) != c.failed {
			t.Errorf("after %v: %v, %+v, %d have failed", c.now, any, counts.Recent, counts.FailedRecent)
		}
	}
	again := task.RecentTime + time.Minute
	if r.At(again).Failed++; r.Failures(again) != 2 {
		t.Errorf("%d have failed", r.Failures(again))
	}
}

// A history has the minutes of the last hour from its first one on, also those without anything.
func TestHistory(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var h History
	h.Turn(began, 0)
	h.Now().Scheduled++
	h.Turn(began.Add(2*time.Minute), 0)
	h.Now().Died++
	all := h.Describe(began.Add(2 * time.Minute))
	if m := all.Minutes; len(m) != 3 || m[0].Scheduled != 1 || m[1].Scheduled+m[1].Died != 0 || m[2].Died != 1 || !all.Since.Equal(began) {
		t.Errorf("%+v", all)
	}
	later := began.Add((task.HistoryMinutes + 1) * time.Minute)
	h.Turn(later, 0)
	if m := h.Describe(later).Minutes; len(m) != task.HistoryMinutes+1 || m[0].Scheduled != 0 || m[1].Died != 1 {
		t.Errorf("an hour later %d minutes, from %+v", len(m), m[:2])
	}
}
