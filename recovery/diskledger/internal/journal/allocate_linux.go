package journal

import (
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// allocate gives a new file its size and its room, and reports whether the file system could.
func allocate(f vfs.File, size int) bool {
	fd := f.Fd()
	return fd != vfs.InvalidFd && unix.Fallocate(int(fd), 0, 0, int64(size)) == nil
}
