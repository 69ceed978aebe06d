package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	// It is built in its own module: that of the caller need not know what it is made of.
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/lapsehq/lapse").Output()
	if err != nil {
		return failed("go list:", err)
	}
	build := exec.Command("go", "build", "-tags", "nomsgpack", "-o", path, ".")
	build.Dir = strings.TrimSpace(string(module))
	if out, err := build.CombinedOutput(); err != nil {
		return failed(err, "\n"+string(out))
	}
	return run(path)
}

func failed(why ...any) int {
	fmt.Fprintln(os.Stderr, why...)
	return 1
}
