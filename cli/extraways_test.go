package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/tasks"
)

// A parrot is a way of delivery of the calling program.
type parrot chan string

func (p parrot) Kind() tasks.Kind { return "parrot" }

func (p parrot) Deliverer(topic string, settings json.RawMessage) (tasks.Deliverer, error) {
	if string(settings) != "{}" {
		return nil, &tasks.InvalidError{Fields: []tasks.FieldError{{Field: "seed", Problem: "is none of its affairs"}}}
	}
	return tasks.HandlerFunc(func(_ context.Context, d *tasks.Delivery) error {
		p <- d.ID + " of " + topic
		return nil
	}), nil
}

// A way of delivery that is passed to Main is one like all others: for topics of the API and of the
// file, and in what is refused.
func TestExtraWay(t *testing.T) {
	said := make(parrot, 1)
	config := configured(t, "topics:\n  seeded: {delivery: {kind: parrot}}\n")
	url, stop := startedWith(t, []tasks.Way{said}, "--data", t.TempDir(), "--config", config)
	answered(t, http.StatusOK, put(url+"/v1/topics/set", `{"delivery":{"kind":"parrot"}}`))
	for _, topic := range []string{"set", "seeded"} {
		answered(t, http.StatusCreated, post(url+"/v1/tasks", `{"id":"a-`+topic+`","topic":"`+topic+`","delay":"0s"}`))
		if got, want := <-said, "a-"+topic+" of "+topic; got != want {
			t.Errorf("delivered was %q, want %q", got, want)
		}
	}
	answered(t, http.StatusUnprocessableEntity, put(url+"/v1/topics/set", `{"delivery":{"kind":"parrot","seed":1}}`))
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"serve", "--data", t.TempDir()}, streams{&out, &errs}, said, said); code != exitUsage || !strings.Contains(errs.String(), "parrot") {
		t.Errorf("with two of a kind: exit code %d, %s", code, &errs)
	}
}
