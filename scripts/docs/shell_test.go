package docs

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds what a command of a page may take. Some compile and link a program, beside other
// packages' tests: on two processors that has taken longer than a minute.
const patience = 4 * time.Minute

// settling is for what jobs in the background print after a command has ended.
const settling = 15 * time.Second

// A shell runs the commands of a page, as a reader would type them: with jobs, in a directory of
// its own, in which the files of the repository stand.
type shell struct {
	t       *testing.T
	dir     string
	process *exec.Cmd
	input   io.WriteCloser    // commands, each ended by a zero
	ended   *bufio.Reader     // a line with the status of each command that has ended
	ports   *strings.Replacer // from those of the pages to free ones
	shown   *strings.Replacer // and back
	known   memory
	failed  func(reason string) // tells the test of all pages

	mu     sync.Mutex // guards output
	output bytes.Buffer
}

// driver is what the shell itself runs. Commands come by the descriptor 3, so that none of them
// reads the next one, and their statuses go to the descriptor 4.
const driver = `set -m
while IFS= read -r -d '' typed <&3; do
	eval "$typed" </dev/null 3<&- 4>&-
	echo $? >&4
done`

// newShell starts a shell. tools has the programs of this tree, home what the shell may write to.
func newShell(t *testing.T, tools string, failed func(reason string)) *shell {
	t.Helper()
	s := &shell{t: t, dir: t.TempDir(), known: memory{}, failed: failed}
	s.linkTree()
	if err := os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(s.dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	lapse, others := freePorts(t)
	var pairs, back []string
	port := func(shown, number string) {
		for _, host := range []string{"127.0.0.1:", "localhost:", "0.0.0.0:", "lapse.example:", "(\"127.0.0.1\", ", "redis-cli -p "} {
			pairs = append(pairs, host+shown, host+number)
			back = append(back, host+number, host+shown)
		}
	}
	for shown, number := range others {
		port(shown, number)
	}
	port("748", lapse) // 7480 to 7483; behind the others, which begin as these do
	s.ports = strings.NewReplacer(pairs...)
	s.write(".curlrc", "no-progress-meter\ncacert = cert.pem\nresolve = lapse.example:"+lapse+"0:127.0.0.1\n")

	s.process = exec.Command("bash", "--norc", "-c", driver)
	s.process.Dir = s.dir
	s.process.Env = append(goEnvironment(t),
		"HOME="+s.dir, "TMPDIR="+t.TempDir(), "PATH="+tools+":"+os.Getenv("PATH"), "LC_ALL=C.UTF-8",
		"PYTHONPATH="+filepath.Join(s.dir, "clients", "python"), "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONUNBUFFERED=", // with it print writes word by word, and other output comes between
		"LAPSE_SERVER=http://127.0.0.1:"+lapse+"0", "LAPSE_LISTEN=127.0.0.1:"+lapse+"0",
		"LAPSE_ANSWER_WITHIN=1m", // a disk busy with other tests for 100 ms would be recorded:false
		"REDIS_PORT="+others["6379"], "BEANSTALKD_PORT="+others["11300"], "REDISCLI_HISTFILE=/dev/null")
	s.process.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // all that it starts can be found
	reader, output := pipe(t)
	commands, input := pipe(t)
	ended, statuses := pipe(t)
	s.process.Stdout, s.process.Stderr = output, output
	s.process.ExtraFiles = []*os.File{commands, statuses}
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{output, commands, statuses} {
		_ = f.Close() // the shell has them
	}
	s.input, s.ended = input, bufio.NewReader(ended)
	s.shown = strings.NewReplacer(append(back, s.dir, "/home/you/lapse")...)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		buffer := make([]byte, 64<<10)
		for {
			n, err := reader.Read(buffer)
			s.mu.Lock()
			s.output.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = input.Close()
		s.killAll()
		_ = s.process.Wait()
		<-copied
	})
	return s
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

// linkTree makes the directory look like a fresh clone, but for bin.
func (s *shell) linkTree() {
	s.t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		s.t.Fatal(err)
	}
	from, err := filepath.Abs(root)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case name == "bin", name == "bench", strings.HasPrefix(name, "."), strings.HasSuffix(name, "_test.go"):
		case strings.HasSuffix(name, "-data"), strings.HasSuffix(name, "-logs"):
		default:
			if err := os.Symlink(filepath.Join(from, name), filepath.Join(s.dir, name)); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// linkBinary puts bin/lapse where make build would.
func (s *shell) linkBinary(tools string) {
	s.t.Helper()
	bin := filepath.Join(s.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(tools, "lapse"), filepath.Join(bin, "lapse")); err != nil {
		s.t.Fatal(err)
	}
}

// write puts a file into the directory of the page, as a reader would who copies it.
func (s *shell) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// printed returns the output from a place on.
func (s *shell) printed(from int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.Replace(s.output.String()[from:])
}

// mark returns the place where the next output will be.
func (s *shell) mark() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Len()
}

