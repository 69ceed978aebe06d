package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// A patch is a set of files that the compiler reads in place of others.
type patch struct {
	dir   string // where they are
	files map[string]string
}

func newPatch(dir string) *patch { return &patch{dir: dir, files: map[string]string{}} }

func (p *patch) add(name, text string) error {
	at := filepath.Join(p.dir, fmt.Sprintf("file%d.go", len(p.files)))
	p.files[name] = at
	return os.WriteFile(at, []byte(text), 0o600)
}

// build compiles the tests of a package with the patch. The error is the compiler's.
func (p *patch) build(ctx context.Context, root, pkg, binary string) error {
	text, err := json.Marshal(map[string]any{"Replace": p.files})
	if err != nil {
		return err
	}
	overlay := filepath.Join(p.dir, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-tags", "nomsgpack", "-ldflags=-w", "-overlay", overlay, "-o", binary, pkg)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// load reads the file of a mutant.
func load(root, file string) (*source, error) {
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	return read(file, text)
}

var fault = regexp.MustCompile(`mutant-(\d+):\d+`)

// buildSwitched compiles the tests of a package with all these faults behind a switch. Faults that
// do not apply or do not compile are left out, and reported.
func buildSwitched(ctx context.Context, root, pkg, binary, dir string, mutants []*mutant, report func(*mutant, result)) ([]*mutant, error) {
	for {
		p := newPatch(dir)
		files := map[string][]*mutant{}
		for _, m := range mutants {
			files[m.file] = append(files[m.file], m)
		}
		for file, ms := range files {
			s, err := load(root, file)
			if err != nil {
				return nil, err
			}
			text, err := s.switched(ms)
			if err != nil {
				return nil, err
			}
			name := filepath.Join(root, file)
			if err := errors.Join(p.add(name, text), p.add(filepath.Join(filepath.Dir(name), "lapse_mutant.go"), s.switchFile())); err != nil {
				return nil, err
			}
		}
		err := p.build(ctx, root, pkg, binary)
		if err == nil {
			return mutants, nil
		}
		bad := map[int]bool{}
		for _, found := range fault.FindAllStringSubmatch(err.Error(), -1) {
			n, _ := strconv.Atoi(found[1])
			bad[n] = true
		}
		if len(bad) == 0 || ctx.Err() != nil {
			return nil, err
		}
		var left []*mutant
		for _, m := range mutants {
			if bad[m.number] {
				report(m, result{Verdict: noBuild, Why: firstLine(err.Error(), m.mark()+":")})
			} else {
				left = append(left, m)
			}
		}
		mutants = left
	}
}
