package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	meminfo := written(t, "meminfo", "MemTotal:        2048 kB\nMemFree:         1 kB\n")
	for _, test := range []struct {
		meminfo, cgroup string
		want            int64
	}{
		{meminfo, "missing", 2 << 20},
		{meminfo, written(t, "memory.max", "1048576\n"), 1 << 20},
		{meminfo, written(t, "memory.max", "max\n"), 2 << 20},
		{meminfo, written(t, "memory.max", "99999999\n"), 2 << 20},
		{"missing", written(t, "memory.max", "1048576\n"), 1 << 20},
		{"missing", "missing", 0},
	} {
		if got := memoryLimit(test.meminfo, test.cgroup); got != test.want {
			t.Errorf("%s, %s: %d, want %d", test.meminfo, test.cgroup, got, test.want)
		}
	}
}

func TestMemoryIsWarnedOf(t *testing.T) {
	if memoryLimit("/proc/meminfo", "") == 0 {
		t.Skip("this system does not tell how much memory there is")
	}
	for bytesAllowed, warns := range map[int64]bool{1 << 40: true, 1 << 20: false} {
		var log bytes.Buffer
		s := settings{MaxBytes: bytesAllowed}
		s.warnOfMemory(slog.New(slog.NewTextHandler(&log, nil)))
		if strings.Contains(log.String(), "max_bytes") != warns {
			t.Errorf("max_bytes %d: %q", bytesAllowed, &log)
		}
	}
}
