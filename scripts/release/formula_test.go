package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The formula has the checksums of the archives. Ruby reads it, installs what it says, and runs its
// test, with a stand-in for Homebrew.
func TestFormula(t *testing.T) {
	at := filepath.Join(madeRelease.dist, "lapse.rb")
	text, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	archives, err := filepath.Glob(filepath.Join(madeRelease.dist, "*.tar.gz"))
	if err != nil || len(archives) == 0 {
		t.Fatal(archives, err)
	}
	for _, a := range archives {
		sum, err := digest(a)
		if err != nil {
			t.Fatal(err)
		}
		url := "https://" + modulePath + "/releases/download/" + testVersion + "/" + filepath.Base(a)
		if want := "url \"" + url + "\"\n      sha256 \"" + sum + "\"\n"; !strings.Contains(string(text), want) {
			t.Errorf("there is no\n%s in\n%s", want, text)
		}
	}
	ruby, err := exec.LookPath("ruby")
	if err != nil {
		t.Skip("there is no ruby")
	}
	if out := output(t, ".", nil, ruby, "-wc", at); out != "Syntax OK\n" {
		t.Error(out)
	}
	prefix := t.TempDir()
	out := output(t, ".", nil, ruby, "testdata/homebrew.rb", at, madeRelease.dist, prefix)
	if !strings.Contains(out, "installed "+strings.TrimPrefix(testVersion, "v")+"\n") {
		t.Error(out)
	}
	for _, name := range []string{"share/man/man1/lapse.1", "share/zsh/site-functions/_lapse", "share/lapse/licenses/go/LICENSE", "var/lapse"} {
		if _, err := os.Stat(filepath.Join(prefix, name)); err != nil {
			t.Error(err)
		}
	}
}
