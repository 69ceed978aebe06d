package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// The commands of docs/install.md for the archive do what they say, with the files of the release
// in the place of those that a release would have on the network.
func TestInstallPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, found := strings.Cut(string(text), "```sh\n")
	script, _, _ = strings.Cut(script, "```")
	if !found || !strings.Contains(script, "VERSION=0.1.0\n") {
		t.Fatalf("the page has no script:\n%s", script)
	}
	script = strings.Replace(script, "VERSION=0.1.0", "VERSION="+strings.TrimPrefix(testVersion, "v"), 1)
	script = strings.Replace(script, "linux_amd64", native.String(), 1)
	fromDist := `set -e; curl() { cp "$DIST/$(basename "$2")" .; }` + "\n"
	out := output(t, t.TempDir(), []string{"DIST=" + madeRelease.dist}, "bash", "-c", fromDist+script)
	if !strings.Contains(out, ".tar.gz: OK\n") || !strings.Contains(out, "lapse "+testVersion+" go") {
		t.Error(out)
	}
	// The names of the packages, of version 0.1.0.
	entries, err := os.ReadDir(madeRelease.dist)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := strings.NewReplacer("0.1.0~test", "0.1.0", "0.1.0-test", "0.1.0", "0.1.0.dev0+test", "0.1.0").Replace(e.Name())
		switch filepath.Ext(name) {
		case ".deb", ".rpm", ".tgz", ".whl", ".tar", ".rb":
			if runtime.GOARCH == "amd64" && !strings.Contains(string(text), name) {
				t.Errorf("the page does not name %s", name)
			}
		}
	}
	// What it has users type exists.
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)[$\x60] ?make ([a-z-]+)`).FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(string(makefile), fmt.Sprintf("\n%s: ", m[1])) && !strings.Contains(string(makefile), fmt.Sprintf("\n%s:\n", m[1])) {
			t.Errorf("there is no make %s", m[1])
		}
	}
}
