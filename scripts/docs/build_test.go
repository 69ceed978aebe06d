package docs

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A check for known vulnerabilities that could not be made says so, and fails before a release.
func TestVulnerabilitiesUnchecked(t *testing.T) {
	for must, code := range map[string]int{"": 0, "1": 1} {
		c := exec.CommandContext(t.Context(), "scripts/known-vulnerabilities", "go")
		c.Dir = root
		c.Env = append(c.Environ(), "GOVULNDB=http://127.0.0.1:1", "MUST="+must)
		out, _ := c.CombinedOutput()
		if got := c.ProcessState.ExitCode(); got != code || !strings.Contains(string(out), "NOTHING WAS CHECKED: http://127.0.0.1:1 ") {
			t.Errorf("MUST=%s: exit code %d, want %d: %s", must, got, code, out)
		}
	}
	if !strings.Contains(readPage(t, "Makefile"), "\t@MUST=1 scripts/known-vulnerabilities") {
		t.Error("a release can be prepared unchecked")
	}
}

// Files with tokens and keys, wherever they are in a clone, are no part of what is sent to build an
// image: .dockerignore has a pattern for each. A pattern without ** holds at the root alone.
func TestSecretsStayOutOfTheBuild(t *testing.T) {
	patterns := strings.Fields(readPage(t, ".dockerignore"))
	for _, file := range []string{"tokens.yaml", "deploy/docker/tokens.yaml", "deploy/docker/lapse.env", "scripts/systemd/key.pem", "a/b/tls.key"} {
		if !slices.ContainsFunc(patterns, func(p string) bool {
			below, anywhere := strings.CutPrefix(p, "**/")
			if !anywhere {
				matches, _ := filepath.Match(p, file)
				return matches
			}
			matches, _ := filepath.Match(below, filepath.Base(file))
			return matches
		}) {
			t.Errorf("%s is sent", file)
		}
	}
}
