package cluster

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// The queries whose conversion is written out lose no field on their way: the golden queries have
// a value in every field.
func TestQueriesKeepAllFields(t *testing.T) {
	keepsAllFields(t, ListMethod.Name, (*wireListQuery).decode, encodeListQuery)
	keepsAllFields(t, RedriveMethod.Name, (*wireRedriveQuery).decode, encodeRedriveQuery)
	keepsAllFields(t, PurgeMethod.Name,
		func(q *WirePurgeQuery) engine.PurgeQuery { return engine.PurgeQuery(*q) },
		func(q *engine.PurgeQuery) WirePurgeQuery { return WirePurgeQuery(*q) })
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
