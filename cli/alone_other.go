//go:build !unix

package cli

import "os/exec"

// alone does nothing where there are no process groups: the command alone is killed.
func alone(*exec.Cmd) {}
