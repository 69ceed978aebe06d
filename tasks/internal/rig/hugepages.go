package rig

import (
	"os"
	"strings"
	"testing"
)

// HugePages skips a test where the kernel has no huge pages to give.
func HugePages(t *testing.T) {
	t.Helper()
	const settings = "/sys/kernel/mm/transparent_hugepage/"
	size, _ := os.ReadFile(settings + "hpage_pmd_size")
	enabled, _ := os.ReadFile(settings + "enabled")
	if string(size) != "2097152\n" || strings.Contains(string(enabled), "[never]") {
		t.Skip("the kernel has no huge pages of 2 MiB")
	}
}

// AskedForHugePages reports whether a node has told of what the kernel has answered.
func AskedForHugePages(log *Logged) bool {
	return log.Has("memory of tasks is kept in huge pages") || log.Has("the kernel gives no huge pages")
}
