package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// files reads all files of the repository with one ending, by their paths from the root.
func files(t *testing.T, ending string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ending):
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	outside = regexp.MustCompile(`^[a-z]+:`)
	notWord = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are what GitHub makes of the headings.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := notWord.ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}

// Every link within the repository leads somewhere.
func TestLinks(t *testing.T) {
	pages := files(t, ".md")
	for page, text := range pages {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if outside.MatchString(m[1]) {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: there is no %s", page, m[1])
			} else if anchor != "" && !anchors(pages[target])[anchor] {
				t.Errorf("%s: %s has no heading %s", page, target, anchor)
			}
		}
	}
}

// Every test that a page names exists: a promise without its test is only a claim.
func TestNamedTestsExist(t *testing.T) {
	var code strings.Builder
	for path, text := range files(t, ".go") {
		if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "ledgertest") {
			code.WriteString(text)
		}
	}
	for page, text := range files(t, ".md") {
		for _, name := range regexp.MustCompile("`(Test[A-Z]\\w+)").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(code.String(), "\nfunc "+name[1]+"(") {
				t.Errorf("%s names %s, which does not exist", page, name[1])
			}
		}
	}
}

// Every Go file that a page names with its folder exists, from the root or from the folders that
// docs/internals/architecture.md leaves out.
func TestNamedFilesExist(t *testing.T) {
	named := regexp.MustCompile("`([\\w-]+/[\\w/-]+\\.go)`")
	for page, text := range files(t, ".md") {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			found := false
			for _, below := range []string{".", "tasks/internal", "recovery/redisledger/internal"} {
				_, err := os.Stat(filepath.Join(root, below, m[1]))
				found = found || err == nil
			}
			if !found {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
}

var (
	vague     = regexp.MustCompile(`(?i)\b(somebody|nobody|whoever|anybody|everybody)\b`)
	packageOf = regexp.MustCompile(`(?m)^package (\w+)$`)
)

// Prose in Markdown has lines of at most 100 columns and names its nouns. Tables and code keep
// their lines.
func TestProse(t *testing.T) {
	const columns = 100
	for page, text := range files(t, ".md") {
		// The lines of code stay, empty, so that the others keep their numbers.
		text = fence.ReplaceAllStringFunc(text, func(code string) string {
			return strings.Repeat("\n", strings.Count(code, "\n"))
		})
		for i, line := range strings.Split(text, "\n") {
			if n := utf8.RuneCountInString(line); n > columns && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d: %d columns, at most %d", page, i+1, n, columns)
			}
			if word := vague.FindString(codeSpan.ReplaceAllString(line, "")); word != "" {
				t.Errorf("%s:%d: %q: name the caller, receiver, node or owner", page, i+1, word)
			}
		}
	}
}

// The last column of the glossary names what exists: `package.Name` is declared, or used, there.
func TestGlossary(t *testing.T) {
	code := map[string]string{}
	for path, text := range files(t, ".go") {
		if name := packageOf.FindStringSubmatch(text); name != nil && !strings.HasSuffix(path, "_test.go") {
			code[name[1]] += text
		}
	}
	rows, last := 0, ""
	for line := range strings.Lines(readPage(t, "docs/internals/glossary.md")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || strings.HasPrefix(cells[1], " ---") || cells[1] == " word " {
			continue
		}
		rows++
		if word := strings.ToLower(cells[1]); word <= last {
			t.Errorf("%s is out of order, or has two rows", cells[1])
		} else {
			last = word
		}
		for _, span := range codeSpan.FindAllString(cells[4], -1) {
			of, names, _ := strings.Cut(strings.Trim(span, "`"), ".")
			for name := range strings.SplitSeq(names, ".") {
				if !regexp.MustCompile(`\b` + name + `\b`).MatchString(code[of]) {
					t.Errorf("%s: package %s has no %s", cells[1], of, name)
				}
			}
		}
	}
	if rows < 100 {
		t.Errorf("the glossary has %d rows of four columns", rows)
	}
}
