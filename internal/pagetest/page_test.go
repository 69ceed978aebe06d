package pagetest

import (
	"strings"
	"testing"
)

func TestWrap(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("word ", 22)) // 109 columns
	for _, test := range []struct{ text, want string }{
		{"short\nlines stay\n", "short\nlines stay\n"},
		{long + "\nend\n\nnext\n", long[:99] + "\n" + long[100:] + " end\n\nnext\n"},
		{"- " + long + "\n- b\n", "- " + long[:94] + "\n  " + long[95:] + "\n- b\n"},
		{long[:94] + " `a code span`\n", long[:94] + "\n`a code span`\n"},
		{"| " + long + " |\n# " + long + "\n```\n" + long + "\n```\n", "| " + long + " |\n# " + long + "\n```\n" + long + "\n```\n"},
	} {
		if got := Wrap(test.text); got != test.want {
			t.Errorf("Wrap(%q) = %q, not %q", test.text, got, test.want)
		}
	}
}
