package cluster_test

import (
	"testing"

	"github.com/lapsehq/lapse/internal/runtest"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

func TestMain(m *testing.M) {
	runtest.AtOnce(16)
	rig.Main(m)
}
