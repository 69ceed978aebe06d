package docs

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

// languages are those that a block may have.
var languages = []string{
	"", "sh", "redis", "run", "new shell", // run by TestCommands
	"go", "python", "js", "ts", "sql", "java", "ruby", "php", "csharp", "rust", // programs
	"json", "yaml", "ini", "text", // data
}

// Every program of README.md and docs is tried: a command of its page names its file, or it is part
// of a compiled example, or it stands in the list of what is not run. Data can be read.
func TestPrograms(t *testing.T) {
	examples := compiledExamples(t)
	for _, page := range pages(t) {
		if elsewhere[page] != nil {
			continue
		}
		blocks := blocksOf(page, readPage(t, page))
		for i, b := range blocks {
			switch {
			case !slices.Contains(languages, b.lang):
				t.Errorf("%s:%d: %q is none of %q", page, b.line, b.lang, languages)
			case b.lang == "" && !strings.HasPrefix(b.text, "$ "):
				t.Errorf("%s:%d: a transcript begins with a command; other text has a language", page, b.line)
			case exempt[b.name()] != "", b.lang == "sql": // see TestSQL
			case before.MatchString(b.text): // code of another system
			case b.file != "":
				if !slices.ContainsFunc(blocks[i+1:], func(c block) bool { return hasCommands(c) && strings.Contains(c.text, b.file) }) {
					t.Errorf("%s:%d: no command after it names %s", page, b.line, b.file)
				}
			case b.lang == "go" && strings.Contains(b.text, "package main\n"):
				compile(t, b)
			case b.lang == "go":
				if lines := strange(b.text, examples); len(lines) > 0 {
					t.Errorf("%s:%d: no compiled example has all of its lines; the best one lacks\n%s", page, b.line, strings.Join(lines, "\n"))
				}
			case slices.Contains([]string{"python", "js", "ts", "java", "ruby", "php", "csharp", "rust"}, b.lang):
				if quoted(t, b.text) {
					continue
				}
				t.Errorf("%s:%d: give the program a file name, and a command that runs it", page, b.line)
			case b.lang == "json":
				if !json.Valid([]byte(strings.ReplaceAll(b.text, "...", ""))) {
					t.Errorf("%s:%d: it is no JSON", page, b.line)
				}
			case b.lang == "yaml":
				var any any
				if err := yaml.Unmarshal([]byte(b.text), &any); err != nil {
					t.Errorf("%s:%d: %v", page, b.line, err)
				}
			}
		}
	}
}

// compiledExamples returns the text of each file of examples: those of tests, and the programs of
// folders named example.
func compiledExamples(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() != ".." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case strings.HasPrefix(d.Name(), "example") && strings.HasSuffix(path, "_test.go"),
			strings.HasSuffix(path, "/example/main.go"):
			text, err := os.ReadFile(path)
			all[path] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// quoted reports whether all lines stand in programs of the folder examples, which
// scripts/examples runs.
func quoted(t *testing.T, text string) bool {
	t.Helper()
	var programs strings.Builder
	for _, ending := range []string{".js", ".php", ".py", ".rb", ".ts"} {
		for path, text := range files(t, ending) {
			if strings.HasPrefix(path, "examples/") {
				programs.WriteString(text)
			}
		}
	}
	for line := range strings.Lines(text) {
		if !strings.Contains(programs.String(), strings.TrimSpace(line)) {
			return false
		}
	}
	return true
}

// before is how code begins that is to be replaced.
var before = regexp.MustCompile(`^(#|//) before\b`)

// quiet is how examples write to no log, which pages leave out.
var quiet = strings.NewReplacer(", Log: quiet", "", "quiet)", "tasks.Config{})")

var comment = regexp.MustCompile(`\s*// .*$`)

// strange returns the lines of a program that the example which has most of them lacks. Comments
// and lines of dots do not count.
func strange(program string, examples map[string]string) []string {
	var best []string
	for i, text := range slices.Sorted(maps.Values(examples)) {
		text = quiet.Replace(text)
		var lacks []string
		for line := range strings.Lines(program) {
			line = strings.TrimSpace(comment.ReplaceAllString(strings.TrimSuffix(line, "\n"), ""))
			if line != "" && line != "..." && !strings.HasPrefix(line, "//") && !strings.Contains(text, line) {
				lacks = append(lacks, line)
			}
		}
		if i == 0 || len(lacks) < len(best) {
			best = lacks
		}
	}
	return best
}

// compile has the compiler look at a program, in the module of the adapter that it imports or in
// this one.
func compile(t *testing.T, b block) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(b.text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	vet := exec.CommandContext(ctx, "go", "vet", "-tags", "nomsgpack", file)
	vet.Dir = root
	if adapter := regexp.MustCompile(`lapse/(adapters/\w+)"`).FindStringSubmatch(b.text); adapter != nil {
		vet.Dir = filepath.Join(root, adapter[1])
	}
	if out, err := vet.CombinedOutput(); err != nil {
		t.Errorf("%s:%d: %v\n%s", b.page, b.line, err, out)
	}
}

func TestStrange(t *testing.T) {
	examples := map[string]string{"a": "x := 1\ny := 2\n", "b": "x := 1\n"}
	if got := strange("x := 1 // why\n...\n\ty := 2\n", examples); len(got) != 0 {
		t.Errorf("%q are strange", got)
	}
	if got := strange("y := 2\nz := 3\n", examples); !slices.Equal(got, []string{"z := 3"}) {
		t.Errorf("%q are strange", got)
	}
}
