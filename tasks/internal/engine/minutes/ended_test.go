package minutes

import (
	"strconv"
	"testing"
)

// What is older than a day is forgotten, and makes room; what is beyond the bound counts in the row
// for others.
func TestEnded(t *testing.T) {
	const start = 1_800_000_000_000
	var e Ended
	e.Turn(start)
	now := MinuteOf(start)
	if e.Row("x", now-Remembered-1) != nil || e.Row("x", now+Remembered+1) != nil {
		t.Error("it remembers minutes that are too far away")
	}
	e.Row("x", now).Delivered = 2
	if r := e.Row("x", now); r.Delivered != 2 || r.Topic != "x" || r.Minute != now {
		t.Errorf("%+v", r)
	}
	for i := range MaxRows {
		e.Row("topic-"+strconv.Itoa(i), now+1).Dead++
	}
	if r := e.Row("late", now+1); r.Topic != "" || e.named != MaxRows {
		t.Errorf("beyond the bound: %+v, %d rows", r, e.named)
	}
	seen := 0
	for from := 0; ; {
		if from = e.Visit(now+1, from, 256, func(*Row) { seen++ }); from == 0 {
			break
		}
	}
	if seen != MaxRows+1-1 { // one of them is of x, in another minute; one is for others
		t.Errorf("%d rows were visited", seen)
	}
	e.Turn(start + (Remembered+1)*60_000)
	if n := e.Visit(now, 0, 9, func(*Row) { t.Error("a minute is not forgotten") }); n != 0 || e.named != MaxRows-1 {
		t.Errorf("%d rows are left", e.named)
	}
	e.Turn(start + 10*Remembered*60_000)
	if e.named != 0 && e.of(now+1).minute == now+1 {
		t.Errorf("after days there are %d rows", e.named)
	}
}

// What ends once a look has counted it counts as ended after the look, and for others at once.
func TestEndedInALook(t *testing.T) {
	e := NewEnded()
	e.Turn(1_800_000_000_000)
	now := MinuteOf(e.Now)
	passed := uint32(0)
	e.Look(func(slot uint32) bool { return slot < passed })
	check := func(what string, delivered, all int64) {
		t.Helper()
		r := e.Row("x", now)
		if c := r.All(); r.Delivered != delivered || c.Delivered != all {
			t.Errorf("%s: %d are delivered, and %d in all; want %d, %d", what, r.Delivered, c.Delivered, delivered, all)
		}
	}
	e.In(e.Row("x", now), 7).Delivered++
	check("before it is counted", 1, 1)
	passed = 8
	for range 2 {
		e.In(e.Row("x", now), 7).Delivered++
		e.In(e.Row("y", now), 7).Dead++
		e.In(e.Row("x", now), 9).Delivered++
	}
	check("once it is counted", 3, 5)
	if e.Looked(1) || !e.Looked(1) {
		t.Error("it adds other rows than those with late ends")
	}
	check("after the look", 5, 5)
	if r := e.Row("y", now); r.Dead != 2 {
		t.Errorf("%d are dead", r.Dead)
	}
	e.In(e.Row("x", now), 7).Delivered++
	check("without a look", 6, 6)
}
