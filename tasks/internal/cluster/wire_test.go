package cluster

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// The queries whose conversion is written out lose no field on their way: the golden queries have
// a value in every field.
func TestQueriesKeepAllFields(t *testing.T) {
	keepsAllFields(t, ListMethod.Name, (*wireListQuery).decode, encodeListQuery)
	keepsAllFields(t, RedriveMethod.Name, (*wireRedriveQuery).decode, encodeRedriveQuery)
	keepsAllFields(t, ActMethod.Name,
		func(q *wireAct) engine.ActQuery { return *q.decode() },
		func(q *engine.ActQuery) wireAct { return *encodeAct(q) })
	keepsAllFields(t, PurgeMethod.Name,
		func(q *WirePurgeQuery) engine.PurgeQuery { return engine.PurgeQuery(*q) },
		func(q *engine.PurgeQuery) WirePurgeQuery { return WirePurgeQuery(*q) })
}

// So do figures: those of each field add up.
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

func keepsAllFields[W, Q any](t *testing.T, method string, decode func(*W) Q, encode func(*Q) W) {
	t.Helper()
	text, err := os.ReadFile("../../testdata/questions/v1/" + method + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct{ Question W }
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	q := decode(&golden.Question)
	for v, i := reflect.ValueOf(q), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("%s loses the field %s", method, v.Type().Field(i).Name)
		}
	}
	if back := encode(&q); !reflect.DeepEqual(back, golden.Question) {
		t.Errorf("%s comes back as %+v", method, back)
	}
}
