package hugepage

import (
	"bytes"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const settings = "/sys/kernel/mm/transparent_hugepage/"

// allowed reports whether the kernel has huge pages of blockSize, and no administrator has turned
// them off.
func allowed() bool {
	size, err := os.ReadFile(settings + "hpage_pmd_size")
	if n, bad := strconv.Atoi(string(bytes.TrimSpace(size))); err != nil || bad != nil || n != blockSize {
		return false
	}
	enabled, err := os.ReadFile(settings + "enabled")
	return err == nil && !bytes.Contains(enabled, []byte("[never]"))
}

// collapse asks for a huge page. The memory may have been freed meanwhile, but it is still there:
// Go never unmaps its heap.
func collapse(block uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, block, blockSize, unix.MADV_COLLAPSE); errno != 0 {
		return errno
	}
	return nil
}

// kindOf says of an error whether the kernel has no memory for a huge page, and whether the block
// may be tried again: also when a page of it is in use elsewhere at the moment. EINVAL is no such
// error: the kernel does not know MADV_COLLAPSE, or the block was given back meanwhile.
func kindOf(err error) (full, passing bool) {
	full = errors.Is(err, unix.ENOMEM)
	return full, full || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY)
}
