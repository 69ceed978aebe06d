package main

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// The list cannot rot: each entry can be planted in the code as it is, and names tests that there
// are.
func TestListApplies(t *testing.T) {
	const root = rig.Root
	all, err := parse(list)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{} // of the tests, by package
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	seen := map[string]int{}
	for _, m := range all {
		if err := applies(root, m); err != nil {
			t.Errorf("%v: %v", m, err)
		}
		if other := seen[m.key()]; other != 0 {
			t.Errorf("%v: entry %d is the same", m, other)
		}
		seen[m.key()] = m.number
		if names[m.pkg] == nil {
			files, _ := filepath.Glob(filepath.Join(root, m.pkg, "*_test.go"))
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, found := range declared.FindAllStringSubmatch(string(text), -1) {
					names[m.pkg] = append(names[m.pkg], found[1])
				}
			}
		}
		if run, err := regexp.Compile(m.run); err != nil || !slices.ContainsFunc(names[m.pkg], run.MatchString) {
			t.Errorf("%v: no test of %s matches %q: %v", m, m.pkg, m.run, err)
		}
	}
	if len(all) < 150 {
		t.Errorf("%d entries", len(all))
	}
}

const sample = `package p

type box[T any] struct{ v T }

// get is a method of a generic type.
func (b *box[T]) get() (T, bool) { return b.v, true }

func (box[T]) put(_ int, more ...T) { _ = more }

func pick[K comparable, V any](m map[K]V, k K) (v V) { v = m[k]; return v }

func sum(ns ...int) (total int) {
	for _, n := range ns {
		total += n
	}
	return total
}

var limit = 3
`

// Faults behind a switch leave a file that compiles, with each function beside its copies.
func TestSwitched(t *testing.T) {
	mutants := []*mutant{
		{number: 1, inside: "get", from: "true", to: "false"},
		{number: 2, inside: "put", from: "_ = more", to: "_ = more[1:]"},
		{number: 3, inside: "pick", from: "v = m[k]", to: "_ = m[k]"},
		{number: 4, from: "total += n", to: "total -= n"},
		{number: 5, inside: "sum", from: "return total", to: "return 0"},
	}
	s, err := read("p.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.switched(mutants)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, one := range []string{text, s.switchFile()} {
		f, err := parser.ParseFile(set, "", one, 0)
		if err != nil {
			t.Fatalf("%v:\n%s", err, one)
		}
		files = append(files, f)
	}
	cfg := types.Config{Importer: importer.ForCompiler(set, "source", nil)}
	if _, err := cfg.Check("p", set, files, nil); err != nil {
		t.Errorf("%v:\n%s", err, text)
	}
	for _, piece := range []string{
		"switch lapseMutant { case 1: return b.getMutant1(); }", "func (b *box[T]) getMutant1() (T, bool) { return b.v, false }",
		"case 2: mutantArg1.putMutant2(mutantArg2, more...); return;", "case 3: return pickMutant3[K, V](m, k);",
		"case 4: return sumMutant4(ns...); case 5: return sumMutant5(ns...);", "//line mutant-4:1\n",
	} {
		if !strings.Contains(text, piece) {
			t.Errorf("%q is missing in\n%s", piece, text)
		}
	}
	for _, m := range []*mutant{{from: "limit = 4"}, {from: "return"}, {inside: "get", from: "total"}} {
		if _, _, err := s.find(m); err == nil {
			t.Errorf("%q in %q is found", m.from, m.inside)
		}
	}
	if _, f, err := s.find(&mutant{from: "limit = 3"}); f != nil || err != nil {
		t.Errorf("outside functions: %v, %v", f, err)
	}
}

func TestBadLists(t *testing.T) {
	const above = "file a.go\ntest ./a Test\n\n"
	for _, text := range []string{
		"1 no file above\n- a\n+ b\n", "file a.go\n\n1 no test above\n- a\n+ b\n", "file a.go\ntest ./a\n", above + "x no promise\n- a\n+ b\n",
		above + "1 nothing\n", above + "1 the same\n- a\n+ a\n", above + "1 twice\n- a\n- b\n", above + "1 turned round\n+ a\n- b\n",
	} {
		if all, err := parse(text); err == nil {
			t.Errorf("%q is read as %v", text, all)
		}
	}
	all, err := parse("# note\n" + above + "1 one\n@ f\n- a\n+ b\n\n- two\n- c\n+ \n= why\n")
	if err != nil || len(all) != 2 || all[0].inside != "f" || all[1].to != "" || all[1].same != "why" || all[1].promise != "-" || all[1].pkg != "./a" {
		t.Errorf("%v, %v", all, err)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		n    int
		some string
		want bool
	}{{7, "", true}, {7, "7", true}, {7, "1 5-8", true}, {7, "8-9", false}, {7, "x 7-y", false}} {
		if got := isNumbered(c.n, strings.Fields(c.some)); got != c.want {
			t.Errorf("%d in %q: %v", c.n, c.some, got)
		}
	}
}
