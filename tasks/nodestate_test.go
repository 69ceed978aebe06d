package tasks_test

import (
	"testing"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// Who gives no signs of life is not shown as live, taken for dead or not.
func TestStateOfTheQuiet(t *testing.T) {
	draining := []byte(`{"draining":true}`)
	for want, known := range map[NodeState][]recovery.Node{
		NodeLive:     {{Live: true}},
		NodeDraining: {{Live: true, Status: draining}},
		NodeSilent:   {{}, {Live: true, Quiet: true, Status: draining}, {Live: true, Quiet: true, Gone: true}, {Live: true, Gone: true}},
		NodeReleased: {{Released: true}, {Released: true, Quiet: true, Gone: true}},
	} {
		for _, k := range known {
			n := cluster.DescribeNode(&k)
			if got := n.State(); got != want {
				t.Errorf("%+v is shown as %s instead of %s", k, got, want)
			}
			if n.Live && k.Gone {
				t.Errorf("%+v is shown as live", k)
			}
		}
	}
}
