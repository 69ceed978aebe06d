package cluster

import (
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// A node without heartbeats is not shown as live, whether it is taken for dead or not.
func TestStateOfTheQuiet(t *testing.T) {
	draining := []byte(`{"draining":true}`)
	for want, known := range map[task.NodeState][]recovery.Node{
		task.NodeLive:     {{Live: true}},
		task.NodeDraining: {{Live: true, Status: draining}},
		task.NodeSilent:   {{}, {Live: true, Quiet: true, Status: draining}, {Live: true, Quiet: true, Gone: true}, {Live: true, Gone: true}},
		task.NodeReleased: {{Released: true}, {Released: true, Quiet: true, Gone: true}},
	} {
		for _, k := range known {
			n := DescribeNode(&k)
			if got := n.State(); got != want {
				t.Errorf("%+v is shown as %s instead of %s", k, got, want)
			}
			if n.Live && k.Gone {
				t.Errorf("%+v is shown as live", k)
			}
		}
	}
}
