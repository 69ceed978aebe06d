package examples

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// An example is a folder of examples.
type example struct {
	name    string
	dir     string
	command string // for a shell
	prints  string // among what else it prints
}

// page is the form of a README.md: one command, and then what it prints.
var page = regexp.MustCompile("(?s)\n```sh\n([^\n]+)\n```\n\n```text\n(.+?\n)```\n")

// examples reads the README.md of each example.
func examples(t *testing.T) (all []example) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(rig.Root, "examples", "*", "README.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are %d examples; %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(file)
		e := example{name: filepath.Base(dir), dir: dir}
		if m := page.FindStringSubmatch(string(text)); m != nil {
			e.command, e.prints = m[1], m[2]
		}
		if e.command == "" || strings.Count(string(text), "\n```") != 4 {
			t.Errorf("%s has to have one line of sh, and then what it prints as text", file)
		}
		if lines := strings.Count(string(text), "\n"); lines > 40 {
			t.Errorf("%s has %d lines; at most 40 are read", file, lines)
		}
		all = append(all, e)
	}
	return all
}

// Each example has a page with its command, and a line in the list of examples.
func TestPages(t *testing.T) {
	list, err := os.ReadFile(filepath.Join(rig.Root, "examples", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range examples(t) {
		if !strings.Contains(string(list), "("+e.name+"/README.md)") {
			t.Errorf("examples/README.md does not name %s", e.name)
		}
	}
}
