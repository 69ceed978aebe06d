package engine

import "testing"

// The index of a shard that this process does not hold is not compared.
func TestNoDeadCheckOfAnotherNodesShard(t *testing.T) {
	c := deadCheck{Engine: &Engine{}}
	if c.begin() || len(c.Dead.checks) != 0 {
		t.Error("the comparison begins")
	}
}
