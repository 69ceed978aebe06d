package cluster

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// Figures keep all of their fields on the way, and those of each field add up.
func TestFiguresKeepAllFields(t *testing.T) {
	full := task.Topic{
		Name: "x", ConcurrencyNow: 1, Undeliverable: "why", LastError: "error", LastFailed: time.Unix(2, 0),
	}
	fill(reflect.ValueOf(&full.Counts).Elem())
	w := encodeTopic(&full)
	got, wanted := w.decode("b"), full
	wanted.Undeliverable = "node b: why"
	if !reflect.DeepEqual(wanted, got) {
		t.Errorf("a topic comes back as %+v", got)
	}
	sum := got
	sum.Add(&full)
	for v, one, i := reflect.ValueOf(sum.Counts), reflect.ValueOf(full.Counts), 0; i < v.NumField(); i++ {
		if n := v.Field(i); n.CanInt() && n.Int() != 2*one.Field(i).Int() {
			t.Errorf("%s is not added", v.Type().Field(i).Name)
		}
	}
	var st, back task.Figures
	fill(reflect.ValueOf(&st).Elem())
	text, err := json.Marshal(st)
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil || !reflect.DeepEqual(st, back) {
		t.Errorf("stats come back as %+v, %v", back, err)
	}
}

// fill gives every number a value.
func fill(v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(1, 0).UTC()))
	case v.CanInt():
		v.SetInt(7)
	case v.Kind() == reflect.String:
		v.SetString("text")
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	}
}
