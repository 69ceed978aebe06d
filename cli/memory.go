package cli

import (
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/lapsehq/lapse/cli/bench"
)

// warnOfMemory warns if tasks may take more memory than there is: then the kernel ends the process
// before a schedule is refused.
func (s *settings) warnOfMemory(log *slog.Logger) {
	machine := int64(bench.ThisMachine().MemoryMB) << 20
	if has := memoryLimit(machine, "/sys/fs/cgroup/memory.max"); has > 0 && s.MaxBytes > has/2 {
		log.Warn("max_bytes is more than half of the memory here: set max_bytes and max_pending to what fits",
			"max_bytes", s.MaxBytes, "memory", has)
	}
}

// memoryLimit is how many bytes this process may use, as far as Linux reports it: the memory of the
// machine, or less in a container. 0 means that the limit is not known.
func memoryLimit(machine int64, cgroup string) int64 {
	text, err := os.ReadFile(cgroup)
	if err != nil {
		return machine
	}
	most, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || machine > 0 && machine < most { // "max" is no number
		return machine
	}
	return most
}
