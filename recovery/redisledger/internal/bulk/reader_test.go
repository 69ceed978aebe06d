package bulk

import (
	"testing"
	"time"
)

// The size of chunks follows the mean size of records, and falls when they are late.
func TestLane(t *testing.T) {
	c := newLane("x", 1)
	want := func(records int, deadline time.Duration) {
		t.Helper()
		if n, d := c.Next(); n != records || d != deadline {
			t.Errorf("the next chunk has %d records within %v, want %d within %v", n, d, records, deadline)
		}
	}
	want(chunkFirst, time.Second)
	for range 10 {
		c.Came(100, 100*100, time.Millisecond)
	}
	want(chunkMost, time.Second)
	c.Came(1000, 1000*65_536, time.Millisecond)
	want(16, time.Second) // about 1 MiB
	c.Came(16, 16*65_536, 500*time.Millisecond)
	want(16, time.Second)
	for n := 16; n > 1; n /= 2 {
		if !c.Late(n, time.Second) {
			t.Fatal("it gives up")
		}
		want(n/2, time.Second)
	}
	for _, d := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, maxPatience} {
		_, before := c.Next()
		if !c.Late(1, before) {
			t.Fatal("it gives up")
		}
		want(1, d)
	}
	if c.Late(1, maxPatience) {
		t.Error("it does not give up")
	}
	c.Came(1, 65_536, time.Second)
	want(1, maxPatience/2)
	c.Came(1, 65_536, 10*time.Second) // not quick
	want(1, maxPatience/2)
}
