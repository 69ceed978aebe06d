//go:build !unix

package procgroup

import "os/exec"

// Own does nothing without process groups: only the command itself is killed.
func Own(*exec.Cmd) {}
