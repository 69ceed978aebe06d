package movein

import (
	"bytes"
	"strings"
	"testing"
)

// While an import waits for what comes, it shows no share of a whole: the bar of a scan that is
// over would stand at 99 % for ever.
func TestProgressWithoutEnd(t *testing.T) {
	var terminal bytes.Buffer
	counts := &Counts{}
	p := NewProgress(&terminal, counts, 0)
	p.Size(200)
	counts.Read.Store(200)
	p.show()
	p.Size(-1)
	counts.Read.Store(201)
	p.show()
	p.Stop()
	shown := terminal.String()
	if !strings.Contains(shown, "99%") || !strings.Contains(shown, "(201/-") {
		t.Errorf("it shows %q", shown)
	}
}
