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
