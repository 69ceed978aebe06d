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

// The formula of a whole release has a block for each system and processor.
func TestFormulaOfAllTargets(t *testing.T) {
	dir, src := t.TempDir(), source{version: "v1.2.3"}
	for _, target := range allTargets {
		if err := os.WriteFile(filepath.Join(dir, archiveName("1.2.3", target)+".tar.gz"), []byte(target.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeFormula(dir, src, allTargets); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "lapse.rb"))
	if err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]int{"on_macos do": 1, "on_linux do": 1, "on_arm do": 2, "on_intel do": 2, "sha256 \"": 4, "lapse_1.2.3_darwin_arm64.tar.gz": 1} {
		if got := strings.Count(string(text), word); got != want {
			t.Errorf("%s is there %d times, want %d:\n%s", word, got, want, text)
		}
	}
	if ruby, err := exec.LookPath("ruby"); err == nil {
		output(t, ".", nil, ruby, "-wc", filepath.Join(dir, "lapse.rb"))
	}
}