// run types a command, and waits until it has ended and what the page shows of its output is there.
// One that goes on when all of that has been printed is ended, as a reader would do.
func (s *shell) run(c command) {
	s.t.Helper()
	switch first, _, _ := strings.Cut(c.text, " "); {
	case c.hidden && isServer(c.text):
		c.output = "lapse serves on"
	case c.hidden && first == "redis-server":
		c.output = "Ready to accept connections"
	}
	typed := s.ports.Replace(ahead(s.known.fill(c.text)))
	if before, _, comment := strings.Cut(typed, "   #"); comment && !strings.Contains(typed, "\n") {
		typed = before
	}
	typed = strings.Replace(typed, "lapse dev", "lapse dev --redis-listen "+s.ports.Replace("127.0.0.1:7479"), 1)
	if strings.HasPrefix(typed, "lapse bench") {
		typed += " --tasks 200 --rate 500 --duration 100ms" // whatever it says before
		if !strings.Contains(typed, "--workload") {
			typed += " --workload single"
		}
	}
	from := s.mark()
	background := isServer(typed)
	if background {
		typed += " &"
	}
	children := s.children()
	if _, err := io.WriteString(s.input, typed+"\x00"); err != nil {
		s.t.Fatal(err)
	}
	statuses := make(chan int, 1)
	go func() {
		line, _ := s.ended.ReadString('\n')
		status, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			status = -1
		}
		statuses <- status
	}()
	ended, interrupted, status := false, false, 0
	seen := time.Time{}
	late := time.After(patience)
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		shows := missing(c.output, s.printed(from)) == ""
		if shows && seen.IsZero() {
			seen = time.Now()
		}
		if shows && ended {
			tick.Stop()
			break
		}
		if shows && !c.hidden && !interrupted && time.Since(seen) > followFor(c) {
			s.end(children)
			interrupted = true
		}
		select {
		case status = <-statuses:
			ended, late = true, time.After(settling)
		case <-tick.C:
		case <-late:
			tick.Stop()
			s.failed(fmt.Sprintf("%s:%d: lacks %q", c.page, c.line, missing(c.output, s.printed(from))))
			s.t.Errorf("%s:%d:\n$ %s\nlacks %q; has ended: %v, with status %d; it has printed\n%s",
				c.page, c.line, typed, missing(c.output, s.printed(from)), ended, status, s.printed(from))
			if !ended || c.hidden {
				s.t.FailNow()
			}
			s.known.learn(c.output, s.printed(from))
			return
		}
	}
	output := s.printed(from)
	s.t.Logf("%s:%d:\n$ %s\n%s", c.page, c.line, typed, output)
	s.known.learn(c.output, output)
	if (strings.Contains(typed, "lapse serve") || strings.Contains(typed, "lapse dev")) && strings.HasSuffix(typed, "&") {
		at := "7480"
		if listen := listens.FindStringSubmatch(typed); listen != nil {
			at = listen[1]
		}
		s.awaitReady(c, at)
	}
	if strings.Contains(typed, "lapse serve") && strings.HasPrefix(typed, "for n in 1 2 3;") {
		for _, at := range []string{"7481", "7482", "7483"} {
			s.awaitReady(c, at)
		}
	}
	if strings.HasPrefix(typed, "python3 ") && strings.HasSuffix(typed, "&") {
		s.run(command{page: c.page, line: c.line, text: listening, hidden: true})
	}
	if interrupted {
		return
	}
	failed := status != 0 && (c.output == "" || c.hidden)
	if !c.hidden && c.output == "" && strings.Contains(output, `"type":"/problems/`) {
		failed = true // curl itself is content
	}
	if failed {
		s.failed(fmt.Sprintf("%s:%d: status %d", c.page, c.line, status))
		s.t.Errorf("%s:%d: status %d of\n$ %s\n%s", c.page, c.line, status, typed, output)
		if c.hidden {
			s.t.FailNow()
		}
	}
}

