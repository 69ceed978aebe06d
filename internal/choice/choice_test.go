package choice

import "testing"

func TestText(t *testing.T) {
	for want, values := range map[string][]any{
		"": nil, "a": {"a"}, "a or b": {"a", "b"}, "a, 2 or c": {"a", 2, "c"},
	} {
		if got := Text(values); got != want {
			t.Errorf("%v: %q, want %q", values, got, want)
		}
	}
}
