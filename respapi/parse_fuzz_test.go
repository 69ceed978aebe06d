package respapi

import (
	"bytes"
	"testing"
)

// FuzzNumbers checks that sums can be read again, and that an end of a range is read as its text
// says it.
func FuzzNumbers(f *testing.F) {
	for _, text := range []string{"0", "-0", "+1", "01", " 1", "1.5", ".5", "5.", "1e5", "0x1p3", "0x.8", "inf", "-Infinity", "nan", "1_0", "1p5", "1e4932", "1e-4951", "1e999999999", "1-2", "5-", "-1-1", "(1-2", "+", "-"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if a, ok := parseFloat(text); ok {
			sum := addFloat(a, a)
			if _, ok := parseFloat([]byte(sum)); sum != "" && !ok && len(sum) <= mostFloatText {
				t.Errorf("twice %q is %q", text, sum)
			}
		}
		id, exclusive, ok := parseBound(text, 7)
		if !ok {
			return
		}
		again, ok := parseEntryID([]byte(id.String()), 0)
		if !ok || again != id || exclusive != bytes.HasPrefix(text, []byte("(")) {
			t.Errorf("%q is %s, which is %s", text, id, again)
		}
	})
}

// FuzzClasses checks that classes of events are the same when they were told and set again.
func FuzzClasses(f *testing.F) {
	for _, text := range []string{"", "AKE", "KEx", "gAn", "KEA$lshzxetdnm", "Ex ", "\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, ok := parseClasses(text)
		if !ok {
			return
		}
		if again, ok := parseClasses(all.String()); !ok || again|classNew != all|classNew {
			t.Errorf("%q is %s, which is %s", text, all, again)
		}
	})
}
