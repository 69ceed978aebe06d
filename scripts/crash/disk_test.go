//go:build fault && linux

package crash

import (
	"syscall"
	"testing"
	"time"
)

// TestDiskFull schedules on a small file system until the server refuses. It must refuse with 503
// and keep what it has accepted, deliver it, accept its acknowledgements, and survive a crash in
// that state.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=384m"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	// Registered after newServer's, hence run before it: kill first.
	t.Cleanup(func() {
		if r := s.latest(); r != nil {
			r.Kill()
		}
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	s.data = dir + "/data"
	s.start().ready(t)
	testFull(t, s, 15*time.Second)
}
