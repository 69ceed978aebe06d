package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// errNoTools is returned where what makes a package cannot be had here.
var errNoTools = errors.New("not made")

// writeClients writes the packages of the clients in TypeScript and Python. Error errNoTools: it
// names those whose tools are not here, and has written the others.
func (w *workshop) writeClients(ctx context.Context, out string) (lacks error) {
	from := filepath.Join(w.dir, "clone")
	if err := run(ctx, from, nil, "git", "checkout", "--quiet", w.src.commit, "--", "clients", "LICENSE"); err != nil {
		return err
	}
	for _, p := range []struct {
		what  string
		write func(ctx context.Context, from, out string) error
	}{{"the npm package", w.writeNPM}, {"the wheel", w.writeWheel}} {
		err := p.write(ctx, from, out)
		if err != nil {
			err = fmt.Errorf("%s: %w", p.what, err)
		}
		if err != nil && !errors.Is(err, errNoTools) {
			return err
		}
		lacks = errors.Join(lacks, err)
	}
	return lacks
}

// setVersion replaces the version that a file of the repository has.
func setVersion(path, before, after string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if bytes.Count(text, []byte(before)) != 1 {
		return fmt.Errorf("%s: want one %s", path, before)
	}
	return os.WriteFile(path, bytes.Replace(text, []byte(before), []byte(after), 1), 0o644)
}

// writeNPM has npm make its package.
func (w *workshop) writeNPM(ctx context.Context, from, out string) error {
	dir := filepath.Join(from, "clients", "typescript")
	if err := setVersion(filepath.Join(dir, "package.json"), `"version": "0.0.0"`, fmt.Sprintf(`"version": %q`, w.src.bare())); err != nil {
		return err
	}
	if _, err := exec.LookPath("npm"); err != nil {
		return fmt.Errorf("%w: there is no npm", errNoTools)
	}
	if err := run(ctx, dir, nil, "npm", "ci", "--ignore-scripts", "--prefer-offline"); err != nil {
		if run(ctx, dir, nil, "npm", "ping") != nil {
			return fmt.Errorf("%w: npm reaches no registry", errNoTools)
		}
		return err
	}
	return run(ctx, dir, nil, "npm", "pack", "--pack-destination", out)
}

// writeWheel has the client's own backend make the wheel, which pip would run as well.
func (w *workshop) writeWheel(ctx context.Context, from, out string) error {
	dir := filepath.Join(from, "clients", "python")
	if err := setVersion(filepath.Join(dir, "pyproject.toml"), `version = "0.0.0"`, fmt.Sprintf(`version = %q`, pythonVersion(w.src.bare()))); err != nil {
		return err
	}
	python := pythonHere(ctx)
	if python == "" {
		return fmt.Errorf("%w: there is no Python 3.11", errNoTools)
	}
	return run(ctx, dir, []string{"PYTHONPATH=tools"}, python, "-B", "-c", "import sys, backend; backend.build_wheel(sys.argv[1])", out)
}

// pythonHere is a Python 3.11 or later, "" if there is none.
func pythonHere(ctx context.Context) string {
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if run(ctx, ".", nil, python, "-c", "import tomllib") == nil {
			return python
		}
	}
	return ""
}

var beforeRelease = regexp.MustCompile(`^(alpha|beta|rc)\.?(\d+)$`)

// pythonVersion is a version in the form of Python (PEP 440): 1.2.3-rc.1 is 1.2.3rc1 there. One of
// another kind before a release, as a pseudo-version, is a development release with a local part.
func pythonVersion(version string) string {
	base, before, is := strings.Cut(version, "-")
	if !is {
		return base
	}
	if m := beforeRelease.FindStringSubmatch(before); m != nil {
		return base + map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[m[1]] + m[2]
	}
	return base + ".dev0+" + strings.ReplaceAll(before, "-", ".")
}
