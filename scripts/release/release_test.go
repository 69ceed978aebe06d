package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// testVersion is what the tests release.
const testVersion = "v0.1.0-test"

var native = target{runtime.GOOS, runtime.GOARCH}

// madeRelease is the release of the working tree that the tests share.
var madeRelease struct {
	repo, dist string
	source     source
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lapse-release-test-")
	if err != nil {
		panic(err)
	}
	code := 1
	if err := makeRelease(dir); err != nil {
		println(err.Error())
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// makeRelease tags the working tree in a repository of its own, as a maintainer tags a release, and
// makes the release of this machine's target.
func makeRelease(dir string) error {
	r := &madeRelease
	r.repo, r.dist = filepath.Join(dir, "repo"), filepath.Join(dir, "dist")
	ctx := context.Background()
	names, err := command(ctx, "../..", nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return failure(err, "git", []string{"ls-files"})
	}
	for name := range strings.SplitSeq(strings.Trim(string(names), "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join("../..", name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, and not committed yet
		} else if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			return err
		}
		to := filepath.Join(r.repo, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, info.Mode().Perm())); err != nil {
			return err
		}
	}
	if err := prepare(r.repo, testVersion); err != nil {
		return err
	}
	who := []string{"-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"}
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "-A"}, {"commit", "-q", "-m", "test"}, {"tag", testVersion}, {"tag", "adapters/nats/" + testVersion},
	} {
		if err := run(ctx, r.repo, nil, "git", append(who, args...)...); err != nil {
			return err
		}
	}
	if r.source, err = readSource(ctx, r.repo, testVersion); err != nil {
		return err
	}
	err = release(ctx, r.repo, testVersion, r.dist, native.os+"/"+native.arch)
	if errors.Is(err, errNoTools) {
		println(err.Error()) // TestClients passes it over
		return nil
	}
	return err
}

