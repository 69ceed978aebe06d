//go:build unix

package deploy

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A unit is what the systemd unit declares about the server.
type unit struct {
	command  []string // without the path of the binary
	restart  string
	notAgain []int // exit codes after which it is not started again
}

func readUnit(t *testing.T) (u unit) {
	t.Helper()
	text, err := os.ReadFile(rig.Root + "/scripts/systemd/lapse.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch words := strings.Fields(value); name {
		case "ExecStart":
			u.command = words[1:]
		case "Restart":
			u.restart = value
		case "RestartPreventExitStatus":
			for _, w := range words {
				code, err := strconv.Atoi(w)
				if err != nil {
					t.Fatal(err)
				}
				u.notAgain = append(u.notAgain, code)
			}
		}
	}
	if len(u.command) == 0 || u.restart != "on-failure" || len(u.notAgain) == 0 {
		t.Fatalf("the unit says %+v", u)
	}
	return u
}

// startsAgain reports whether systemd starts a service again that has ended with this code.
func (u unit) startsAgain(code int) bool { return code != 0 && !slices.Contains(u.notAgain, code) }

// run starts the unit's command line, and waits for its end. When the server listens, serving
// is called.
func (u unit) run(t *testing.T, binary string, env []string, serving func(p *os.Process)) (code int, log string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, u.command...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "LAPSE_") }), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "http://") && serving != nil {
			serving(cmd.Process)
			serving = nil
		}
	}
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), errs.String()
}

// builds has the program that faultBinary has built, and its directory.
var builds struct {
	once sync.Once
	dir  string
	err  error
}

// faultBinary returns the program with the tag fault: it panics at SIGUSR1 and hangs at SIGUSR2.
func faultBinary(t *testing.T) string {
	t.Helper()
	binary := func() string { return filepath.Join(builds.dir, "lapse") }
	builds.once.Do(func() {
		if builds.dir, builds.err = os.MkdirTemp("", "lapse-fault-*"); builds.err != nil {
			return
		}
		build := exec.Command("go", "build", "-tags", "nomsgpack,fault", "-o", binary(), ".")
		build.Dir = rig.Root
		if out, err := build.CombinedOutput(); err != nil {
			builds.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if builds.err != nil {
		t.Fatal(builds.err)
	}
	return binary()
}

func TestMain(m *testing.M) {
	code := m.Run()
	if builds.dir != "" {
		os.RemoveAll(builds.dir)
	}
	os.Exit(code)
}

// The result of systemd for each end of the server: after a panic it is started again. After a
// wrong setting it is not, nor when another process has its data, nor when it was asked to stop.
func TestUnitAndExitCodes(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binary")
	}
	binary := faultBinary(t)
	u := readUnit(t)
	signal := func(s syscall.Signal) func(*os.Process) {
		return func(p *os.Process) { _ = p.Signal(s) }
	}
	listen, data := "LAPSE_LISTEN=127.0.0.1:0", "LAPSE_DATA="+t.TempDir()
	second := func(*os.Process) {
		if code, log := u.run(t, binary, []string{listen, data}, nil); code != 3 || u.startsAgain(code) {
			t.Errorf("a second process of one directory ends with %d:\n%s", code, log)
		}
	}
	for _, end := range []struct {
		name    string
		env     []string
		serving func(*os.Process)
		code    int
		again   bool
		says    string
	}{
		{"panic", []string{listen, data}, signal(syscall.SIGUSR1), 2, true, "panic: fault"},
		{"killed", []string{listen, data}, signal(syscall.SIGKILL), -1, true, ""},
		{"a wrong setting", []string{listen, "LAPSE_MAX_PENDING=many"}, nil, 64, false, "max-pending"},
		{"told to stop", []string{listen, data}, func(p *os.Process) { second(p); _ = p.Signal(syscall.SIGTERM) }, 0, false, ""},
	} {
		t.Run(end.name, func(t *testing.T) {
			code, log := u.run(t, binary, end.env, end.serving)
			if code != end.code || u.startsAgain(code) != end.again || !strings.Contains(log, end.says) {
				t.Errorf("it ends with %d, started again: %v; want %d, %v. It says:\n%s", code, u.startsAgain(code), end.code, end.again, log)
			}
		})
	}
}
