//go:build !unix

package cli

import "os/exec"

// ownProcessGroup does nothing without process groups: only the command itself is killed.
func ownProcessGroup(*exec.Cmd) {}
