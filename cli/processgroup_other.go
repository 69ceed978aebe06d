//go:build !unix

package cli

import "os/exec"

// ownProcessGroup does nothing where there are no process groups: the command alone is killed.
func ownProcessGroup(*exec.Cmd) {}
