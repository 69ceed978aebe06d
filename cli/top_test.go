package cli

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// asCommand makes the test binary the command lapse.
const asCommand = "LAPSE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// Where its output is no terminal, top looks once.
func TestTopOnce(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"top"}, "lapse top http://", "no topic yet")
	s.prints([]string{"schedule", "order.unpaid", "--delay", "1h"}, "scheduled")
	s.prints([]string{"topics", "pause", "--create", "mail"}, "mail is paused")
	out := s.ok("top", "--once", "--sort", "pending")
	if !regexp.MustCompile(`(?m)^TOPIC +WHAT +READY +OLDEST +FAILED 5M +DEAD +PENDING +BUSY +OUT/S +P99 NOW$\n^order.unpaid +0 +- +0 +0 +1 +0 +- +-$\n^mail +paused `).MatchString(out) || strings.Contains(out, "\x1b") {
		t.Errorf("it prints\n%s", out)
	}
	s.prints([]string{"top", "--search", "MAI"}, "mail")
	got := s.object("top", "--search", "none")
	if got["topics"].(map[string]any)["topics"] == nil || got["stats"].(map[string]any)["total"] == nil || got["diagnosis"] == nil {
		t.Errorf("with --json it prints %v", got)
	}
	s.fails(exitUsage, []string{"top", "--interval", "10ms"}, "interval: must be from 500ms to 1h")
	s.fails(exitUsage, []string{"top", "--sort", "best"}, "sort")
	gone := &shell{t, "http://127.0.0.1:1"}
	gone.fails(exitUnavailable, []string{"top"}, "refused")
}

// A terminal is the other end of the one that a command writes to.
type terminal struct {
	*testing.T
	file   *os.File
	screen screen
	read   chan struct{}
}

// inTerminal starts a command in a terminal.
func inTerminal(t *testing.T, rows, columns uint16, env []string, args ...string) (*terminal, *exec.Cmd) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], args...)
	command.Env = append(append(os.Environ(), asCommand+"=1", "TERM=xterm-256color", "NO_COLOR="), env...)
	file, err := pty.StartWithSize(command, &pty.Winsize{Rows: rows, Cols: columns})
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{T: t, file: file, read: make(chan struct{})}
	go func() {
		defer close(x.read)
		part := make([]byte, 4096)
		for {
			n, err := file.Read(part)
			_, _ = x.screen.Write(part[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		file.Close()
		<-x.read
	})
	return x, command
}

// shows waits until a text was written. It says how much had been written then.
func (x *terminal) shows(from int, text string) int {
	x.Helper()
	for over := time.Now().Add(30 * time.Second); time.Now().Before(over); time.Sleep(10 * time.Millisecond) {
		if all := x.screen.String(); strings.Contains(all[from:], text) {
			return len(all)
		}
	}
	x.Fatalf("it does not write %q, but %q", text, x.screen.String()[from:])
	return 0
}

func (x *terminal) types(keys string) {
	x.Helper()
	if _, err := x.file.WriteString(keys); err != nil {
		x.Fatal(err)
	}
}

// The command in a terminal: it shows, asks, pauses, follows the size of the terminal and ends.
func TestTopInATerminal(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"schedule", "order.unpaid", "--delay", "1h"}, "scheduled")
	x, command := inTerminal(t, 24, 80, nil, "top", "--server", s.url, "--interval", "500ms")
	x.shows(0, "order.unpaid")
	x.shows(0, "\x1b[?1049h") // the screen of its own, which leaves the user's as it was
	x.types("p")
	from := x.shows(0, "Pause order.unpaid?")
	x.types("y")
	x.shows(from, "is paused")
	x.shows(from, "7mpaused") // in the row of the topic, which is the chosen one
	s.prints([]string{"topics", "get", "order.unpaid"}, "paused")
	if err := pty.Setsize(x.file, &pty.Winsize{Rows: 30, Cols: 130}); err != nil {
		t.Fatal(err)
	}
	x.shows(from, "P99 NOW")
	x.types("q")
	if err := command.Wait(); err != nil {
		t.Errorf("it ends with %v; the screen: %q", err, x.screen.String())
	}
	x.shows(0, "\x1b[?1049l")
	if !regexp.MustCompile(`\x1b\[[0-9;]*m`).MatchString(x.screen.String()) {
		t.Error("there are no looks of text")
	}
}

// A dumb terminal has no screen of its own.
func TestTopInADumbTerminal(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"topics", "pause", "--create", "mail"}, "paused")
	x, command := inTerminal(t, 24, 80, []string{"TERM=dumb"}, "top", "--server", s.url)
	x.shows(0, "mail")
	if err := command.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	if text := x.screen.String(); strings.Contains(text, "\x1b") {
		t.Errorf("it writes %q", text)
	}
}

// With NO_COLOR there is no color. SIGTERM ends it as q does, and gives the screen back.
func TestTopWithoutColors(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"topics", "pause", "--create", "mail"}, "paused")
	x, command := inTerminal(t, 24, 80, []string{"NO_COLOR=1"}, "top", "--server", s.url)
	x.shows(0, "mail")
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Errorf("it ends with %v; the screen: %q", err, x.screen.String())
	}
	x.shows(0, "\x1b[?1049l")
	if color := regexp.MustCompile(`\x1b\[[0-9;]*\b(3[0-7]|4[0-7]|38|48|9[0-7])(;[0-9;]*)?m`).FindString(x.screen.String()); color != "" {
		t.Errorf("it writes the color %q", color)
	}
}
