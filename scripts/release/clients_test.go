//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The packages of the clients are installed without a network, and the programs of docs/clients.md
// schedule and receive a task with them, from the binary of the release.
func TestClients(t *testing.T) {
	binary, addr := unpackBinary(t), freeAddr(t)
	begin(t, exec.Command(binary, "dev", "--listen", addr, "--redis-listen", "127.0.0.1:0")).answers("http://" + addr + "/readyz")
	for _, c := range []struct {
		file, ending, version string
		install               func(dir, file string) (program string)
	}{
		{"lapsehq-lapse-*.tgz", ".mjs", strings.TrimPrefix(testVersion, "v"), func(dir, file string) string {
			output(t, dir, nil, "npm", "install", "--offline", "--no-audit", "--no-fund", file)
			return "node"
		}},
		{"*.whl", ".py", pythonVersion(strings.TrimPrefix(testVersion, "v")), func(dir, file string) string {
			output(t, dir, nil, pythonHere(t.Context()), "-m", "venv", "venv")
			python := filepath.Join(dir, "venv", "bin", "python")
			output(t, dir, nil, python, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--no-index", file)
			return python
		}},
	} {
		t.Run(c.ending, func(t *testing.T) {
			made, err := filepath.Glob(filepath.Join(madeRelease.dist, c.file))
			if err != nil || len(made) > 1 {
				t.Fatal(made, err)
			}
			if len(made) == 0 {
				t.Skip("what makes it is not here")
			}
			if !strings.Contains(filepath.Base(made[0]), "lapse-"+c.version) {
				t.Errorf("its version is not %s: %s", c.version, made[0])
			}
			dir := t.TempDir()
			program := c.install(dir, made[0])
			env := []string{"LAPSE_URL=http://" + addr}
			if out := output(t, dir, env, program, pageProgram(t, dir, "send"+c.ending)); !strings.Contains(out, "is due at") {
				t.Error(out)
			}
			worker := command(t.Context(), dir, env, program, pageProgram(t, dir, "worker"+c.ending))
			p := begin(t, worker)
			p.says("cancel ")
			p.stop()
		})
	}
}

// pageProgram writes a program of docs/clients.md into a directory.
func pageProgram(t *testing.T, dir, name string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?ms)^```\\w+\n(?://|#) " + regexp.QuoteMeta(name) + "\n(.*?)^```").FindSubmatch(page)
	if m == nil {
		t.Fatalf("the page has no %s", name)
	}
	if err := os.WriteFile(filepath.Join(dir, name), m[1], 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// says waits until the process has written a text.
func (p *process) says(text string) {
	p.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(p.log.String(), text) {
		select {
		case err := <-p.ended:
			p.t.Fatalf("%s: %v\n%s", p.cmd.Path, err, p.log)
		case <-tick.C:
		}
	}
}

func TestPythonVersion(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3rc1", "1.2.3-beta2": "1.2.3b2", "0.1.0-test": "0.1.0.dev0+test",
		"0.0.0-20261129150000-0123456789ab": "0.0.0.dev0+20261129150000.0123456789ab",
	} {
		if got := pythonVersion(version); got != want {
			t.Errorf("%s is %s, want %s", version, got, want)
		}
	}
}
