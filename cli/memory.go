package cli

import (
	"bufio"
	"log/slog"
	"os"
	"strconv"
	"strings"
)

// warnOfMemory tells that tasks may take more memory than there is: then the kernel
// ends the process before a schedule is refused.
func (s *settings) warnOfMemory(log *slog.Logger) {
	if has := memoryLimit("/proc/meminfo", "/sys/fs/cgroup/memory.max"); has > 0 && s.MaxBytes > has/2 {
		log.Warn("max_bytes is more than half of the memory here: set max_bytes and max_pending to what fits",
			"max_bytes", s.MaxBytes, "memory", has)
	}
}

// memoryLimit is how many bytes this process may use, as far as Linux tells: what the
// machine has, or less in a container. 0 means that nothing is known.
func memoryLimit(meminfo, cgroup string) (limit int64) {
	if file, err := os.Open(meminfo); err == nil {
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if rest, ok := strings.CutPrefix(lines.Text(), "MemTotal:"); ok {
				kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				limit = kib << 10
				break
			}
		}
	}
	if text, err := os.ReadFile(cgroup); err == nil {
		if most, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && (limit == 0 || most < limit) {
			limit = most // "max" is no number
		}
	}
	return limit
}
