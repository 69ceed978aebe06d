package main

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

// Each part measures what was asked for, and nothing else.
func TestBout(t *testing.T) {
	var out strings.Builder
	dir := filepath.Join(t.TempDir(), "data")
	if err := run(t.Context(), []string{"-ledger", "disk", "-dir", dir, "-paths", "lone|list|export|restart|burst"}, strings.NewReader(""), &out); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for lines := json.NewDecoder(strings.NewReader(out.String())); ; {
		var s measure.Sample
		if err := lines.Decode(&s); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if s.Path == "" { // the other side's turn
			continue
		}
		if s.Cost <= 0 || s.Rate <= 0 || s.Allocs <= 0 {
			t.Errorf("%+v", s)
		}
		paths = append(paths, s.Path)
	}
	if got, want := strings.Join(paths, " "), "lone/disk list/disk export/disk restart/disk burst/disk"; got != want {
		t.Errorf("measured %s, want %s", got, want)
	}
}

func TestUnknownLedger(t *testing.T) {
	if err := run(t.Context(), []string{"-ledger", "paper"}, strings.NewReader(""), io.Discard); err == nil || !strings.Contains(err.Error(), `"paper" is none of`) {
		t.Errorf("%v", err)
	}
}
