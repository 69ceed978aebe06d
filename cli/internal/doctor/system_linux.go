package doctor

import "golang.org/x/sys/unix"

// timeError is what adjtimex(2) returns while the clock is not synchronised.
const timeError = 5

func clockSynced() (synced, known bool) {
	var now unix.Timex
	state, err := unix.Adjtimex(&now)
	if err != nil {
		return false, false
	}
	return state != timeError && now.Status&unix.STA_UNSYNC == 0, true
}

// fileSystems are those that an operator should know of, by the numbers of statfs(2).
var fileSystems = map[int64]string{
	unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs",
	unix.NFS_SUPER_MAGIC: "nfs", unix.SMB_SUPER_MAGIC: "smb", unix.SMB2_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs",
	unix.FUSE_SUPER_MAGIC: "fuse", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
}

// storage returns the kind of file system that a directory is on, if it is one of fileSystems, and
// the bytes that are free there.
func storage(dir string) (kind string, free uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", 0, err
	}
	return fileSystems[s.Type], s.Bavail * uint64(s.Bsize), nil
}
