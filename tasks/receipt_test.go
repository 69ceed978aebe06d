package tasks

import (
	"encoding/base64"
	"strings"
	"testing"
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
