package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// A side is a commit with its programs.
type side struct {
	name        string
	lapse, bout string // programs
}

const (
	new = iota // of the two sides: this work tree
	old        // the commit to compare with
)

// build makes the programs of this work tree and of a commit, or of a directory with a checkout.
func build(ctx context.Context, base, work string) (sides [2]side, err error) {
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return sides, err
	}
	name, err := output(ctx, root, "git", "describe", "--always", "--dirty", "--abbrev=8")
	if err != nil {
		return sides, err
	}
	if sides[new], err = programs(ctx, root, name, filepath.Join(work, "new"), false); err != nil {
		return sides, err
	}
	tree := filepath.Join(work, "tree")
	if name, err = checkout(ctx, root, base, tree); err != nil {
		return sides, err
	}
	harness := filepath.Join(tree, "scripts", "pair")
	if err := errors.Join(os.RemoveAll(harness), os.CopyFS(harness, os.DirFS(filepath.Join(root, "scripts", "pair")))); err != nil {
		return sides, err
	}
	if sides[old], err = programs(ctx, tree, name, filepath.Join(work, "old"), true); err != nil {
		return sides, err
	}
	return sides, os.RemoveAll(tree)
}

// checkout writes the files of a commit, or of a directory, into tree.
func checkout(ctx context.Context, root, base, tree string) (name string, err error) {
	if info, err := os.Stat(base); err == nil && info.IsDir() {
		return filepath.Base(base), os.CopyFS(tree, os.DirFS(base))
	}
	commit, err := output(ctx, root, "git", "rev-parse", "--verify", "--quiet", base+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("commit %s is not in this clone (git fetch --unshallow gets all of them): %w", base, err)
	}
	archive := tree + ".tar"
	if _, err := output(ctx, root, "git", "archive", "-o", archive, commit); err != nil {
		return "", err
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return "", err
	}
	_, err = output(ctx, tree, "tar", "-x", "-f", archive)
	return commit[:8], errors.Join(err, os.Remove(archive))
}

var complained = regexp.MustCompile(`(?m)^(?:scripts/pair/bout/)([a-z]+\.go):`)

// programs builds the server and the harness within a tree. If lenient, it leaves out the files of
// the harness that do not compile there, except the first, and says so.
func programs(ctx context.Context, tree, name, into string, lenient bool) (s side, err error) {
	s = side{name, into + "-lapse", into + "-bout"}
	compile := func(program, pkg string) error {
		_, err := output(ctx, tree, "go", "build", "-tags", "nomsgpack", "-trimpath", "-ldflags", "-s -w", "-o", program, pkg)
		return err
	}
	if err := compile(s.lapse, "."); err != nil {
		return s, err
	}
	for {
		err := compile(s.bout, "./scripts/pair/bout")
		if err == nil || !lenient {
			return s, err
		}
		left := 0
		for _, found := range complained.FindAllStringSubmatch(err.Error(), -1) {
			file := filepath.Join(tree, "scripts", "pair", "bout", found[1])
			if found[1] != "main.go" && os.Remove(file) == nil {
				fmt.Fprintf(os.Stderr, "%s has not what %s measures: left out\n", name, found[1])
				left++
			}
		}
		if left == 0 {
			return s, err
		}
	}
}

// output runs a program and returns what it prints.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(string(out)), err
}
