package task

import (
	"strings"
	"testing"
)

func TestParseTrace(t *testing.T) {
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	const parent = "00-" + trace + "-" + span + "-01"
	members := strings.Repeat("a=1,", 40)
	for _, c := range []struct{ parent, state, wantParent, wantState string }{
		{parent, "", parent, ""},
		{parent, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7", parent, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"},
		{parent, "a=1, ,b=2", parent, "a=1, ,b=2"},
		{"00-" + trace + "-" + span + "-00", "", "00-" + trace + "-" + span + "-00", ""},
		{"cc-" + trace + "-" + span + "-01", "", parent, ""},
		{"cc-" + trace + "-" + span + "-01-what-comes-later", "", parent, ""},

		{parent, "no-value", parent, ""},
		{parent, "=v", parent, ""},
		{parent, "a=\x01", parent, ""},
		{parent, "a=ü", parent, ""},
		{parent, members, parent, ""},
		{parent, "a=" + strings.Repeat("x", 511), parent, ""},

		{"", "a=1", "", ""},
		{parent + "-more", "", "", ""},
		{parent[:54], "a=1", "", ""},
		{"cc" + parent[2:] + "x", "", "", ""},
		{"ff-" + trace + "-" + span + "-01", "", "", ""},
		{"0x-" + trace + "-" + span + "-01", "", "", ""},
		{"00-" + strings.ToUpper(trace) + "-" + span + "-01", "", "", ""},
		{"00-" + strings.Repeat("0", 32) + "-" + span + "-01", "", "", ""},
		{"00-" + trace + "-" + strings.Repeat("0", 16) + "-01", "", "", ""},
		{"00_" + trace + "-" + span + "-01", "", "", ""},
		{"00-" + trace + "_" + span + "-01", "", "", ""},
		{"00-" + trace + "-" + span + "_01", "", "", ""},
		{"00-" + trace + "-" + span + "-0g", "", "", ""},
		{strings.Repeat("-", 55), "", "", ""},
	} {
		if got := ParseTrace(c.parent, c.state); got != (TraceContext{c.wantParent, c.wantState}) {
			t.Errorf("ParseTrace(%q, %q) = %q", c.parent, c.state, got)
		}
	}
}
