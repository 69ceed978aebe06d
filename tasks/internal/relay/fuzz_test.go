package relay

import (
	"context"
	"math/rand/v2"
	"testing"
)

type deafBus struct{}

func (deafBus) Listen(func([]byte)) error                  { return nil }
func (deafBus) StopListening(context.Context)              {}
func (deafBus) Send(context.Context, string, []byte) error { return nil }

// message makes a message of another node with one frame.
func messageWith(k kind, rest, body []byte) []byte {
	return appendFrame(appendHeader(nil, header{process{"b", "2"}, 1000}), k, rest, body)
}

func FuzzReceive(f *testing.F) {
	q := call{id: 1, age: 2, ttl: 3000, method: "get", size: 4}
	a := reply{caller: "1", id: 1, status: answered, size: 4}
	large := call{id: 2, ttl: 1, method: "get", size: 1 << 20}
	for _, m := range [][]byte{
		messageWith(callFrame, q.rest(nil), []byte("body")),
		messageWith(callFrame, large.rest(nil), nil),
		messageWith(answerFrame, a.rest(nil), []byte("body")),
		messageWith(notificationFrame, appendText(nil, "tell"), []byte("body")),
		messageWith(withdrawalFrame, appendNumber(nil, 1), nil),
		messageWith(fetchFrame, bodyKey{answerSide, "2", 1}.rest(nil, 0), nil),
		messageWith(pieceFrame, bodyKey{callSide, "2", 2}.rest(nil, 0), []byte("body")),
		messageWith(99, []byte("of a newer version"), nil),
		{magic, version + 1, 1, 'b'},
	} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		r, err := New(Config{Bus: deafBus{}, Node: "a", Incarnation: "1", Answer: func(_ context.Context, q Call) []byte { return q.Body }})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for range 2 {
			r.receive(message)
		}
	})
}

// All that is written can be read.
func TestWire(t *testing.T) {
	for range 1000 {
		number := func() uint64 { return rand.Uint64() >> rand.IntN(64) }
		text := func() string { return string(make([]byte, 1+rand.IntN(maxText))) }
		h := header{process{text(), text()}, number()}
		q := call{number(), number(), number(), number(), text(), 3, []byte("abc")}
		a := reply{text(), number(), status(rand.IntN(5)), 1000, nil}
		key, position := bodyKey{side(rand.IntN(2)), text(), number()}, number()
		b := appendHeader(nil, h)
		b = appendFrame(b, callFrame, q.rest(nil), q.body)
		b = appendFrame(b, answerFrame, a.rest(nil), nil)
		b = appendFrame(b, pieceFrame, key.rest(nil, position), []byte("piece"))
		m := reader{b: b}
		if got, err := m.header(); err != nil || got != h {
			t.Fatalf("%+v became %+v, %v", h, got, err)
		}
		frame := func(want kind) *reader {
			k, rest, more, err := m.frame()
			if err != nil || !more || k != want {
				t.Fatalf("frame of kind %d became %d, %v", want, k, err)
			}
			return &rest
		}
		rest := frame(callFrame)
		if got := rest.call(); rest.bad || string(got.body) != "abc" || got.id != q.id || got.age != q.age || got.ttl != q.ttl || got.echo != q.echo || got.method != q.method {
			t.Fatalf("%+v became %+v", q, got)
		}
		rest = frame(answerFrame)
		if got := rest.reply(); rest.bad || got.body != nil || got.caller != a.caller || got.id != a.id || got.status != a.status || got.size != a.size {
			t.Fatalf("%+v became %+v", a, got)
		}
		rest = frame(pieceFrame)
		if got, at := rest.bodyKey(); rest.bad || got != key || at != position || string(rest.b) != "piece" {
			t.Fatalf("%+v became %+v", key, got)
		}
		if _, _, more, err := m.frame(); more || err != nil {
			t.Fatal("there is more than was written", err)
		}
	}
}

// The bytes of version 1, on which other versions rely.
func TestGolden(t *testing.T) {
	q := call{id: 300, age: 1, ttl: 2000, method: "get", size: 2}
	const want = "L\x01\x01b\x012\xe8\x07" + "\x01\x0d\xac\x02\x01\xd0\x0f\x00\x03get\x02hi"
	if got := string(messageWith(callFrame, q.rest(nil), []byte("hi"))); got != want {
		t.Errorf("a call is %q, want %q", got, want)
	}
	a := reply{caller: "1", id: 300, status: refused}
	const wantAnswer = "L\x01\x01b\x012\xe8\x07" + "\x02\x06\x011\xac\x02\x02\x00"
	if got := string(messageWith(answerFrame, a.rest(nil), nil)); got != wantAnswer {
		t.Errorf("an answer is %q, want %q", got, wantAnswer)
	}
}

// Messages that are not of a relay, or of another version, are counted, and frames after an unknown
// frame are read.
func TestGarbage(t *testing.T) {
	told := make(chan Call, 1)
	r, err := New(Config{Bus: deafBus{}, Node: "a", Incarnation: "1", Answer: func(_ context.Context, q Call) []byte {
		told <- q
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i, m := range [][]byte{nil, []byte("hello"), {magic, version + 1}, messageWith(callFrame, []byte{1}, nil), append(messageWith(withdrawalFrame, appendNumber(nil, 1), nil), 1)} {
		r.receive(m)
		if got := r.Stats().Garbage; got != int64(i+1) {
			t.Errorf("after %q, %d are counted as garbage, want %d", m, got, i+1)
		}
	}
	r.receive(appendFrame(messageWith(99, []byte("of a newer version"), nil), notificationFrame, appendText(nil, "news"), nil))
	if q := <-told; q.Method != "news" || q.From != "b" {
		t.Errorf("told %+v", q)
	}
}
