package spelling

import "testing"

func TestNear(t *testing.T) {
	for _, c := range []struct {
		a, b string
		near bool
	}{
		{"order.unpiad", "order.unpaid", true}, {"order.unpaid", "order.unpiad", true},
		{"orderunpaid", "order.unpaid", true}, {"coupons", "coupon", true}, {"coupan", "coupon", true},
		{"aab", "ab", true}, {"ab", "aab", true}, {"", "a", true},
		{"order.unpaid", "order.unpaid", false}, {"", "", false}, {"order.paid", "order.unpaid", false},
		{"tenant.001", "tenant.002", false}, {"tenant.1", "tenant.11", false}, {"abc", "cba", false},
		{"session", "order", false},
	} {
		if near := Near(c.a, c.b); near != c.near {
			t.Errorf("%q for %q: %v", c.a, c.b, near)
		}
	}
}