// awaitReady waits until the server that a command has started is ready.
func (s *shell) awaitReady(c command, port string) {
	s.run(command{page: c.page, line: c.line, text: strings.ReplaceAll(ready, "7480", port), hidden: true})
}

// ready waits until the server has read its tasks.
const ready = `until curl -fs 127.0.0.1:7480/readyz || curl -fsk https://127.0.0.1:7480/readyz; do sleep 0.1; done >/dev/null 2>&1`

// listening waits until the receiver of a page takes connections. An attempt before that fails, and
// the page shows the first one.
const listening = `until curl -s -o /dev/null 127.0.0.1:8000; do sleep 0.1; done`

var listens = regexp.MustCompile(`\s--listen \S*:(\d+)`)

// followFor is how long a command may go on when the page shows no more of its output.
func followFor(c command) time.Duration {
	if c.output == "" {
		return patience
	}
	return time.Second
}

// isServer reports whether a command serves until it is told to end.
func isServer(text string) bool {
	fields := strings.Fields(text)
	for len(fields) > 0 && strings.Contains(fields[0], "=") { // a variable
		fields = fields[1:]
	}
	return len(fields) > 1 && filepath.Base(fields[0]) == "lapse" && (fields[1] == "serve" || fields[1] == "dev") &&
		!strings.HasSuffix(text, "&") && !strings.Contains(text, "--print-config") && !strings.Contains(text, "--help")
}

// table returns the processes of this shell's session: their parents, by their ids.
func (s *shell) table() map[int]int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ps", "-A", "-o", "pid=,ppid=,sess=").Output()
	if err != nil {
		s.t.Error(err)
	}
	all := map[int]int{}
	for line := range strings.Lines(string(out)) {
		var pid, parent, session int
		if _, err := fmt.Sscan(line, &pid, &parent, &session); err == nil && session == s.process.Process.Pid {
			all[pid] = parent
		}
	}
	return all
}

// children are the jobs of the shell, each the leader of a process group.
func (s *shell) children() map[int]bool {
	all := map[int]bool{}
	for pid, parent := range s.table() {
		all[pid] = parent == s.process.Process.Pid
	}
	return all
}

// end ends the job in front: the one that was not there before. It does not take the signal of
// Ctrl-C, which would end the shell, too.
func (s *shell) end(before map[int]bool) {
	for pid, ours := range s.children() {
		if ours && !before[pid] {
			_ = syscall.Kill(-pid, syscall.SIGTERM)
		}
	}
}

// killAll kills the shell and all that it has started.
func (s *shell) killAll() {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 500 {
		all := s.table()
		for pid := range all {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		delete(all, s.process.Process.Pid) // a zombie until it is waited for
		if len(all) == 0 {
			return
		}
		<-tick.C
	}
	s.t.Error("processes of the page do not end")
}
