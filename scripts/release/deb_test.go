//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A freshRoot is the root of a machine that has nothing but a shell, and what adds a user.
type freshRoot struct {
	t    *testing.T
	dir  string
	addr string // of the server that runs in it
}

// newRoot makes a root, and is passed over without dpkg or the right to change the root.
func newRoot(t *testing.T) *freshRoot {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may install a package into another root, and change to it")
	}
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("there is no dpkg")
	}
	r := &freshRoot{t, t.TempDir(), freeAddr(t)}
	// The user of the package must get through to it: directories of tests are closed to others.
	for dir := r.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "getent", "groupadd", "useradd", "install"} {
		r.copyProgram(name)
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n", "etc/shadow": "root:*:1::::::\n", "etc/gshadow": "root:*::\n",
		"etc/nsswitch.conf": "passwd: files\ngroup: files\n", "etc/login.defs": "", "var/lib/dpkg/status": "", "var/lib/dpkg/available": "", "dev/null": "",
	} {
		r.write(name, text)
	}
	for _, name := range []string{"tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log", "var/cache"} {
		if err := os.MkdirAll(filepath.Join(r.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// copyProgram copies a program of this machine, with the libraries that it loads.
func (r *freshRoot) copyProgram(name string) {
	r.t.Helper()
	at, err := exec.LookPath(name)
	if err != nil {
		r.t.Skipf("there is no %s here", name)
	}
	from := []string{at}
	out, _ := exec.Command("ldd", at).Output() // it fails for a static program
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		from = append(from, m[1])
	}
	for i, path := range from {
		text, err := os.ReadFile(path)
		if err != nil {
			r.t.Fatal(err)
		}
		to := filepath.Join(r.dir, path)
		if i == 0 {
			to = filepath.Join(r.dir, "bin", name)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *freshRoot) write(name, text string) {
	r.t.Helper()
	to := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *freshRoot) read(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

func (r *freshRoot) dpkg(args ...string) {
	r.t.Helper()
	args = append([]string{"--root=" + r.dir, "--force-confold", "--log=/dev/null"}, args...)
	if out, err := command(r.t.Context(), ".", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "dpkg", args...).CombinedOutput(); err != nil {
		r.t.Fatalf("dpkg %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// start runs what the unit says, as the user that it names, and returns what ends it.
func (r *freshRoot) start() (stop func()) {
	r.t.Helper()
	unit := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)=(.+)$`).FindAllStringSubmatch(r.read("usr/lib/systemd/system/lapse.service"), -1) {
		unit[m[1]] = m[2]
	}
	owner := regexp.MustCompile(`(?m)^` + unit["User"] + `:[^:]*:(\d+):(\d+):`).FindStringSubmatch(r.read("etc/passwd"))
	if owner == nil {
		r.t.Fatalf("there is no user %s:\n%s", unit["User"], r.read("etc/passwd"))
	}
	uid, _ := strconv.ParseUint(owner[1], 10, 32)
	gid, _ := strconv.ParseUint(owner[2], 10, 32)
	words := strings.Fields(unit["ExecStart"])
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = "/var/lib/" + unit["StateDirectory"]
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	for line := range strings.Lines(r.read(strings.TrimPrefix(unit["EnvironmentFile"], "-/"))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			cmd.Env = append(cmd.Env, line)
		}
	}
	p := begin(r.t, cmd)
	p.answers("http://" + r.addr + "/readyz")
	return p.stop
}

func (r *freshRoot) call(path, body string, into any) int {
	r.t.Helper()
	resp, err := http.Post("http://"+r.addr+path, "application/json", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = json.Unmarshal(text, into)
	return resp.StatusCode
}

// nextDeb is the package of a version after the one that was released, with another default config.
func nextDeb(t *testing.T) string {
	t.Helper()
	files := unpack(t)
	b := built{binary: files["lapse"], texts: map[string][]byte{}, scripts: map[string][]byte{}, completions: map[string][]byte{}, manual: files["lapse.1"]}
	for _, name := range textFiles {
		b.texts[name] = files[filepath.Base(name)]
	}
	b.texts[configFile] = append(b.texts[configFile], "# a setting of the next version\n"...)
	for _, shell := range shells {
		b.completions[shell] = files["completions/lapse."+shell]
	}
	for _, name := range scriptFiles {
		text, err := os.ReadFile(filepath.Join("package", name))
		if err != nil {
			t.Fatal(err)
		}
		b.scripts[name] = text
	}
	src, dir := madeRelease.source, t.TempDir()
	src.version = "v0.2.0"
	if err := writePackage(dir, "deb", src, native, &b); err != nil {
		t.Fatal(err)
	}
	return theFile(t, dir, "*.deb")
}

func theFile(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %v, %v", pattern, dir, found, err)
	}
	return found[0]
}

// The package is installed into a fresh root, and runs there as its user. An upgrade keeps the
// config that was changed, and the tasks. A removal keeps both, and a purge the tasks.
func TestDeb(t *testing.T) {
	r := newRoot(t)
	r.dpkg("--install", theFile(t, madeRelease.dist, "*.deb"))
	config := "etc/lapse/lapse.env"
	if !strings.Contains(r.read(config), "\nLAPSE_LISTEN=127.0.0.1:7480\n") {
		t.Error(r.read(config))
	}
	for name, mode := range map[string]os.FileMode{
		config: 0o600, "var/lib/lapse": os.ModeDir | 0o700, "usr/bin/lapse": 0o755, "usr/lib/sysusers.d/lapse.conf": 0o644,
		"usr/share/bash-completion/completions/lapse": 0o644, "usr/share/zsh/vendor-completions/_lapse": 0o644, "usr/share/man/man1/lapse.1.gz": 0o644, "usr/share/doc/lapse/copyright": 0o644, "usr/share/doc/lapse/licenses/go/LICENSE": 0o644,
	} {
		if info, err := os.Stat(filepath.Join(r.dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", name, info, err, mode)
		}
	}
	changed := fmt.Sprintf("LAPSE_LISTEN=%s\n", r.addr)
	r.write(config, changed)
	stop := r.start()
	if status := r.call("/v1/tasks", `{"id":"kept","topic":"x","delay":"0s"}`, nil); status != http.StatusCreated {
		t.Errorf("status %d", status)
	}
	stop()

	r.dpkg("--install", nextDeb(t))
	if got := r.read(config); got != changed {
		t.Errorf("the upgrade has changed the config:\n%s", got)
	}
	if got := r.read(config + ".dpkg-dist"); !strings.Contains(got, "# a setting of the next version") {
		t.Errorf("the config of the next version is not beside it:\n%s", got)
	}
	stop = r.start()
	var reserved struct{ Tasks []struct{ ID string } }
	if status := r.call("/v1/topics/x/reserve", `{"wait":"20s"}`, &reserved); status != http.StatusOK || len(reserved.Tasks) != 1 || reserved.Tasks[0].ID != "kept" {
		t.Errorf("after the upgrade: status %d, %v", status, reserved)
	}
	stop()

	r.dpkg("--remove", "lapse")
	for name, there := range map[string]bool{"usr/bin/lapse": false, config: true, "var/lib/lapse/lapse-data": true} {
		if _, err := os.Stat(filepath.Join(r.dir, name)); (err == nil) != there {
			t.Errorf("after the removal %s: %v", name, err)
		}
	}
	r.dpkg("--purge", "lapse")
	for name, there := range map[string]bool{config: false, "var/lib/lapse/lapse-data": true} {
		if _, err := os.Stat(filepath.Join(r.dir, name)); (err == nil) != there {
			t.Errorf("after the purge %s: %v", name, err)
		}
	}
}

// systemd finds no fault with the unit, in the root that it was installed into.
func TestUnitIsValid(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("there is no systemd-analyze")
	}
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"lapse": 0o755, "lapse.service": 0o644} {
		text := unpack(t)[name]
		if name == "lapse.service" {
			text = bytes.ReplaceAll(text, []byte("/usr/bin/lapse"), []byte(filepath.Join(dir, "lapse")))
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, mode); err != nil {
			t.Fatal(err)
		}
	}
	if out := output(t, dir, nil, "systemd-analyze", "verify", "--man=no", "./lapse.service"); strings.Contains(out, "lapse.service") {
		t.Error(out)
	}
	for _, line := range []string{"Type=notify", "WatchdogSec=30", "User=lapse", "NoNewPrivileges=yes", "ProtectSystem=strict"} {
		if !bytes.Contains(unpack(t)["lapse.service"], []byte("\n"+line+"\n")) {
			t.Errorf("the unit lacks %s", line)
		}
	}
	out := output(t, dir, nil, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", "./lapse.service")
	if !strings.Contains(out, "Overall exposure level") {
		t.Error(out)
	}
}

// The package for RPM has the same files and scripts. It is installed where rpm is at hand.
func TestRPM(t *testing.T) {
	rpm, err := exec.LookPath("rpm")
	if err != nil {
		t.Skip("there is no rpm")
	}
	at := theFile(t, madeRelease.dist, "*.rpm")
	listed := output(t, ".", nil, rpm, "--query", "--package", "--list", at)
	for _, name := range []string{"/usr/bin/lapse", "/usr/lib/systemd/system/lapse.service", "/etc/lapse/lapse.env"} {
		if !strings.Contains(listed, name+"\n") {
			t.Errorf("%s is missing:\n%s", name, listed)
		}
	}
	if out := output(t, ".", nil, rpm, "--query", "--package", "--configfiles", at); out != "/etc/lapse/lapse.env\n" {
		t.Errorf("config files: %s", out)
	}
	r := newRoot(t)
	install := func(what string) {
		output(t, ".", nil, rpm, "--root", r.dir, "--nodeps", "--nosignature", what, at)
	}
	install("--install")
	changed := fmt.Sprintf("LAPSE_LISTEN=%s\n", r.addr)
	r.write("etc/lapse/lapse.env", changed)
	output(t, ".", nil, rpm, "--root", r.dir, "--nodeps", "--nosignature", "--upgrade", "--replacepkgs", at)
	if got := r.read("etc/lapse/lapse.env"); got != changed {
		t.Errorf("the upgrade has changed the config:\n%s", got)
	}
	r.start()()
}
