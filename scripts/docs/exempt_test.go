package docs

import "testing"

// exempt are the blocks that no test runs, by page and first line, with the reason. The list may
// only shrink: what a new page shows is run.
var exempt = map[string]string{}

// mostExempt is how many blocks are exempt. It may only be lowered.
const mostExempt = 0

func TestExempt(t *testing.T) {
	if len(exempt) > mostExempt {
		t.Errorf("%d blocks are not run, at most %d may be", len(exempt), mostExempt)
	}
	found := map[string]bool{}
	for _, page := range pages(t) {
		for _, b := range blocksOf(page, readPage(t, page)) {
			found[b.name()] = true
		}
	}
	for name, reason := range exempt {
		if !found[name] {
			t.Errorf("%s is gone: take it off the list", name)
		}
		if reason == "" {
			t.Errorf("%s: why is it not run?", name)
		}
	}
}
