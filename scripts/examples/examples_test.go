//go:build clients

package examples

import (
	"context"
	"os"
	"os/exec"
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
	patience = time.Minute      // bounds the time of an example
	building = 10 * time.Minute // bounds what is done before
)

// needs says of each example what succeeds where it can run, and what is done before it does.
var needs = map[string]struct{ check, before string }{
	"coupon-stages":    {"python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'", ""},
	"express-orders":   {"npm --version && test -d node_modules", "npm run --prefix ../../clients/typescript build"},
	"flask-tickets":    {"python3 -c 'import flask, sys; sys.exit(sys.version_info < (3, 11))'", ""},
	"generated-client": {"npm --version && test -d node_modules", ""},
	"go-outbox":        {"go mod download", "go build -o /dev/null ."},
	"php-orders":       {"php -r 'new Redis();'", ""},
	"rate-limiter":     {"ruby -e 'require \"redis\"'", ""},
	"ruby-orders":      {"ruby -e 'require \"redis\"'", ""},
	"sessions":         {"python3 -c 'import redis'", ""},
}

// shell runs a command in the folder of an example, for a bounded time, and returns what it prints.
// Variables replace those of this process.
func (e example) shell(t *testing.T, limit time.Duration, command string, variables ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-c", command)
	c.Dir = e.dir
	c.Env = append(os.Environ(), variables...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // npm and go have processes of their own
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	return string(out), err
}

// path returns the PATH with which an example can run. It skips the test if there is none.
func (e example) path(t *testing.T) string {
	t.Helper()
	need, ok := needs[e.name]
	if !ok {
		t.Fatal("say in needs what it needs")
	}
	// A python3 of another origin may hide the system's, which has the packages.
	for _, path := range []string{"PATH=" + os.Getenv("PATH"), "PATH=/usr/bin:" + os.Getenv("PATH")} {
		if _, err := e.shell(t, building, need.check, path); err == nil {
			return path
		}
	}
	t.Skip("passed over: it needs what scripts/need-redis-clients installs")
	return ""
}

// try runs the command of an example, which prints what its page says.
func (e example) try(t *testing.T, variables ...string) {
	t.Helper()
	path := e.path(t)
	if before := needs[e.name].before; before != "" {
		if out, err := e.shell(t, building, before, path); err != nil {
			t.Fatalf("%s: %v\n%s", before, err, out)
		}
	}
	began := time.Now()
	out, err := e.shell(t, patience, e.command, append(variables, path)...)
	if err != nil || !strings.Contains("\n"+out, "\n"+e.prints) {
		t.Errorf("%s: %v; it prints\n%s\nand its page says\n%s", e.command, err, out, e.prints)
	}
	t.Logf("%s: %s", e.command, time.Since(began).Round(100*time.Millisecond))
}

// Each example does what its page says, beside a server of its own.
func TestExamples(t *testing.T) {
	for _, e := range examples(t) {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.FreeAddr(t)
			dev := rig.Command(program, "dev", "--listen", "127.0.0.1:0", "--redis-listen", redis)
			dev.Stderr = os.Stderr
			server, err := rig.Serve(dev, 1)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(server.Kill)
			if len(server.URLs) == 0 {
				t.Fatal("lapse dev says no address")
			}
			e.try(t, "LAPSE_URL="+server.URLs[0], "REDIS_URL=redis://"+redis)
		})
	}
}

// What is written for clients of Redis does the same beside a Redis: only the address changes.
func TestUnchanged(t *testing.T) {
	for _, e := range examples(t) {
		if e.name == "sessions" || e.name == "rate-limiter" {
			t.Run(e.name, func(t *testing.T) {
				t.Parallel()
				redis := redistest.Start(t, "notify-keyspace-events Ex")
				e.try(t, "REDIS_URL="+redis.URL())
			})
		}
	}
}
