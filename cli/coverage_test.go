package cli

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
)

// What figures lack is said also where one node is left of several.
func TestCoverage(t *testing.T) {
	since := time.Date(2026, 11, 20, 12, 2, 0, 0, time.UTC)
	for want, r := range map[string]client.Reach{
		"":             {Scope: "fleet", Covers: []string{"a"}},
		"node a alone": {Scope: "node", Covers: []string{"a"}},
		"a, b":         {Scope: "fleet", Covers: []string{"a", "b"}},
		"a; the last 5 min without what b had counted until 12:02:00 UTC": {
			Scope: "fleet", Covers: []string{"a"}, RecentWithout: []string{"b"}, RecentSince: &since,
		},
	} {
		if got := coverage(&r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
