package docs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// The tools that pages call, made once: the binary of this tree, and Redis' programs, which take
// the port of the page's shell.
var (
	toolsOnce sync.Once
	toolsDir  string
	toolsErr  error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if toolsDir != "" {
		_ = os.RemoveAll(toolsDir)
	}
	os.Exit(code)
}

// tools returns the directory of the tools.
func tools(t *testing.T) string {
	t.Helper()
	toolsOnce.Do(func() { toolsDir, toolsErr = makeTools() })
	if toolsErr != nil {
		t.Fatal(toolsErr)
	}
	return toolsDir
}

func makeTools() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "lapse-docs-"); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "lapse")
	if built := os.Getenv("LAPSE_BIN"); built != "" {
		if err := os.Symlink(built, binary); err != nil {
			return dir, err
		}
	} else {
		build := exec.Command("go", "build", "-tags", "nomsgpack", "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
		build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0") // as make build does
		if out, err := build.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	if err := makeModules(dir); err != nil {
		return dir, err
	}
	for name, line := range map[string]string{
		"beanstalkd":   `exec %s -l 127.0.0.1 -p "$BEANSTALKD_PORT"`,
		"redis-server": `exec %s "$@" --port "$REDIS_PORT" --bind 127.0.0.1 --save '' --dir "$(mktemp -d)"`,
		"redis-cli":    `exec %s -p "$REDIS_PORT" "$@"`,
	} {
		real, err := exec.LookPath(name)
		if err != nil && name == "beanstalkd" {
			continue // its session is skipped
		}
		if err != nil {
			return dir, fmt.Errorf("%w: make redis installs it", err)
		}
		script := "#!/bin/sh\n" + fmt.Sprintf(line, real) + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			return dir, err
		}
	}
	return dir, nil
}

// goEnvironment returns the environment with what Go finds below the home directory, which is
// another one in a page's shell.
func goEnvironment(t *testing.T) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "env", "GOPATH", "GOCACHE", "GOMODCACHE", "GOPROXY", "GONOSUMDB", "GOFLAGS", "GOSUMDB").Output()
	if err != nil {
		t.Fatal(err)
	}
	values := strings.Split(string(out), "\n")
	var all []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LAPSE_") && !strings.HasPrefix(e, "OTEL_") && !strings.HasPrefix(e, "GO") {
			all = append(all, e)
		}
	}
	return append(all, "GOPATH="+values[0], "GOCACHE="+values[1], "GOMODCACHE="+values[2], "GOPROXY="+values[3],
		"GONOSUMDB="+values[4], "CGO_ENABLED=0", "GOFLAGS=-tags=nomsgpack -trimpath "+values[5], "GOSUMDB="+values[6])
}

// decades are the tens of ports that shells take, each once, in an order of chance. They are above
// those that systems give to connections, and those of the tests' Redis servers.
var decades struct {
	sync.Mutex
	left []int
}

const firstDecade, lastDecade = 6110, 6550

// freePorts returns ports of one decade that no other shell gets, in this process or another: of
// four in a row for nodes of Lapse all digits but the last, and one for each other port that pages
// name.
func freePorts(t *testing.T) (lapse string, others map[string]string) {
	t.Helper()
	decades.Lock()
	defer decades.Unlock()
	if decades.left == nil {
		decades.left = rand.Perm(lastDecade - firstDecade)
	}
	for len(decades.left) > 0 {
		tens := firstDecade + decades.left[0]
		decades.left = decades.left[1:]
		if redistest.Reserve(t, 10*tens) && areFree(10*tens, 10) {
			others = map[string]string{}
			for i, shown := range []string{"6379", "8000", "8080", "11300", "7479", "7490"} {
				others[shown] = strconv.Itoa(10*tens + 4 + i)
			}
			return strconv.Itoa(tens), others
		}
	}
	t.Fatal("no ten ports in a row are free")
	return "", nil
}

// areFree reports whether so many ports are free, from one on.
func areFree(from, number int) bool {
	for port := from; port < from+number; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}
