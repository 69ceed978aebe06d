package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRearranged(t *testing.T) {
	for in, want := range map[string]string{
		"":                              "",
		"help":                          "--help",
		"help topics set":               "topics set --help",
		"--version":                     "version",
		"--server u get a":              "get a --server u",
		"--server=u --json topics list": "topics list --server=u --json",
		"--timeout 3s ack -- -r":        "ack --timeout 3s -- -r",
		"get a --server u":              "get a --server u",
		"--server":                      "",
		"topics --server u list":        "topics list --server u",
		"--json dead --timeout 3s list": "dead list --json --timeout 3s",
		"nodes --json":                  "nodes --json",
		"get --json -- -a":              "get --json -- -a",
		"get --server":                  "get --server",
		"--listen x serve":              "--listen x serve",
		"schedule t --payload help":     "schedule t --payload help",
	} {
		if diff := cmp.Diff(want, strings.Join(reorderArgs(strings.Fields(in)), " ")); diff != "" {
			t.Errorf("%q:\n%s", in, diff)
		}
	}
}

// The forms that users try first work.
func TestFirstWords(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"help"}, "Usage: lapse <command>"}, {[]string{"help", "topics", "set"}, "Usage: lapse topics set"},
		{[]string{"--version"}, "lapse "},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), c.args, streams{&out, &errs}); code != exitOK || !strings.HasPrefix(out.String(), c.want) {
			t.Errorf("%q: exit code %d, %s%s", c.args, code, &out, &errs)
		}
	}
}
