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

// FuzzTrace checks that a trace context which is sent on is valid, and can be read again.
func FuzzTrace(f *testing.F) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, state := range []string{"", "a=b", "a=b,c=d", "=b", "a", "a=\x7f", " a=b , "} {
		f.Add(parent, state)
	}
	f.Add("cc"+parent[2:]+"-more", "a=b")
	f.Add(parent+"-", "")
	f.Fuzz(func(t *testing.T, parent, state string) {
		c := ParseTrace(parent, state)
		if c != (TraceContext{}) && (len(c.Parent) != 55 || ParseTrace(c.Parent, c.State) != c) {
			t.Errorf("%q, %q is %+v", parent, state, c)
		}
		if strings.ContainsAny(c.State, "\r\n") || len(c.State) > maxTraceState {
			t.Errorf("the state is %q", c.State)
		}
	})
}
