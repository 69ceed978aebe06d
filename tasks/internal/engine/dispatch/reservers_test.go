package dispatch

import "testing"

func wasWoken(t *Turn) bool {
	select {
	case <-t.Ready:
		return true
	default:
		return false
	}
}

// Each task wakes one receiver, and one that was woken in vain is still in front of
// those that came after it.
func TestTurns(t *testing.T) {
	var r Reservers
	var a, b, c Turn
	for _, x := range []*Turn{&a, &b, &c} {
		r.Join(x)
	}
	check := func(what string, woken ...bool) {
		t.Helper()
		for i, x := range []*Turn{&a, &b, &c} {
			if wasWoken(x) != woken[i] {
				t.Fatalf("%s: receiver %d is woken: %v", what, i, !woken[i])
			}
		}
	}
	r.Wake(1)
	check("the first task", true, false, false)
	r.Wake(1)
	check("the same one again", true, false, false)
	r.Wake(2)
	check("a second task", true, true, false)
	r.Leave(&b)
	r.Leave(&a)
	r.Join(&b)
	r.Join(&a)
	r.Wake(1)
	check("both were in vain", true, false, false)
	r.Leave(&b) // has gone, unwoken
	r.Wake(2)
	check("behind the one that has gone", true, false, true)
	r.Leave(&a)
	r.Leave(&c)
	if r.Woken != 0 || r.Queue.Len() != 0 {
		t.Errorf("%d woken, %d asleep in the end", r.Woken, r.Queue.Len())
	}
}
