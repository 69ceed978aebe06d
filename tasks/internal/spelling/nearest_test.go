package spelling

import "testing"

func TestNearest(t *testing.T) {
	all := []string{"order.unpaid", "order.paid", "coupon", "x"}
	for name, want := range map[string]string{
		"order.unpiad":  "order.unpaid", // two letters in the wrong order
		"order.unpayed": "order.unpaid",
		"orderunpaid":   "order.unpaid",
		"coupons":       "coupon",
		"cuopon":        "coupon",
		"session":       "",
		"y":             "", // any letter is one edit from another
		"":              "",
	} {
		if got := Nearest(name, all); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"ab", "", 2}, {"ab", "ba", 1}, {"abc", "abc", 0}, {"abc", "axc", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3}} {
		if got := edits(c.a, c.b, 9); got != c.want {
			t.Errorf("%q to %q: %d edits, want %d", c.a, c.b, got, c.want)
		}
	}
}
