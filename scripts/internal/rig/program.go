package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// WithProgram calls run with the path of the program under test, and returns what it returns. The
// program is the one that LAPSE_BIN names, or is built for these tests alone.
func WithProgram(run func(path string) int) int {
	path := os.Getenv("LAPSE_BIN")
	if path != "" {
		if _, err := os.Stat(path); err != nil {
			return failed("LAPSE_BIN:", err)
		}
		return run(path)
	}
	dir, err := os.MkdirTemp("", "lapse-program-")
	if err != nil {
		return failed(err)
	}
	defer os.RemoveAll(dir)
	path = filepath.Join(dir, "lapse")
	build := exec.Command("go", "build", "-tags", "nomsgpack", "-o", path, "github.com/lapsehq/lapse")
	if out, err := build.CombinedOutput(); err != nil {
		return failed(err, "\n"+string(out))
	}
	return run(path)
}

func failed(why ...any) int {
	fmt.Fprintln(os.Stderr, why...)
	return 1
}
