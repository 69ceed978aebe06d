package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Every command of README.md and docs runs, and prints what the page shows.
func TestCommands(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it runs for most of a minute")
	}
	tools := tools(t)
	only := os.Getenv("LAPSE_PAGE") // while writing a page
	var running sync.WaitGroup
	atOnce := make(chan struct{}, 12)
	failures := make(chan string, 1000) // above what the sessions have printed, which is long
	for _, page := range pages(t) {
		for i, session := range sessions(blocksOf(page, readPage(t, page))) {
			if only != "" && !strings.Contains(page, only) {
				continue
			}
			// They wait most of the time: more at once than there are processors, but not all. As
			// many servers that start keep other tests from the disk for seconds.
			running.Go(func() {
				atOnce <- struct{}{}
				defer func() { <-atOnce }()
				name := filepath.Base(page)
				if i > 0 {
					name += "-" + string(rune('a'+i))
				}
				t.Run(name, func(t *testing.T) {
					runSession(t, tools, session, func(reason string) { failures <- reason })
				})
			})
		}
	}
	running.Wait()
	close(failures)
	for reason := range failures {
		t.Error(reason)
	}
}

// sessions parts the blocks of a page where it begins anew, and leaves those out that have none to
// run.
func sessions(blocks []block) [][]block {
	all := [][]block{nil}
	for _, b := range blocks {
		if b.lang == "new shell" {
			all = append(all, nil)
			continue
		}
		all[len(all)-1] = append(all[len(all)-1], b)
	}
	var some [][]block
	for _, session := range all {
		runs := false
		for _, b := range session {
			runs = runs || hasCommands(b)
		}
		if runs {
			some = append(some, session)
		}
	}
	return some
}

// hasCommands reports whether a block is one that a shell runs.
func hasCommands(b block) bool {
	if elsewhere[b.page] != nil {
		return false
	}
	switch b.lang {
	case "", "sh", "run", "redis":
		return exempt[b.name()] == ""
	}
	return false
}

// optional are programs that pages call and that a machine for tests may lack.
var optional = []string{"beanstalkd", "java", "node", "python3", "ruby"}

// runSession runs the blocks of a page in order.
func runSession(t *testing.T, tools string, blocks []block, failed func(reason string)) {
	for _, b := range blocks {
		if tool, _, _ := strings.Cut(strings.TrimPrefix(b.text, "$ "), " "); hasCommands(b) && slices.Contains(optional, tool) {
			if _, err := exec.LookPath(tool); err != nil {
				t.Skipf("%s:%d: there is no %s", b.page, b.line, tool)
			}
		}
	}
	s := newShell(t, tools, failed)
	if !slices.ContainsFunc(blocks, func(b block) bool { return strings.Contains(b.text, "make build") }) {
		s.linkBinary(tools)
	}
	for _, b := range blocks {
		switch {
		case b.file != "":
			s.write(b.file, s.ports.Replace(b.text))
		case b.lang == "redis":
			words := strings.Join(strings.Fields(b.text), " ")
			s.run(command{page: b.page, line: b.line, text: "redis-cli " + strings.NewReplacer(">", `\>`, "&", `\&`, "*", `\*`, "~", `\~`).Replace(words), output: "OK"})
		case hasCommands(b):
			for _, c := range commandsOf(b) {
				s.run(c)
			}
		}
	}
}
