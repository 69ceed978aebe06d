package receipt

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/tasks/task"
)

func someReceipt(id string) *Receipt {
	return &Receipt{ShardID: 3, Attempt: 9, Revision: 5, Created: 1_800_000_000_001, Nonce: 0x1122334455667788, ID: id}
}

func TestReceiptRoundTrip(t *testing.T) {
	g := NewSigner([]byte("key"))
	for _, id := range []string{"a", "order-42", strings.Repeat("x", task.MaxIDBytes)} {
		got, err := g.Parse(g.Sign(someReceipt(id)))
		if wanted := *someReceipt(id); err != nil || got != wanted {
			t.Errorf("parse = %+v, %v; want %+v", got, err, wanted)
		}
	}
}

// Whatever is changed about a receipt, it is refused.
func TestReceiptForgeries(t *testing.T) {
	g := NewSigner([]byte("key"))
	good := g.Sign(someReceipt("order-42"))
	raw, err := base64.RawURLEncoding.DecodeString(good)
	want(t, "base64", err, nil)
	for i := range raw {
		for bit := range 8 {
			raw[i] ^= 1 << bit
			_, err := g.Parse(base64.RawURLEncoding.EncodeToString(raw))
			want(t, "a receipt with another bit", err, task.ErrReceipt)
			raw[i] ^= 1 << bit
		}
	}
	for _, text := range []string{
		"", "x", "not base64!", good[:len(good)-1], good + "A", good + "=", " " + good, good + "\n", good[:5] + "\r\n" + good[5:],
		strings.Repeat("A", 52), strings.Repeat("A", 10_000), NewSigner([]byte("other key")).Sign(someReceipt("order-42")),
	} {
		_, err := g.Parse(text)
		want(t, text, err, task.ErrReceipt)
	}
}

func FuzzReceipt(f *testing.F) {
	g := NewSigner([]byte("key"))
	good := g.Sign(someReceipt("order-42"))
	for _, text := range []string{good, good[1:], good + good, good + "\n", "", "AQAA", strings.Repeat("_", 300)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := g.Parse(text)
		if err != nil {
			want(t, "parse", err, task.ErrReceipt)
			return
		}
		if again := g.Sign(&r); again != text {
			t.Fatalf("%q is accepted and was signed as %q", text, again)
		}
	})
}

func want(t testing.TB, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s = %v; want %v", what, err, kind)
	}
}
