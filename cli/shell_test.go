package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-json"
)

// A shell runs commands against a server.
type shell struct {
	*testing.T
	url string
}

// newShell starts a real server.
func newShell(t *testing.T) *shell {
	t.Helper()
	url, _ := started(t, "--data", t.TempDir())
	return &shell{t, url}
}

// canned is a shell of a server that gives prepared answers.
func canned(t *testing.T, handler http.HandlerFunc) *shell {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &shell{t, server.URL}
}

// A screen is where several commands may write at once.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *shell) run(args ...string) (code int, out, errs string) {
	s.Helper()
	var o, e screen
	code = run(s.Context(), append(args, "--server", s.url), streams{&o, &e})
	return code, o.String(), e.String()
}

// ok runs a command that must succeed in silence, and returns what it prints.
func (s *shell) ok(args ...string) string {
	s.Helper()
	code, out, errs := s.run(args...)
	if code != exitOK || errs != "" {
		s.Fatalf("%q: exit code %d\nstdout: %s\nstderr: %s", args, code, out, errs)
	}
	return out
}

// prints runs a command that must succeed, and checks parts of what it prints.
func (s *shell) prints(args []string, parts ...string) {
	s.Helper()
	out := s.ok(args...)
	for _, part := range parts {
		if !strings.Contains(out, part) {
			s.Errorf("%q: %q is not in\n%s", args, part, out)
		}
	}
}

// fails runs a command that must fail with a code and parts of a message.
func (s *shell) fails(want int, args []string, parts ...string) {
	s.Helper()
	code, out, errs := s.run(args...)
	if code != want {
		s.Errorf("%q: exit code %d, want %d\nstdout: %s\nstderr: %s", args, code, want, out, errs)
	}
	if !strings.HasPrefix(errs, "lapse: ") && !strings.HasPrefix(errs, "{") {
		s.Errorf("%q: stderr begins otherwise: %s", args, errs)
	}
	for _, part := range parts {
		if !strings.Contains(errs, part) {
			s.Errorf("%q: %q is not in\n%s", args, part, errs)
		}
	}
}

// object decodes what a command prints with --json: one document.
func (s *shell) object(args ...string) map[string]any {
	s.Helper()
	var v map[string]any
	out := s.ok(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil || strings.Count(out, "\n") != 1 {
		s.Fatalf("%q: %v: %s", args, err, out)
	}
	return v
}

// lines decodes what a command prints with --json: one document a line.
func (s *shell) lines(args ...string) (all []map[string]any) {
	s.Helper()
	for line := range strings.Lines(s.ok(append(args, "--json")...)) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			s.Fatalf("%q: %v: %s", args, err, line)
		}
		all = append(all, v)
	}
	return all
}

// file makes a file.
func (s *shell) file(text string) string {
	s.Helper()
	name := filepath.Join(s.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	return name
}

// typed makes text the standard input of what follows.
func (s *shell) typed(text string) {
	s.Helper()
	f, err := os.Open(s.file(text))
	if err != nil {
		s.Fatal(err)
	}
	was := os.Stdin
	os.Stdin = f
	s.Cleanup(func() { os.Stdin = was; f.Close() })
}
