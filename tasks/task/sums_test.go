package task

import (
	"reflect"
	"testing"
	"time"
)

// Every figure of a node is in the sum, and none of them twice.
func TestFiguresAddUp(t *testing.T) {
	var one, sum Figures
	enter(reflect.ValueOf(&one).Elem(), 3)
	sum = one
	one.FullSweepAt, one.FullSweepTook = one.FullSweepAt.Add(-time.Second), 5
	sum.Add(&one)
	if !sum.FullSweepAt.Equal(one.FullSweepAt) || sum.FullSweepTook != 5 {
		t.Errorf("the last full sweep began at %v and took %v", sum.FullSweepAt, sum.FullSweepTook)
	}
	compare(t, "Figures", reflect.ValueOf(sum), reflect.ValueOf(one), "")

	minute := PastMinute{At: time.Unix(60, 0)}
	enter(reflect.ValueOf(&minute).Elem(), 3)
	both := minute
	both.Add(&minute)
	compare(t, "PastMinute", reflect.ValueOf(both), reflect.ValueOf(minute), "")

	early := Counts{ReadyOldest: time.Unix(5, 0)}
	early.Add(&Counts{DeadOldest: time.Unix(7, 0), ReadyOldest: time.Unix(9, 0)})
	if !early.DeadOldest.Equal(time.Unix(7, 0)) || !early.ReadyOldest.Equal(time.Unix(5, 0)) {
		t.Errorf("the oldest are %v and %v", early.DeadOldest, early.ReadyOldest)
	}
	full := SpoolStats{Condition: "full"}
	addUp(&full, &SpoolStats{Condition: "closed"})
	var empty SpoolStats
	addUp(&empty, &full)
	if full.Condition != "full" || empty.Condition != "full" {
		t.Errorf("the conditions are %q and %q", full.Condition, empty.Condition)
	}
}

// enter gives every figure a value.
func enter(v reflect.Value, n int64) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(n, 0)))
	case v.CanInt():
		v.SetInt(n)
	case v.Kind() == reflect.String:
		v.SetString("text")
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			enter(v.Index(i), n)
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			enter(v.Field(i), n)
		}
	}
}

// compare checks that a sum has twice the numbers of one, or as its fields say.
func compare(t *testing.T, name string, sum, one reflect.Value, how string) {
	t.Helper()
	switch {
	case how == "own" || sum.Type() == reflect.TypeFor[time.Time]():
	case sum.CanInt() && how == "max" && sum.Int() != one.Int(), sum.CanInt() && how == "" && sum.Int() != 2*one.Int():
		t.Errorf("%s is %d of twice %d, %s", name, sum.Int(), one.Int(), how)
	case sum.Kind() == reflect.Array:
		for i := range sum.Len() {
			compare(t, name, sum.Index(i), one.Index(i), how)
		}
	case sum.Kind() == reflect.Struct:
		for f := range sum.Type().Fields() {
			compare(t, name+"."+f.Name, sum.FieldByIndex(f.Index), one.FieldByIndex(f.Index), f.Tag.Get("fleet"))
		}
	}
}

func BenchmarkAddUp(b *testing.B) {
	var c, o Counts
	for b.Loop() {
		c.Add(&o)
	}
}
