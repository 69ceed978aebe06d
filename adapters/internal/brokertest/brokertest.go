// Package brokertest has what the tests of the adapters share.
package brokertest

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A Way is what is tested.
type Way interface {
	tasks.Way
	tasks.Tally
}

// Settings checks that a way refuses settings for their fields: by the settings, those that are
// wrong; nil: none.
func Settings(t *testing.T, w Way, cases map[string][]string) {
	t.Helper()
	for settings, fields := range cases {
		_, err := w.Deliverer("orders", json.RawMessage(settings))
		var invalid *tasks.InvalidError
		var got []string
		if errors.As(err, &invalid) {
			for _, f := range invalid.Fields {
				got = append(got, f.Field)
			}
		}
		if (err != nil) != (fields != nil) || !slices.Equal(got, fields) {
			t.Errorf("%s: %v, want faults of %v", settings, err, fields)
		}
	}
}

// Created is when the tasks of Delivery were created.
var Created = time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)

// Delivery is the first attempt of a task.
func Delivery(id string) *tasks.Delivery {
	return &tasks.Delivery{Task: tasks.Task{
		ID: id, Topic: "orders", Due: Created.Add(time.Hour), Created: Created, Revision: 1, Attempt: 1, Payload: []byte(`{"order":42}`),
	}}
}

// Deliverer delivers as a scheduler does.
func Deliverer(t *testing.T, w Way, settings string) (deliver func(ds ...*tasks.Delivery) []error) {
	t.Helper()
	by, err := w.Deliverer("orders", json.RawMessage(settings))
	if err != nil {
		t.Fatal(err)
	}
	return func(ds ...*tasks.Delivery) []error {
		return by.(tasks.BatchDeliverer).DeliverBatch(t.Context(), ds)
	}
}

// Counts checks the counts of a way, of which those that are left out are zero.
func Counts(t *testing.T, w Way, want map[string]int64) {
	t.Helper()
	for name, n := range w.Tally() {
		if n != want[name] {
			t.Errorf("%d attempts were %q, want %d", n, name, want[name])
		}
	}
}
