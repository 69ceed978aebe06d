//go:build clients

package redissuite

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

const (
	// patience bounds all units together. They take about a minute.
	patience = 4 * time.Minute
	// mostKnown is how long the list of known differences may be. It may be lowered.
	mostKnown = 66
	// version is that of the Redis whose tests the list is about.
	version = "7.0."
)

// units are those about what docs/redis.md promises.
var units = []string{
	"unit/expire", "unit/type/string", "unit/type/incr", "unit/keyspace", "unit/scan", "unit/pubsub", "unit/multi", "unit/protocol", "unit/quit",
}

// notHere are tags of tests that need another server than the one whose address they get.
const notHere = "-needs:repl -needs:debug -needs:config-maxmemory"

func TestRedisSuite(t *testing.T) {
	dir := tests(t)
	known := readKnown(t)
	if n := len(known.failing) + len(known.racing); n > mostKnown {
		t.Errorf("%d differences are known; there were %d, and there may only be fewer", n, mostKnown)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	passed, seen := 0, map[string]bool{}
	for _, unit := range units {
		r := run(ctx, t, dir, unit, known.racing)
		passed += len(r.passed)
		for _, name := range slices.Concat(r.passed, r.failed, r.skipped) {
			seen[name] = true
		}
		for _, name := range r.failed {
			if _, ok := known.failing[name]; !ok {
				t.Errorf("it fails, and is not in testdata/known.txt: %s\n%s", name, r.report(name))
			}
		}
		for _, name := range r.passed {
			if _, ok := known.failing[name]; ok {
				t.Errorf("it passes: remove it from testdata/known.txt: %s", name)
			}
		}
	}
	for name := range known.failing {
		if !seen[name] {
			t.Errorf("testdata/known.txt names a test that was not run: %s", name)
		}
	}
	t.Logf("of the tests of Redis %d pass, %d fail for known reasons, and %d race", passed, len(known.failing), len(known.racing))
}

// tests returns the directory of the tests of Redis. It skips the test if they are not to be had.
func tests(t *testing.T) string {
	need := exec.Command("../need-redis-tests")
	var said bytes.Buffer
	need.Stderr = &said
	out, err := need.Output()
	if err != nil {
		t.Fatalf("scripts/need-redis-tests: %v\n%s", err, &said)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	dir := lines[len(lines)-1]
	header, err := os.ReadFile(filepath.Join(dir, "src", "version.h"))
	if err != nil {
		t.Skipf("passed over: %s", strings.TrimSpace(said.String()))
	}
	if !strings.Contains(string(header), `"`+version) {
		t.Skipf("passed over: the tests are not those of Redis %s: %s", version, header)
	}
	return dir
}

// known are the differences that testdata/known.txt has.
type known struct {
	failing map[string]string // tests, with the reasons
	racing  []string          // tests that the suite passes over
}

// readKnown reads the list: reasons, each followed by tests after "> ", or after "~ " if they race.
func readKnown(t *testing.T) (k known) {
	text, err := os.ReadFile(filepath.Join("testdata", "known.txt"))
	if err != nil {
		t.Fatal(err)
	}
	k.failing = map[string]string{}
	reason := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		name, fails := strings.CutPrefix(line, "> ")
		race, races := strings.CutPrefix(line, "~ ")
		switch {
		case fails && (k.failing[name] != "" || reason == ""):
			t.Errorf("testdata/known.txt has it twice, or without a reason: %s", name)
		case fails:
			k.failing[name] = reason
		case races:
			k.racing = append(k.racing, race)
		default:
			reason = line // the one after an empty line
		}
	}
	return k
}

// A result says what became of the tests of a unit.
type result struct {
	passed, failed, skipped []string
	output                  string
}

var (
	colours = regexp.MustCompile("\x1b\\[[0-9;]*m")
	outcome = regexp.MustCompile(`(?m)^\[(ok|err|skip)\]: (.*)$`)
	took    = regexp.MustCompile(` \(\d+ ms\)$`)
)

// report returns what the suite says of a test that has failed.
func (r *result) report(name string) string {
	_, more, _ := strings.Cut(r.output, "[err]: "+name)
	return more[:min(len(more), 1000)]
}

// run runs a unit against a server of its own.
func run(ctx context.Context, t *testing.T, dir, unit string, skip []string) (r result) {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "redis")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(serve(t))
	args := []string{
		"tests/test_helper.tcl", "--host", host, "--port", port, "--singledb", "--ignore-encoding", "--ignore-digest", "--durable",
		"--clients", "1", "--tags", notHere, "--single", unit,
	}
	for _, name := range skip {
		args = append(args, "--skiptest", name)
	}
	suite := exec.CommandContext(ctx, "tclsh", args...)
	suite.Dir = copied
	suite.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has a process for each client
	suite.Cancel = func() error { return syscall.Kill(-suite.Process.Pid, syscall.SIGKILL) }
	suite.WaitDelay = time.Second
	out, err := suite.CombinedOutput() // its status tells of tests that failed
	r.output = colours.ReplaceAllString(string(out), "")
	for _, m := range outcome.FindAllStringSubmatch(r.output, -1) {
		switch name := m[2]; m[1] {
		case "ok":
			r.passed = append(r.passed, took.ReplaceAllString(name, ""))
		case "skip":
			r.skipped = append(r.skipped, name)
		default:
			name = strings.TrimSuffix(name, " in tests/"+unit+".tcl")
			if !slices.Contains(r.failed, name) {
				r.failed = append(r.failed, name)
			}
		}
	}
	if ctx.Err() != nil || !strings.Contains(r.output, "[1/1 done]: "+unit) {
		t.Fatalf("%s has not come to its end: %v\n%s", unit, err, r.output[max(0, len(r.output)-3000):])
	}
	return r
}

// serve starts a server, and returns its address for clients of Redis. It is killed when the test
// ends.
func serve(t *testing.T) (addr string) {
	t.Helper()
	addr, web := redistest.FreeAddr(t), redistest.FreeAddr(t)
	server := rig.Command(program, "serve", "--data", t.TempDir(), "--listen", web, "--redis-listen", addr, "--log-level", "error",
		"--resp-flush", "--resp-notify", "KEA", "--resp-max-value", "4194304")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	if !rig.Within(10*time.Millisecond, time.Minute, func() bool {
		resp, err := http.Get("http://" + web + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}) {
		t.Fatal("no server that is ready within a minute")
	}
	return addr
}
