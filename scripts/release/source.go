package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	modzip "golang.org/x/mod/zip"
)

const (
	modulePath = "github.com/lapsehq/lapse"
	tags       = "nomsgpack"
	ldflags    = "-s -w"
)

// A source is the commit that a release is made of.
type source struct {
	repo    string // its root
	commit  string
	time    time.Time
	version string // v1.2.3, or a pseudo-version
	tagged  bool
}

// readSource finds out what revision of the repository is released.
func readSource(ctx context.Context, repo, revision string) (s source, err error) {
	s.repo = repo
	if s.commit, err = s.git(ctx, "rev-parse", "--verify", revision+"^{commit}"); err != nil {
		return s, err
	}
	stamp, err := s.git(ctx, "show", "-s", "--format=%ct", s.commit)
	if err != nil {
		return s, err
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return s, err
	}
	s.time = time.Unix(seconds, 0).UTC()
	names, err := s.git(ctx, "tag", "--points-at", s.commit)
	if err != nil {
		return s, err
	}
	for name := range strings.FieldsSeq(names) {
		if semver.IsValid(name) && semver.Canonical(name) == name && semver.Compare(name, s.version) > 0 {
			s.version, s.tagged = name, true
		}
	}
	if !s.tagged {
		// Without an earlier tag there is none to describe it by, which is no fault.
		older, _ := s.git(ctx, "describe", "--tags", "--match", "v[0-9]*", "--abbrev=0", s.commit)
		s.version = module.PseudoVersion("", older, s.time, s.commit[:12])
	}
	return s, nil
}

// git returns what a command of git prints.
func (s *source) git(ctx context.Context, args ...string) (string, error) {
	out, err := command(ctx, s.repo, nil, "git", args...).Output()
	return strings.TrimSpace(string(out)), failure(err, "git", args)
}

// bare is the version as archives and packages name it.
func (s *source) bare() string { return strings.TrimPrefix(s.version, "v") }

// file returns a file of the commit.
func (s *source) file(ctx context.Context, path string) ([]byte, error) {
	args := []string{"show", s.commit + ":" + path}
	out, err := command(ctx, s.repo, nil, "git", args...).Output()
	return out, failure(err, "git", args)
}

// publish writes a module of the commit into a directory that GOPROXY can name, as the public proxy
// would have it. clone is one of the repository, below the module's folder in it.
func (s *source) publish(ctx context.Context, clone, proxy, below string) error {
	m := module.Version{Path: strings.TrimSuffix(modulePath+"/"+below, "/"), Version: s.version}
	dir := filepath.Join(proxy, filepath.FromSlash(m.Path), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file := func(ending string) string { return filepath.Join(dir, m.Version+ending) }
	zip, err := os.Create(file(".zip"))
	if err != nil {
		return err
	}
	defer zip.Close()
	if err := modzip.CreateFromVCS(zip, m, clone, s.commit, below); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	mod, err := s.file(ctx, strings.TrimPrefix(below+"/go.mod", "/"))
	if err != nil {
		return err
	}
	info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, m.Version, s.time.Format(time.RFC3339))
	for ending, text := range map[string][]byte{".mod": mod, ".info": []byte(info)} {
		if err := os.WriteFile(file(ending), text, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "list"), []byte(m.Version+"\n"), 0o644)
}

// command prepares a program that runs in a directory, with further variables.
func command(ctx context.Context, dir string, env []string, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), env...)
	return c
}

// run runs a program, and returns what it prints as part of the error.
func run(ctx context.Context, dir string, env []string, name string, args ...string) error {
	out, err := command(ctx, dir, env, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// failure says which command has failed, and with what message.
func failure(err error, name string, args []string) error {
	if err == nil {
		return nil
	}
	text := ""
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		text = "\n" + string(exit.Stderr)
	}
	return fmt.Errorf("%s %s: %w%s", name, strings.Join(args, " "), err, text)
}
