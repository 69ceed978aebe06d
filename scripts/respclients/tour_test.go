//go:build clients

package respclients

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const password = "a token of the tour"

// newTour starts a server with its tasks on disk, which asks for a token.
func newTour(t *testing.T) *node {
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	text := fmt.Sprintf("- {name: tour, scopes: [schedule, receive, read, admin], sha256: \"%x\"}\n", sha256.Sum256([]byte(password)))
	if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return newNode(t, "tour", "--data", t.TempDir(), "--token-file", tokens)
}

// patience bounds the time of a program. It takes about ten seconds.
const patience = 2 * time.Minute

// steps are what each program says that it has done.
var steps = []string{"connection", "keys", "numbers", "scan", "transactions", "subscriptions", "streams", "restart"}

// TestTour has each client do what programs do with it. When a program says so, the server is
// killed and started again.
func TestTour(t *testing.T) {
	for _, c := range []struct{ name, file, variant string }{
		{"RedisPyHiredis", "python/tour.py", "hiredis"},
		{"RedisPy", "python/tour.py", "python"},
		{"IORedis5", "node/ioredis.js", "ioredis5"},
		{"IORedis6", "node/ioredis.js", "ioredis"},
		{"NodeRedis4", "node/noderedis.js", "redis4"},
		{"NodeRedis6", "node/noderedis.js", "redis"},
		{"NodeRedis6RESP2", "node/noderedis.js", "redis 2"},
		{"RedisRB", "ruby/tour.rb", ""},
		{"PhpRedis", "php/tour.php", "phpredis"},
		{"Predis", "php/tour.php", "predis"},
		{"GoRedis", "go/tour.go", "3"},
		{"GoRedisRESP2", "go/tour.go", "2"},
		{"RedisCLI", "cli/tour.sh", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			need(t, c.file)
			n := newTour(t)
			host, port, _ := net.SplitHostPort(n.redis)
			s := run(t, c.file, append([]string{host, port, password}, strings.Fields(c.variant)...)...)
			late := time.AfterFunc(patience, func() { s.signal(syscall.SIGKILL) })
			defer late.Stop()
			var done []string
			for line := range s.lines {
				step, ok := strings.CutPrefix(line, "ok ")
				switch {
				case ok:
					done = append(done, step)
				case line == "restart":
					n.kill()
					n.start()
					n.ready()
					fmt.Fprintln(s.in)
				default:
					t.Log(line)
				}
			}
			<-s.ended
			if s.result != nil || !slices.Equal(done, steps) {
				t.Errorf("done are %q; %v: %s", done, s.result, &s.errs)
			}
		})
	}
}

// TestLibraries has each library do what programs do with it that need more than a client: locks,
// limits of calls, sessions, and scripts of their own.
func TestLibraries(t *testing.T) {
	want := make(map[string][]string) // steps, by program
	for _, l := range libraries {
		want[l.program] = append(want[l.program], l.step)
	}
	for program, steps := range want {
		t.Run(strings.Trim(program, "/"), func(t *testing.T) {
			need(t, program)
			n := newTour(t)
			host, port, _ := net.SplitHostPort(n.redis)
			s := run(t, program, host, port, password)
			late := time.AfterFunc(patience, func() { s.signal(syscall.SIGKILL) })
			defer late.Stop()
			var done []string
			for line := range s.lines {
				if step, ok := strings.CutPrefix(line, "ok "); ok {
					done = append(done, step)
				} else {
					t.Log(line)
				}
			}
			<-s.ended
			if s.result != nil || !slices.Equal(done, steps) {
				text := s.errs.String()
				t.Errorf("done are %q; %v: %s", done, s.result, text[:min(len(text), 4000)])
			}
		})
	}
}
