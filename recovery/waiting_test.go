package recovery

import (
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l WaitList
		if got := l.List(); len(got) != 0 {
			t.Errorf("an empty list has %v", got)
		}
		began := time.Now()
		l.Set("b", "the first")
		time.Sleep(time.Second)
		l.Set("a", "x")
		l.Set("b", "the second") // keeps its time
		want := []Waiting{{"b", "the second", began}, {"a", "x", began.Add(time.Second)}}
		if got := l.List(); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("%v, want %v", got, want)
		}
		l.Clear("b")
		l.Clear("b")
		l.Set("b", "again") // waits anew
		if got := l.List(); len(got) != 2 || got[1] != (Waiting{"b", "again", began.Add(time.Second)}) {
			t.Errorf("%v", got)
		}
		for i := range 2 * maxWaiting {
			l.Set(strconv.Itoa(i), "")
		}
		l.Set("a", "y") // is in the list already
		if got := l.List(); len(got) != maxWaiting || !slices.Contains(got, Waiting{"a", "y", began.Add(time.Second)}) {
			t.Errorf("%d entries: %v", len(got), got)
		}
		for i := range 2 * maxWaiting {
			l.Clear(strconv.Itoa(i))
		}
		if got := l.List(); len(got) != 2 {
			t.Errorf("%v", got)
		}
	})
}
