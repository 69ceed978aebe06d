package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/cli/bench"
)

func TestMemoryLimit(t *testing.T) {
	for _, test := range []struct {
		machine int64
		cgroup  string
		want    int64
	}{
		{2 << 20, "missing", 2 << 20},
		{2 << 20, written(t, "memory.max", "1048576\n"), 1 << 20},
		{2 << 20, written(t, "memory.max", "max\n"), 2 << 20},
		{2 << 20, written(t, "memory.max", "99999999\n"), 2 << 20},
		{0, written(t, "memory.max", "1048576\n"), 1 << 20},
		{0, "missing", 0},
	} {
		if got := memoryLimit(test.machine, test.cgroup); got != test.want {
			t.Errorf("%d, %s: %d, want %d", test.machine, test.cgroup, got, test.want)
		}
	}
}

func TestMemoryIsWarnedOf(t *testing.T) {
	if bench.ThisMachine().MemoryMB == 0 {
		t.Skip("this system does not tell how much memory there is")
	}
	for bytesAllowed, warns := range map[int64]bool{1 << 40: true, 1 << 20: false} {
		var log bytes.Buffer
		s := settings{limitSettings: limitSettings{MaxBytes: bytesAllowed}}
		s.warnOfMemory(slog.New(slog.NewTextHandler(&log, nil)))
		if strings.Contains(log.String(), "max_bytes") != warns {
			t.Errorf("max_bytes %d: %q", bytesAllowed, &log)
		}
	}
}
