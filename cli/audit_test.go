package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/client"
)

// What is not certain of an act, and that acts are missing, is told.
func TestAuditTellsDoubts(t *testing.T) {
	var out bytes.Buffer
	auditTable(&out, &client.AuditPage{
		Entries: []client.AuditEntry{{Verb: "pause", Topic: "x", Unknown: true}, {Verb: "resume", Topic: "x"}},
		Partial: "the ledger does not answer",
	})
	for _, want := range []string{"pause, outcome unknown", "resume  ", "acts are missing: the ledger does not answer"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %q", out.String(), want)
		}
	}
}
