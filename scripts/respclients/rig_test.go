//go:build clients || fault

package respclients

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// program is the path of the program under test.
var program string

func TestMain(m *testing.M) {
	os.Exit(rig.WithProgram(func(path string) int {
		program = path
		return m.Run()
	}))
}

// A node is a server of the program, with the same addresses over all its runs.
type node struct {
	t     *testing.T
	name  string
	redis string // address for clients of Redis
	http  string
	args  []string
	log   bytes.Buffer // to be read when no process runs

	cmd    *exec.Cmd
	exited chan struct{}
}

// newNode starts a node, and kills it when the test ends. The arguments say where its tasks are.
func newNode(t *testing.T, name string, args ...string) *node {
	t.Helper()
	n := &node{t: t, name: name, redis: redistest.FreeAddr(t), http: redistest.FreeAddr(t)}
	n.args = append([]string{
		"serve", "--node", name, "--listen", n.http, "--redis-listen", n.redis, "--log-level", "warn",
		"--resp-topics", "=expired", "--resp-topics", "job:=jobs",
	}, args...)
	t.Cleanup(func() {
		n.kill()
		if t.Failed() {
			text := n.log.Bytes()
			t.Logf("node %s: %s", name, text[max(0, len(text)-6000):])
		}
	})
	n.start()
	n.ready()
	return n
}

// start starts the process.
func (n *node) start() {
	n.t.Helper()
	n.cmd = rig.Command(program, n.args...)
	n.cmd.Stderr = &n.log
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	exited, cmd := make(chan struct{}), n.cmd
	n.exited = exited
	go func() { _ = cmd.Wait(); close(exited) }()
}

// ready waits until the node answers all calls.
func (n *node) ready() {
	n.t.Helper()
	wait(n.t, time.Minute, "node "+n.name+" that is ready", func() bool {
		select {
		case <-n.exited:
			n.t.Fatalf("node %s has ended: %s", n.name, &n.log)
		default:
		}
		resp, err := http.Get("http://" + n.http + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// signal sends a signal to the process.
func (n *node) signal(s syscall.Signal) { _ = n.cmd.Process.Signal(s) }

// kill ends the process without a chance to clean up.
func (n *node) kill() {
	n.signal(syscall.SIGKILL)
	<-n.exited
}

// wait waits until yes reports true.
func wait(t *testing.T, limit time.Duration, what string, yes func() bool) {
	t.Helper()
	if !rig.Within(10*time.Millisecond, limit, yes) {
		t.Fatalf("no %s within %s", what, limit)
	}
}

// A script is a program in another language.
type script struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string // of standard output; closed at its end, with room for all
	errs   bytes.Buffer
	ended  chan struct{}
	result error // once ended is closed
}

// interpreters find the programs that run those of testdata, by extension. They return "" if the
// language or a client is not here.
var interpreters = map[string]func() string{
	// A python3 of another origin may hide the system's, which has the clients.
	".py":  finder([]string{"python3", "/usr/bin/python3"}, "-c", "import redis, hiredis"),
	".js":  finder([]string{"node"}, "--input-type=module", "-e", "import 'ioredis'; import 'ioredis5'; import 'redis'; import 'redis4'; import 'bullmq'"),
	".php": finder([]string{"php"}, "-r", "new Redis(); require 'Predis/Autoloader.php';"),
	".rb":  finder([]string{"ruby"}, "-e", "require 'redis'"),
	".sh":  finder([]string{"bash"}, "-c", "command -v redis-cli"),
	".go":  finder([]string{"go"}, "version"),
}

// finder returns a function that returns the first program with which a check succeeds.
func finder(programs []string, check ...string) func() string {
	return sync.OnceValue(func() string {
		for _, p := range programs {
			c := exec.Command(p, check...)
			c.Dir = filepath.Join("testdata", "node") // it has packages of its own
			if c.Run() == nil {
				return p
			}
		}
		return ""
	})
}

// extension returns the key of a program of testdata in interpreters.
func extension(file string) string {
	if strings.HasSuffix(file, "/") {
		return ".go"
	}
	return filepath.Ext(file)
}

// need skips a test if a program of testdata cannot be run here.
func need(t *testing.T, file string) {
	t.Helper()
	if interpreters[extension(file)]() == "" {
		t.Skipf("passed over: %s needs what scripts/need-redis-clients installs", file)
	}
}

// run starts a program of testdata, and kills it when the test ends.
func run(t *testing.T, file string, args ...string) *script {
	t.Helper()
	return runAs(t, "", file, args...)
}

// runAs is run of a program that signs in with a password, unless it is empty.
func runAs(t *testing.T, password, file string, args ...string) *script {
	t.Helper()
	need(t, file)
	s := &script{lines: make(chan string, 1<<16), ended: make(chan struct{})}
	where := ""
	if strings.HasSuffix(file, "/") { // a module of its own
		where, args = filepath.Join("testdata", file), append([]string{"."}, args...)
	} else {
		args = append([]string{filepath.Join("testdata", file)}, args...)
	}
	if extension(file) == ".go" {
		args = append([]string{"run"}, args...)
	}
	s.cmd = exec.Command(interpreters[extension(file)](), args...)
	s.cmd.Dir = where
	if password != "" {
		s.cmd.Env = append(os.Environ(), "PASSWORD="+password)
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it may have processes of its own
	s.cmd.Stderr = &s.errs
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		s.in, err = s.cmd.StdinPipe()
	}
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		defer close(s.lines)
		for text := bufio.NewScanner(out); text.Scan(); {
			s.lines <- text.Text()
		}
		s.result = s.cmd.Wait()
	}()
	t.Cleanup(s.kill)
	return s
}

// signal sends a signal to the program and its processes.
func (s *script) signal(sig syscall.Signal) { _ = syscall.Kill(-s.cmd.Process.Pid, sig) }

// kill ends the program, and waits until it has ended.
func (s *script) kill() {
	select {
	case <-s.ended: // its number may be that of another process by now
		return
	default:
	}
	s.signal(syscall.SIGKILL)
	<-s.ended
}
