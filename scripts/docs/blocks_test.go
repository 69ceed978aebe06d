package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

const root = rig.Root

// pages returns the paths of all pages, from the root: README.md, those in docs, and those in
// docs/internals, but for its decisions.
func pages(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md"}
	for _, folder := range []string{"docs", "docs/internals"} {
		found, err := filepath.Glob(filepath.Join(root, folder, "*.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			all = append(all, folder+"/"+filepath.Base(path))
		}
	}
	if len(all) < 10 {
		t.Fatalf("there are only %d pages", len(all))
	}
	return all
}

func readPage(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A block is a fenced block of a page, or a comment for the tests.
type block struct {
	page string
	line int    // of its first line of text
	lang string // "run" and "new shell" of a comment
	file string // the name in the fence, such as hook.py
	text string
}

// name is how exempt_test.go names a block: by its page and its first line.
func (b block) name() string {
	first, _, _ := strings.Cut(strings.TrimSpace(b.text), "\n")
	return b.page + ": " + first
}

var fences = regexp.MustCompile("(?ms)^(?:```([^\n]*)\n(.*?)^```|<!-- run: (.*?) -->|<!-- (new shell) -->)$")

// blocksOf returns the blocks of a page in order.
func blocksOf(page, text string) []block {
	var all []block
	for _, m := range fences.FindAllStringSubmatchIndex(text, -1) {
		group := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return text[m[2*i]:m[2*i+1]]
		}
		b := block{page: page, line: 1 + strings.Count(text[:m[0]], "\n")}
		switch {
		case group(4) != "":
			b.lang = "new shell"
		case group(3) != "":
			b.lang, b.text = "run", group(3)
		default:
			info := strings.Fields(group(1))
			if len(info) > 0 {
				b.lang = info[0]
			}
			if len(info) > 1 {
				b.file = info[1]
			}
			b.line++
			b.text = group(2)
		}
		all = append(all, b)
	}
	return all
}

// A command is a command of a page, with what the page shows of its output.
type command struct {
	page   string
	line   int
	text   string
	output string
	hidden bool // a comment: the reader sees nothing of it
}

// commandsOf takes the commands out of a block: of a transcript those after "$ ", of sh all lines.
// A command goes on in the next line while a quotation or a document in place is open, after a
// backslash, and in sh also where the next line is indented.
func commandsOf(b block) []command {
	if b.lang == "run" {
		return []command{{page: b.page, line: b.line, text: b.text, hidden: true}}
	}
	var all []command
	open := false
	for i, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
		last := len(all) - 1
		start, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case open:
			all[last].text += "\n" + line
			open = unfinished(all[last].text)
		case b.lang == "sh" && (strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#")):
		case b.lang == "sh", isCommand:
			all = append(all, command{page: b.page, line: b.line + i, text: start})
			open = unfinished(start)
		case last >= 0:
			all[last].output += line + "\n"
		}
	}
	return all
}

var (
	heredoc = regexp.MustCompile(`<<-?\s*'?"?(\w+)`)
	control = regexp.MustCompile(`(?m)(?:^|[;&|]\s*|\s)(for|while|until|do|done)\b`)
)

// unfinished reports whether a shell would wait for another line of a command.
func unfinished(text string) bool {
	quote := rune(0)
	escaped := false
	comment := false
	for i, r := range text {
		switch {
		case comment:
			comment = r != '\n'
		case escaped:
			escaped = false
		case r == '\\' && quote != '\'':
			escaped = true
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '\'' || r == '"':
			quote = r
		case r == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\n'):
			comment = true
		}
	}
	if quote != 0 || escaped || strings.HasSuffix(strings.TrimSpace(text), "|") {
		return true
	}
	if m := heredoc.FindStringSubmatch(text); m != nil {
		return !slices.Contains(strings.Split(text, "\n")[1:], m[1])
	}
	do, done := 0, 0
	for _, m := range control.FindAllStringSubmatch(text, -1) {
		switch m[1] {
		case "do":
			do++
		case "done":
			done++
		}
	}
	return do > done
}

func TestBlocks(t *testing.T) {
	text := "# A\n\n<!-- run: lapse serve & -->\n```\n$ echo 'a\nb'\na\nb\n$ cat <<END\nx\nEND\nx\n```\n" +
		"<!-- new shell -->\n```python hook.py\nprint(1)\n```\n```sh\n# one\nls \\\n  -l\n\npwd\n```\n"
	all := blocksOf("p.md", text)
	var names []string
	var commands []command
	for _, b := range all {
		names = append(names, b.lang+"/"+b.file)
		if b.lang != "python" {
			commands = append(commands, commandsOf(b)...)
		}
	}
	if want := []string{"run/", "/", "new shell/", "python/hook.py", "sh/"}; !slices.Equal(names, want) {
		t.Errorf("the blocks are %q, want %q", names, want)
	}
	want := []command{
		{"p.md", 3, "lapse serve &", "", true},
		{"p.md", 5, "echo 'a\nb'", "a\nb\n", false},
		{"p.md", 9, "cat <<END\nx\nEND", "x\n", false},
		{"p.md", 20, "ls \\\n  -l", "", false},
		{"p.md", 23, "pwd", "", false},
	}
	if !slices.Equal(commands, want) {
		t.Errorf("the commands are\n%+v, want\n%+v", commands, want)
	}
}
