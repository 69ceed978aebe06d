package rig

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// A Process is one run of a server. It listens on ports of its own, so that a request made for one
// run never reaches another.
type Process struct {
	Cmd    *exec.Cmd
	URLs   []string      // where it serves, in the order in which it has said so
	Exited chan struct{} // closed when it has ended
}

// Command is a call of a program without the settings of this environment, and without variables
// of the test that look like settings.
func Command(program string, args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	c.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "LAPSE_") })
	return c
}

var servesOn = regexp.MustCompile(`https?://127\.0\.0\.1:\d+`)

// Serve starts a server, and returns once it has said at how many addresses it serves, or has said
// its last word: then URLs has fewer.
func Serve(cmd *exec.Cmd, addresses int) (*Process, error) {
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{Cmd: cmd, Exited: make(chan struct{})}
	for lines := bufio.NewScanner(stdout); len(p.URLs) < addresses && lines.Scan(); {
		if url := servesOn.FindString(lines.Text()); url != "" {
			p.URLs = append(p.URLs, url)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdout) // the pipe must be empty before Wait closes it
		_ = cmd.Wait()
		close(p.Exited)
	}()
	return p, nil
}

// Signal ignores the error of a process that has ended, as the signal was to end it.
func (p *Process) Signal(sig os.Signal) { _ = p.Cmd.Process.Signal(sig) }

// Kill ends the process without a chance to clean up, and waits for its end.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.Exited
}
