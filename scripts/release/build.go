package main

import (
	"context"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// A target is what a binary is made for.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "_" + t.arch }

// allTargets are those of a release.
var allTargets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// parseTargets reads linux/amd64,darwin/arm64; nothing stands for all.
func parseTargets(text string) (list []target, err error) {
	if text == "" {
		return allTargets, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		system, arch, ok := strings.Cut(word, "/")
		if !ok {
			return nil, fmt.Errorf("-targets: %q must be such as linux/amd64", word)
		}
		list = append(list, target{system, arch})
	}
	return list, nil
}

// A workshop is the directory in which binaries are built: a proxy with the modules of the commit,
// and a module cache of its own, so that a version that was never published stays out of that of
// the user.
type workshop struct {
	src   source
	dir   string
	proxy string
	env   []string
}

// newWorkshop publishes the modules in below, folders of the repository; "" is its root.
func newWorkshop(ctx context.Context, src source, dir string, below ...string) (*workshop, error) {
	w := &workshop{src: src, dir: dir, proxy: filepath.Join(dir, "proxy")}
	// A clone without files, since the packing of a module wants a directory .git, which a working
	// tree of git worktree does not have.
	clone := filepath.Join(dir, "clone")
	if err := run(ctx, dir, nil, "git", "clone", "--quiet", "--shared", "--no-checkout", src.repo, clone); err != nil {
		return nil, err
	}
	for _, b := range below {
		if err := src.publish(ctx, clone, w.proxy, b); err != nil {
			return nil, err
		}
	}
	out, err := command(ctx, src.repo, nil, "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return nil, failure(err, "go", []string{"env"})
	}
	words := strings.Fields(string(out))
	if len(words) != 2 {
		return nil, fmt.Errorf("go env GOMODCACHE GOPROXY prints %q", out)
	}
	// Not direct: a module that is not published, as that of an adapter before its tag, has no
	// repository to ask.
	public := strings.TrimSuffix(words[1], ",direct")
	proxies := strings.Join([]string{"file://" + w.proxy, "file://" + filepath.Join(words[0], "cache", "download"), public}, ",")
	// go mod verify has compared the modules of the user's cache with go.sum; go install of a
	// version reads no go.sum.
	w.env = []string{"GOPROXY=" + proxies, "GOSUMDB=off", "GOFLAGS=-modcacherw", "GOWORK=off", "CGO_ENABLED=0", "GOBIN="}
	return w, nil
}

// verify compares the modules in the cache of the user with go.sum.
func (w *workshop) verify(ctx context.Context) error {
	if err := run(ctx, w.src.repo, []string{"GOWORK=off"}, "go", "mod", "download"); err != nil {
		return err
	}
	return run(ctx, w.src.repo, []string{"GOWORK=off"}, "go", "mod", "verify")
}

// environ returns the variables with which go sees the modules, and keeps its files in a directory.
func (w *workshop) environ(name string) []string {
	gopath := filepath.Join(w.dir, name)
	return append([]string{"GOPATH=" + gopath, "GOMODCACHE=" + filepath.Join(w.dir, "mod")}, w.env...)
}

// install builds the program as docs/install.md says, and returns the path of the binary.
func (w *workshop) install(ctx context.Context, name string, t target) (string, error) {
	env := append(w.environ(name), "GOOS="+t.os, "GOARCH="+t.arch)
	args := []string{"install", "-tags", tags, "-trimpath", "-ldflags", ldflags, modulePath + "@" + w.src.version}
	if err := run(ctx, w.dir, env, "go", args...); err != nil {
		return "", err
	}
	path := filepath.Join(w.dir, name, "bin")
	if t.os != runtime.GOOS || t.arch != runtime.GOARCH {
		path = filepath.Join(path, t.String())
	}
	path = filepath.Join(path, "lapse")
	return path, w.check(path, t)
}

// check makes sure that a binary is what a release promises: of that version and target, and
// static.
func (w *workshop) check(path string, t target) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if info.Main.Version != w.src.version || settings["GOOS"] != t.os || settings["GOARCH"] != t.arch || settings["CGO_ENABLED"] != "0" {
		return fmt.Errorf("%s is %s of %s for %s/%s", path, info.Main.Path, info.Main.Version, settings["GOOS"], settings["GOARCH"])
	}
	if t.os != "linux" {
		return nil
	}
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New(path + " is not static: it asks for a dynamic linker")
		}
	}
	return nil
}

// native returns a binary that this machine runs.
func (w *workshop) native(ctx context.Context) (string, error) {
	return w.install(ctx, "install", target{runtime.GOOS, runtime.GOARCH})
}

// clean removes the directory.
func (w *workshop) clean() error { return os.RemoveAll(w.dir) }
