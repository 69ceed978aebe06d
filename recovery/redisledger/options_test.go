package redisledger

import (
	"strings"
	"testing"
)

func TestOptions(t *testing.T) {
	_, err := Open(Options{URL: "nonsense", Node: "a b", Prefix: "{x}", Shards: -1, FailoverAfter: 1})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"URL", "node's name", "braces", "number of shards", "others may adopt"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %q", err, part)
		}
	}
}
