package spelling

import "strings"

// Near reports whether one slip of a hand makes one name of the other: a byte too much, one too
// few, another one, or two neighbours that have changed their places. Names that differ in a digit
// are meant, as those of tenants.
func Near(a, b string) bool {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	a, b = a[n:], b[n:]
	for a != "" && b != "" && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if len(a) == 2 && len(b) == 2 {
		return a[0] == b[1] && a[1] == b[0]
	}
	return len(a) <= 1 && len(b) <= 1 && a+b != "" && strings.Trim(a+b, "0123456789") != ""
}
