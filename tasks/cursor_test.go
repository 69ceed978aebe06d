package tasks

import (
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

func TestCursorRoundTrip(t *testing.T) {
	for _, ref := range []recovery.Ref{{ID: "a", Next: 0}, {ID: "order-42", Next: 1 << 62}, {ID: "x", Next: -1}} {
		got, ok := decodeCursor(encodeCursor(ref))
		if !ok || got != ref {
			t.Errorf("decodeCursor = %+v, %v; want %+v", got, ok, ref)
		}
	}
	if ref, ok := decodeCursor(""); !ok || ref != (recovery.Ref{}) {
		t.Errorf("no cursor is %+v, %v", ref, ok)
	}
}

func FuzzCursor(f *testing.F) {
	for _, text := range []string{"", "AAAAAAAAAAE", encodeCursor(recovery.Ref{ID: "order-42", Next: 1}), "AAAAAAAAAAAh", "***", "00\r0000000000"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, ok := decodeCursor(text)
		if ok && text != "" && encodeCursor(ref) != text {
			t.Fatalf("%q is accepted and was made as %q", text, encodeCursor(ref))
		}
		if ok && text != "" && !task.ValidName(ref.ID) {
			t.Fatalf("%q names the id %q", text, ref.ID)
		}
	})
}
