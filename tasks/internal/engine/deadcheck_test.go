package engine

import "testing"

// The index of a shard that this process does not hold is not compared.
func TestNoDeadCheckOfAnotherNodesShard(t *testing.T) {
	c := deadCheck{Restoration: Restoration{Engine: &Engine{}}}
	if c.begin() || c.Comparison != nil {
		t.Error("the comparison begins")
	}
}
