package house

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// The bounds of this file are far from what a file, a package or a struct should have: they are
// there to be noticed, not to be met. What the code should reach stands in ratchets_test.go.

// A source is a Go file of the repository.
type source struct {
	path  string // slashes; relative to the root
	lines []string
	file  *ast.File
}

// sources parses all Go files.
func sources(t *testing.T) (all []source, positions *token.FileSet) {
	t.Helper()
	positions = token.NewFileSet()
	err := fs.WalkDir(os.DirFS(rig.Root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		text, err := os.ReadFile(filepath.Join(rig.Root, path))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(positions, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		var lines []string
		for scan := bufio.NewScanner(strings.NewReader(string(text))); scan.Scan(); {
			lines = append(lines, scan.Text())
		}
		all = append(all, source{path, lines, file})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, positions
}

func (s *source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// A file has at most 600 lines, unless it is generated, and a package at most 60 files beside its
// tests.
func TestSizes(t *testing.T) {
	const maxLines, maxFiles = 600, 60
	all, _ := sources(t)
	files := map[string]int{}
	for i := range all {
		s := &all[i]
		if n := len(s.lines); n > maxLines && !ast.IsGenerated(s.file) {
			t.Errorf("%s has %d lines; at most %d are allowed", s.path, n, maxLines)
		}
		if !s.isTest() {
			files[filepath.ToSlash(filepath.Dir(s.path))]++
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(files)) {
		if files[dir] > maxFiles {
			t.Errorf("%s has %d files; at most %d are allowed", dir, files[dir], maxFiles)
		}
	}
}

// A struct has at most 30 fields. Engine has a ratchet.
func TestFields(t *testing.T) {
	const maxFields = 30
	all, positions := sources(t)
	for i := range all {
		s := &all[i]
		if s.isTest() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			typ, ok := n.(*ast.TypeSpec)
			if !ok || s.file.Name.Name == "engine" && typ.Name.Name == "Engine" {
				return true
			}
			if st, ok := typ.Type.(*ast.StructType); ok && st.Fields.NumFields() > maxFields {
				t.Errorf("%s: %s has %d fields; at most %d are allowed", positions.Position(typ.Pos()), typ.Name.Name, st.Fields.NumFields(), maxFields)
			}
			return true
		})
	}
}

// An interface declares fewer than eight methods; a larger one is put together from such.
func TestInterfaces(t *testing.T) {
	const maxMethods = 7
	all, positions := sources(t)
	for i := range all {
		if all[i].isTest() {
			continue
		}
		ast.Inspect(all[i].file, func(n ast.Node) bool {
			typ, ok := n.(*ast.InterfaceType)
			if !ok {
				return true
			}
			methods := 0
			for _, f := range typ.Methods.List {
				methods += len(f.Names) // an embedded interface has none
			}
			if methods > maxMethods {
				t.Errorf("%s: an interface declares %d methods; at most %d are allowed", positions.Position(n.Pos()), methods, maxMethods)
			}
			return true
		})
	}
}

// Lines with comments that are not generated are at most 100 columns wide, and comments name who
// acts.
func TestComments(t *testing.T) {
	// More than there should be.
	const wide, vague = 0, 0
	words := regexp.MustCompile(`(?i)\b(somebody|nobody|whoever|everybody|anybody)\b`)
	all, positions := sources(t)
	var tooWide, tooVague []string
	for i := range all {
		s := &all[i]
		if s.path == "scripts/house/house_test.go" || ast.IsGenerated(s.file) {
			continue
		}
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, "//go:") || strings.HasPrefix(c.Text, "//nolint") {
					continue
				}
				at := positions.Position(c.Pos())
				for n, line := range strings.Split(c.Text, "\n") {
					column := 0
					if n == 0 {
						code := s.lines[at.Line-1][:at.Column-1]
						column = strings.Count(code, "\t")*3 + len([]rune(code))
					}
					where := at.String() + ": " + line
					if column+strings.Count(line, "\t")*3+len([]rune(line)) > 100 {
						tooWide = append(tooWide, where)
					}
					if words.MatchString(line) {
						tooVague = append(tooVague, where)
					}
				}
			}
		}
	}
	if len(tooWide) > wide {
		t.Errorf("%d comment lines are wider than 100 columns; at most %d are allowed:\n%s", len(tooWide), wide, strings.Join(tooWide, "\n"))
	}
	if len(tooVague) > vague {
		t.Errorf("%d comment lines speak of somebody; at most %d are allowed:\n%s", len(tooVague), vague, strings.Join(tooVague, "\n"))
	}
}
