package query

import (
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

func TestCursorRoundTrip(t *testing.T) {
	for _, ref := range []recovery.Ref{{ID: "a", Next: 0}, {ID: "order-42", Next: 1 << 62}, {ID: "x", Next: -1}} {
		got, ok := DecodeCursor(EncodeCursor(ref))
		if !ok || got != ref {
			t.Errorf("DecodeCursor = %+v, %v; want %+v", got, ok, ref)
		}
	}
	if ref, ok := DecodeCursor(""); !ok || ref != (recovery.Ref{}) {
		t.Errorf("no cursor is %+v, %v", ref, ok)
	}
}

func FuzzCursor(f *testing.F) {
	for _, text := range []string{"", "AAAAAAAAAAE", EncodeCursor(recovery.Ref{ID: "order-42", Next: 1}), "AAAAAAAAAAAh", "***", "00\r0000000000"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, ok := DecodeCursor(text)
		if ok && text != "" && EncodeCursor(ref) != text {
			t.Fatalf("%q is accepted and was made as %q", text, EncodeCursor(ref))
		}
		if ok && text != "" && !task.ValidName(ref.ID) {
			t.Fatalf("%q names the id %q", text, ref.ID)
		}
	})
}