// output runs a program and returns what it prints.
func output(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := command(t.Context(), dir, env, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// unpack returns the files of the archive, without its folder. All tests share them.
func unpack(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := unpacked()
	if err != nil {
		t.Fatal(err)
	}
	return maps.Clone(files)
}

var unpacked = sync.OnceValues(func() (map[string][]byte, error) {
	name := archiveName(strings.TrimPrefix(testVersion, "v"), native)
	f, err := os.Open(filepath.Join(madeRelease.dist, name+".tar.gz"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	packed, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for all := tar.NewReader(packed); ; {
		head, err := all.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		} else if err != nil {
			return nil, err
		}
		inside, ok := strings.CutPrefix(head.Name, name+"/")
		if !ok || !head.ModTime.Equal(madeRelease.source.time) {
			return nil, fmt.Errorf("%s of %s", head.Name, head.ModTime)
		}
		if files[inside], err = io.ReadAll(all); err != nil {
			return nil, err
		}
	}
})

// unpackBinary writes the program of the archive to a file.
func unpackBinary(t *testing.T) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "lapse")
	if err := os.WriteFile(to, unpack(t)["lapse"], 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// The archive has the program, completions that their shells can read, and a licence of each module
// that is linked in.
func TestArchive(t *testing.T) {
	files := unpack(t)
	for _, name := range []string{"lapse", "LICENSE", "README.md", "CHANGELOG.md", "lapse.service", "lapse.sysusers", "lapse.env"} {
		if len(files[name]) == 0 {
			t.Errorf("%s is missing", name)
		}
	}
	if page := files["lapse.1"]; !bytes.Contains(page, []byte(`"lapse `+testVersion+`"`)) || !bytes.Contains(page, []byte(".SS lapse schedule")) {
		t.Errorf("the manual page: %.200s", page)
	}
	for _, shell := range shells {
		name := "completions/lapse." + shell
		if !bytes.Contains(files[name], []byte("schedule")) {
			t.Errorf("%s: %s", name, files[name])
		}
		if at, err := exec.LookPath(shell); err == nil {
			c := exec.CommandContext(t.Context(), at, "-n")
			c.Stdin = bytes.NewReader(files[name])
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", name, err, out)
			}
		}
	}
	licensed := map[string]bool{}
	for name := range files {
		if rest, ok := strings.CutPrefix(name, "licenses/"); ok {
			licensed[path.Dir(rest)] = true
		}
	}
	for _, m := range linked(t) {
		if !licensed[m] {
			t.Errorf("no licence of %s", m)
		}
	}
	if !licensed["go"] || !licensed["dashboard"] {
		t.Errorf("no licence of Go, or of the dashboard: %v", licensed)
	}
}

// linked returns the modules that the binary says it is made of, as module@version.
func linked(t *testing.T) (list []string) {
	t.Helper()
	text := output(t, ".", nil, "go", "version", "-m", unpackBinary(t))
	for _, m := range regexp.MustCompile(`(?m)^\t(?:mod|dep)\t(\S+)\t(\S+)`).FindAllStringSubmatch(text, -1) {
		list = append(list, m[1]+"@"+m[2])
	}
	if len(list) < 20 {
		t.Fatalf("%d modules:\n%s", len(list), text)
	}
	return list
}

// The version of the binary is the tag, and so is that of a build in a clone at the tag.
func TestVersionIsTheTag(t *testing.T) {
	t.Parallel()
	binary := unpackBinary(t)
	if out := output(t, ".", nil, binary, "--version"); !strings.HasPrefix(out, "lapse "+testVersion+" go1.") {
		t.Errorf("lapse --version prints %s", out)
	}
	clone := filepath.Join(t.TempDir(), "lapse")
	output(t, madeRelease.repo, []string{"GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0"}, "go", "build", "-buildvcs=true", "-tags", tags, "-trimpath", "-ldflags", ldflags, "-o", clone, ".")
	if out := output(t, ".", nil, clone, "--version"); !strings.HasPrefix(out, "lapse "+testVersion+" go1.") {
		t.Errorf("a build in a clone prints %s", out)
	}
}

// go install of the tag, with the flags that docs/install.md names, makes the bytes of the release,
// in whatever directory.
func TestGoInstallGivesTheSameBinary(t *testing.T) {
	t.Parallel()
	w := outside(t, "")
	path, err := w.native(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	installed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(installed, unpack(t)["lapse"]) {
		t.Errorf("the binaries differ: %d bytes, %d in the archive", len(installed), len(unpack(t)["lapse"]))
	}
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	if flags := "-tags " + tags + " -trimpath -ldflags '" + ldflags + "' " + modulePath + "@"; !strings.Contains(string(page), flags) {
		t.Errorf("docs/install.md does not say %s", flags)
	}
}

// outside returns a workshop with the modules of the release, which only there can be had.
func outside(t *testing.T, below ...string) *workshop {
	t.Helper()
	w, err := newWorkshop(t.Context(), madeRelease.source, t.TempDir(), below...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A module elsewhere gets an adapter with go get, and builds a Lapse with it.
func TestAdapterFromOutside(t *testing.T) {
	t.Parallel()
	w := outside(t, "", "adapters/nats")
	dir := filepath.Join(w.dir, "shop")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../../adapters/nats/example/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"go.mod": "module example.com/shop\n\ngo 1.26.0\n", "main.go": string(example)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := w.environ("shop")
	output(t, dir, env, "go", "get", modulePath+"/adapters/nats@"+testVersion)
	output(t, dir, append(env, "GOFLAGS=-mod=mod -modcacherw"), "go", "build", "-tags", tags, "-trimpath", "-o", "shop", ".")
	if out := output(t, dir, nil, "./shop", "--version"); !strings.HasPrefix(out, "lapse ") {
		t.Error(out)
	}
}

// The checksums are those of all files, and the bill of materials names all modules.
func TestChecksumsAndBill(t *testing.T) {
	output(t, madeRelease.dist, nil, "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums, err := os.ReadFile(filepath.Join(madeRelease.dist, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(madeRelease.dist)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(sums), "\n"); n != len(entries)-1 {
		t.Errorf("%d sums of %d files", n, len(entries))
	}
	text, err := os.ReadFile(filepath.Join(madeRelease.dist, archiveName(strings.TrimPrefix(testVersion, "v"), native)+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		BomFormat  string
		Components []struct {
			Name, Version, PURL string
			Evidence            struct{ Licenses []any }
		}
	}
	if err := json.Unmarshal(text, &bill); err != nil || bill.BomFormat != "CycloneDX" {
		t.Fatalf("%q, %v", bill.BomFormat, err)
	}
	named, licensed := map[string]bool{}, 0
	for _, c := range bill.Components {
		named[c.Name+"@"+c.Version] = true
		if len(c.Evidence.Licenses) > 0 {
			licensed++
		}
	}
	for _, m := range linked(t) {
		if !named[m] && !strings.HasPrefix(m, modulePath+"@") {
			t.Errorf("%s is missing", m)
		}
	}
	if !named["uplot@1.6.32"] || licensed < len(bill.Components)/2 {
		t.Errorf("%d components, %d with a licence; uplot: %v", len(bill.Components), licensed, named["uplot@1.6.32"])
	}
}
