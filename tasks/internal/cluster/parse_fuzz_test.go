package cluster

import (
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/portable"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// FuzzCursors checks that a cursor which is taken is one that was made.
func FuzzCursors(f *testing.F) {
	export := exportCursor{Version: exportVersion, Way: portable.Way{Pass: portable.Buried, Since: store.Marks{"1": 2}}, Round: 2, Topic: "t"}
	for _, text := range []string{"", "***", "AQ", query.ActCursor{Stamp: 1, Digest: 2}.Encode(), query.ActCursor{After: recovery.Ref{ID: "a", Next: 3}}.Encode(), export.encode(), (&exportCursor{Version: exportVersion, Round: -1}).encode()} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if c, ok := query.DecodeActCursor(text); ok && c.Encode() != text {
			t.Errorf("%q is taken, and was made as %q", text, c.Encode())
		}
		c, ok := decodeExportCursor(text)
		if !ok {
			return
		}
		if c.Round < 0 || c.Round >= exportRounds || c.Pass > portable.Requeued {
			t.Errorf("%q is taken as %+v", text, c)
		}
		if _, ok := decodeExportCursor(c.encode()); !ok && len(c.encode()) <= MaxExportCursor {
			t.Errorf("%q is taken, and not what is made of it: %q", text, c.encode())
		}
	})
}
