package wheel

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A fineTimer is a timerfd, which the Go runtime polls as it does a socket.
type fineTimer struct{ file *os.File }

// newFineTimer returns nil where time is not that of the system, as in a bubble of
// testing/synctest, and if the system has no timer to give.
func newFineTimer() *fineTimer {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil || time.Since(time.Unix(now.Unix())).Abs() > time.Hour {
		return nil
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil
	}
	return &fineTimer{os.NewFile(uintptr(fd), "timerfd")}
}

func (t *fineTimer) set(d time.Duration) {
	conn, err := t.file.SyscallConn()
	if err != nil {
		return
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(d), 1))}
	_ = conn.Control(func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), 0, &spec, nil) })
}

// run reports each expiry until close is called.
func (t *fineTimer) run(rings chan<- struct{}) {
	var expiries [8]byte
	for {
		if _, err := t.file.Read(expiries[:]); err != nil {
			return
		}
		select {
		case rings <- struct{}{}:
		default:
		}
	}
}

func (t *fineTimer) close() { _ = t.file.Close() }
