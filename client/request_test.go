package client_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
)

// A request has the form of the HTTP API in JSON, and is the same when it is read back.
func TestRequestInJSON(t *testing.T) {
	r := client.Request{ID: "order-7", Topic: "orders", Due: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC), Payload: []byte(`{"n":1}`),
		Headers: map[string]string{"a": "b"}, MaxLateness: time.Minute, Group: "g"}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil || fields["topic"] != "orders" || fields["max_lateness"] != "1m" {
		t.Errorf("it is written as %s, %v", text, err)
	}
	var back client.Request
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("%s is read as %+v, %v", text, back, err)
	}
	for _, wrong := range []string{`{"topic":"t","unknown":1}`, `{"topic":"t","group":""}`, `{"topic":7}`, `[]`} {
		if err := json.Unmarshal([]byte(wrong), &back); err == nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%s: %v, and %+v is left", wrong, err, back)
		}
	}
	if err := json.Unmarshal([]byte("null"), &back); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("null: %v, and %+v is left", err, back)
	}
}
