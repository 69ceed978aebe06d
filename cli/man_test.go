package cli

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// The manual page has all commands, and groff finds nothing to warn of.
func TestManualPage(t *testing.T) {
	var page, errs bytes.Buffer
	if code := run(t.Context(), []string{"man"}, streams{&page, &errs}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	for _, leaf := range commands(&serve{}).Leaves() {
		if !strings.Contains(page.String(), ".SS "+strings.ReplaceAll(leaf.Path(), "-", `\-`)) {
			t.Errorf("it lacks %s", leaf.Path())
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("there is no groff to read it")
	}
	read := exec.CommandContext(t.Context(), groff, "-man", "-Tascii", "-ww")
	read.Stdin, read.Stderr = &page, &errs
	if text, err := read.Output(); err != nil || errs.Len() > 0 || !bytes.Contains(text, []byte("Serve tasks over HTTP")) {
		t.Errorf("%v: %s", err, &errs)
	}
}
