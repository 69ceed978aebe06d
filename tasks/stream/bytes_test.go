package stream

import (
	"strings"
	"testing"

	"github.com/lapsehq/lapse/tasks"
)

// A pipeline is cut by the sizes that its commands report, so they must not report less.
func TestCommandKnowsItsSize(t *testing.T) {
	d := &tasks.Delivery{Task: tasks.Task{ID: "a", Topic: "t", Payload: []byte("{}"), Headers: map[string]string{"a": strings.Repeat("x", 8000)}}}
	if c := (&adder{stream: "s"}).command("s", d); c.Bytes < 8000 {
		t.Errorf("%d bytes", c.Bytes)
	}
}
