//go:build !linux

package doctor

import "golang.org/x/sys/unix"

func clockSynced() (synced, known bool) { return false, false }

// storage returns the bytes that are free where a directory is.
func storage(dir string) (kind string, free uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", 0, err
	}
	return "", s.Bavail * uint64(s.Bsize), nil
}
