package cluster_test

import (
	"testing"

	"github.com/lapsehq/lapse/tasks/internal/rig"
)

func TestMain(m *testing.M) {
	rig.AtOnce(8)
	rig.Main(m)
}
