package metrics

import (
	"regexp"
	"strings"
	"testing"
)

// HELP texts are read one at a time: each says in which unit it counts, of what and since when.
func TestHelpCanBeReadAlone(t *testing.T) {
	// They are the same at every node.
	everywhere := map[string]bool{"build_info": true, "topic_paused": true}
	parts := regexp.MustCompile(`fqName: "lapse_([a-z_]+)", help: "(.*?)", (?:unit|constLabels)`)
	seen := make(map[string]string)
	for _, d := range all {
		m := parts.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		name, help := m[1], m[2]
		says := func(when bool, word string) {
			if when && !strings.Contains(help, word) {
				t.Errorf("%s: its help does not say %q: %s", name, word, help)
			}
		}
		says(!everywhere[name], "node")
		says(strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_duration_seconds") || name == "lateness_seconds", "since")
		says(strings.HasSuffix(name, "_seconds"), "seconds")
		says(strings.HasSuffix(name, "_bytes"), "bytes")
		if !strings.HasSuffix(help, ".") || len(help) < 40 {
			t.Errorf("%s: its help is no sentence that says enough: %s", name, help)
		}
		if other := seen[help]; other != "" {
			t.Errorf("%s and %s have the same help", name, other)
		}
		seen[help] = name
	}
}
