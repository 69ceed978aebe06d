package measure

import (
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime is what all threads of a process have used, also those that have ended, in
// nanoseconds.
func ProcessorTime(process int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: the number of a process's clock, clock_getcpuclockid(3)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^process<<3|scheduled), &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}
