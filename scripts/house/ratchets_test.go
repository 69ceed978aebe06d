package house

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A ratchet measures what makes the code hard to hold in the head. Its bound is the number of today
// and may only fall; its aim is where it should end.
type ratchet struct {
	what       string
	bound, aim int
	measure    func(t *testing.T) int
}

func TestRatchets(t *testing.T) {
	p := load(t)
	for _, r := range []ratchet{
		{"places outside of the engine that lock its mutex", 0, 0, p.locks},
		{"names of package engine that package cluster uses", 240, 80, p.engineNames},
		// In redisledger, whose files have an order, it is 4 of 64: 7 %.
		{"% of the references between files of engine that run back up", 15, 7,
			func(t *testing.T) int { return p.upward(t, enginePath) }},
		{"% of the references between files of cluster that run back up", 10, 7,
			func(t *testing.T) int { return p.upward(t, clusterPath) }},
		{"fields of Engine, its structs unfolded", 127, 60, p.unfolded},
		{"methods of Engine", 461, 250, p.methods},
		// What the page at night needs is 6,200 of them: counts, overdue, waves, the past and the
		// archive that keeps it, judged forecasts, the log of actions, search, comfort, top. A
		// server to try, a manual page, typed topics and what tells of repeated calls are 400. Rest
		// after a silence, and what a forgotten adoption or hand-over needs besides, are 170.
		{"lines of product code", 90189, 66000, productLines},
		{"words of README.md and docs", 69452, 70000, wordsOfDocs},
	} {
		t.Run(r.what, func(t *testing.T) {
			switch n := r.measure(t); {
			case n > r.bound:
				t.Errorf("%d, at most %d are allowed; the aim is %d", n, r.bound, r.aim)
			case n < r.bound-r.bound/1000:
				t.Errorf("%d is better than before: lower the bound of %d in ratchets_test.go to it", n, r.bound)
			}
		})
	}
}

// productLines counts the lines with code of all Go files of the repository, its adapters among
// them, but for scripts/, examples/, tests, and packages for tests alone.
func productLines(t *testing.T) (n int) {
	all, _ := sources(t)
	for i := range all {
		if s := &all[i]; !s.isTest() && !strings.HasPrefix(s.path, "scripts/") && !strings.HasPrefix(s.path, "examples/") && !forTests(s.path) {
			n += codeLines(s.lines)
		}
	}
	return n
}

// wordsOfDocs counts the words of README.md and of all pages below docs, their code included: what
// stands between spaces and has a letter or a digit.
func wordsOfDocs(t *testing.T) (n int) {
	for _, part := range []string{"README.md", "docs"} {
		err := fs.WalkDir(os.DirFS(rig.Root), part, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
				return err
			}
			text, err := os.ReadFile(filepath.Join(rig.Root, path))
			for word := range strings.FieldsSeq(string(text)) {
				if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
					n++
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// forTests reports whether a package is there for tests alone: its path has a folder that is named
// so, as ledgertest, delivertest, redistest, rig and redisrig are.
func forTests(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if strings.HasSuffix(name, "test") || strings.HasSuffix(name, "rig") {
			return true
		}
	}
	return false
}

// codeLines counts the lines that a token of Go stands on: all but blank ones and comments.
func codeLines(lines []string) (n int) {
	text := []byte(strings.Join(lines, "\n"))
	file := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	last := 0
	for {
		at, what, literal := s.Scan()
		if what == token.EOF {
			return n
		}
		if what == token.SEMICOLON && literal == "\n" {
			continue // the scanner's own, at the end of a line
		}
		first := file.Line(at)
		n -= max(last-first+1, 0)
		last = first + strings.Count(literal, "\n") // more than one line of a raw string
		n += last - first + 1
	}
}

func TestCodeLines(t *testing.T) {
	const text = "// Package p.\npackage p\n\n/* a\nb */ var x = `\n\n// c` + `d\n`; var y = 1 // e\n\t/* f */\n\nvar z = 1\n"
	if n := codeLines(strings.Split(text, "\n")); n != 6 { // package, four of x and y, z
		t.Errorf("%d lines with code, want 6", n)
	}
}
