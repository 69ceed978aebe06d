package tasks

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

func someReceipt(id string) *receipt {
	return &receipt{shardID: 3, attempt: 9, revision: 5, created: 1_800_000_000_001, nonce: 0x1122334455667788, id: id}
}

func TestReceiptRoundTrip(t *testing.T) {
	g := newSigner([]byte("key"))
	for _, id := range []string{"a", "order-42", strings.Repeat("x", MaxIDBytes)} {
		got, err := g.parse(g.sign(someReceipt(id)))
		if wanted := *someReceipt(id); err != nil || got != wanted {
			t.Errorf("parse = %+v, %v; want %+v", got, err, wanted)
		}
	}
}

// Whatever is changed about a receipt, it is refused.
func TestReceiptForgeries(t *testing.T) {
	g := newSigner([]byte("key"))
	good := g.sign(someReceipt("order-42"))
	raw, err := base64.RawURLEncoding.DecodeString(good)
	want(t, "base64", err, nil)
	for i := range raw {
		for bit := range 8 {
			raw[i] ^= 1 << bit
			_, err := g.parse(base64.RawURLEncoding.EncodeToString(raw))
			want(t, "a receipt with another bit", err, ErrReceipt)
			raw[i] ^= 1 << bit
		}
	}
	for _, text := range []string{
		"", "x", "not base64!", good[:len(good)-1], good + "A", good + "=", " " + good, good + "\n", good[:5] + "\r\n" + good[5:],
		strings.Repeat("A", 52), strings.Repeat("A", 10_000), newSigner([]byte("other key")).sign(someReceipt("order-42")),
	} {
		_, err := g.parse(text)
		want(t, text, err, ErrReceipt)
	}
}

func FuzzReceipt(f *testing.F) {
	g := newSigner([]byte("key"))
	good := g.sign(someReceipt("order-42"))
	for _, text := range []string{good, good[1:], good + good, good + "\n", "", "AQAA", strings.Repeat("_", 300)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := g.parse(text)
		if err != nil {
			want(t, "parse", err, ErrReceipt)
			return
		}
		if again := g.sign(&r); again != text {
			t.Fatalf("%q is accepted and was signed as %q", text, again)
		}
	})
}

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
