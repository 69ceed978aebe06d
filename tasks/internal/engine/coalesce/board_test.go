package coalesce

import (
	"fmt"
	"testing"
	"time"
)

func candidate(group string, due int64, id string) *Candidate {
	return &Candidate{Group: Group{"x", group}, Due: due, Created: 1, ID: id}
}

// The order is total: of two candidates just one is later.
func TestLater(t *testing.T) {
	ascending := []Candidate{
		{Due: 1, Created: 9, ID: "z"}, {Due: 2, Created: 1, ID: "z"}, {Due: 2, Created: 2, ID: "a"}, {Due: 2, Created: 2, ID: "b"},
	}
	for i := range ascending {
		for j := range ascending {
			if got := ascending[i].Later(&ascending[j]); got != (i > j) {
				t.Errorf("%+v is later than %+v: %v", ascending[i], ascending[j], got)
			}
		}
	}
}

// A choice replaces that of its group, and leaves the queue when it ends.
func TestQueue(t *testing.T) {
	var b Board
	first, second, other := NewChoice(candidate("g", 1, "1"), 0, Bounds{}), NewChoice(candidate("g", 2, "2"), 0, Bounds{}), NewChoice(candidate("h", 1, "3"), 0, Bounds{})
	b.Hold(first)
	b.Hold(other)
	b.Hold(second)
	if b.IsOpen(first) || !b.IsOpen(second) || b.OpenIn(second.Group) != second || b.Open() != 2 {
		t.Fatal("the second choice of a group does not replace the first one")
	}
	if c := b.Next(); c != other {
		t.Fatalf("first %+v", c)
	}
	b.Requeue(other)
	if c := b.Next(); c != second {
		t.Fatalf("then %+v", c)
	}
	b.End(second) // while it is not queued
	b.End(other)  // while it is
	if c := b.Next(); c != nil || b.Open() != 0 {
		t.Fatalf("%+v is left of %d", c, b.Open())
	}
}

// A choice is held back no longer than its bounds say.
func TestWaits(t *testing.T) {
	const start = 100 * time.Second
	bounds := Bounds{FailoverAfter: 10 * time.Second, Lease: time.Minute}
	late := bounds
	late.Late = start + 20*time.Second
	for _, test := range []struct {
		bounds Bounds
		known  Standing
		wait   time.Duration
	}{
		{bounds, None, 0}, {bounds, Delivered, 0},
		{bounds, Unsettled, 30 * time.Second},
		{bounds, Waiting, 11 * time.Minute},
		{Bounds{Lease: 24 * time.Hour}, Waiting, 70 * time.Minute},
		{late, Unsettled, 15 * time.Second}, {late, Waiting, 15 * time.Second},
		{Bounds{Late: start - time.Hour}, Waiting, 0},
	} {
		c := NewChoice(candidate("g", 1, "1"), 0, test.bounds)
		c.Restart(start)
		if test.wait > 0 && !c.Waits(test.known, start+test.wait-1) || c.Waits(test.known, start+test.wait) {
			t.Errorf("%+v, %v: it does not wait for %v", test.bounds, test.known, test.wait)
		}
	}
}

// What was let go is remembered for a while, and not more than so many.
func TestRemembers(t *testing.T) {
	var b Board
	b.Acknowledged("x", []byte("g"), []byte("1")) // of which it knows nothing
	b.Remember(candidate("g", 1, "1"), 0)
	b.Acknowledged("x", []byte("g"), []byte("2"))
	b.Acknowledged("y", []byte("g"), []byte("1"))
	if c, acknowledged := b.Remembered(Group{"x", "g"}); c == nil || c.ID != "1" || acknowledged {
		t.Fatalf("%+v, %v", c, acknowledged)
	}
	b.Remember(candidate("g", 2, "2"), time.Minute)
	b.Acknowledged("x", []byte("g"), []byte("2"))
	b.Remember(candidate("g", 1, "1"), time.Minute) // after a later one was acknowledged
	if c, acknowledged := b.Remembered(Group{"x", "g"}); c == nil || c.ID != "2" || !acknowledged {
		t.Fatalf("%+v, %v", c, acknowledged)
	}
	for i := range MostRemembered {
		b.Remember(candidate(fmt.Sprint(i), 1, "1"), 2*time.Minute)
	}
	if c, _ := b.Remembered(Group{"x", "g"}); c != nil || b.letOut.Len() != MostRemembered || len(b.let) != MostRemembered {
		t.Fatalf("%d, %d; %+v", len(b.let), b.letOut.Len(), c)
	}
	gone := func(*Candidate) bool { return false }
	if b.Forget(RememberedFor+2*time.Minute-1, 10, gone) || len(b.let) != MostRemembered {
		t.Fatal("forgotten too soon")
	}
	const now = RememberedFor + 2*time.Minute
	for b.Forget(now, 1000, func(c *Candidate) bool { return c.Name == "7" }) {
	}
	if c, _ := b.Remembered(Group{"x", "7"}); c == nil || len(b.let) != 1 || b.letOut.Len() != 1 {
		t.Fatalf("%d are left; of 7 %+v", len(b.let), c)
	}
	b.Forget(now+RememberedFor, 1, gone)
	if len(b.let)+b.letOut.Len() != 0 {
		t.Fatalf("%d are left", len(b.let))
	}
}

// Acknowledging costs no allocation, whether anything is remembered or not.
func TestAcknowledgedAllocates(t *testing.T) {
	var b Board
	group, id := []byte("a group whose name is longer than what fits on the stack"), []byte("1")
	for range 2 {
		if n := testing.AllocsPerRun(100, func() { b.Acknowledged("x", group, id) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		b.Remember(candidate(string(group), 1, "2"), 0)
	}
}
