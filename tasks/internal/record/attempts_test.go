package record

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawAttempt(t *rapid.T) PastAttempt {
	text := func(label string) []byte { return rapid.SliceOfN(rapid.Byte(), 0, 256).Draw(t, label) }
	a := PastAttempt{
		Outcome: rapid.Uint8Range(0, Outcomes-1).Draw(t, "outcome"), Number: rapid.Uint32().Draw(t, "number"),
		Ended: rapid.Int64().Draw(t, "ended"), Took: rapid.Int64().Draw(t, "took"), By: []byte("by"), Error: []byte("error"),
	}
	if rapid.Bool().Draw(t, "others") {
		a.By, a.Error = text("by"), text("error")
	}
	return a
}

func drawAttempts(t *rapid.T) (raw []byte) {
	for range rapid.IntRange(0, MaxAttempts+2).Draw(t, "attempts") {
		raw = AppendAttempt(raw, drawAttempt(t))
	}
	return raw
}

// Whatever attempts fail, their record has the last ones, as many as its bounds allow.
func TestAttemptsAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var raw []byte
		var all []PastAttempt
		for range rapid.IntRange(1, 2*MaxAttempts).Draw(t, "attempts") {
			a := drawAttempt(t)
			before := bytes.Clone(raw)
			was := raw
			all, raw = append(all, a), AppendAttempt(raw, a)
			if !bytes.Equal(was, before) {
				t.Fatal("the attempts before were changed")
			}
			got, err := DecodeAttempts(raw)
			if err != nil || len(got) == 0 || len(got) > MaxAttempts || len(raw) > MaxAttemptBytes {
				t.Fatalf("%d attempts in %d bytes, %v", len(got), len(raw), err)
			}
			wanted := all[len(all)-len(got):]
			if diff := cmp.Diff(wanted, got, cmp.Comparer(bytes.Equal)); diff != "" {
				t.Fatal(diff)
			}
			if len(got) < min(len(all), MaxAttempts) {
				one := encodeAttempts(nil, all[len(all)-len(got)-1:])
				if len(one) <= MaxAttemptBytes {
					t.Fatalf("one more attempt would have fit: %d bytes", len(one))
				}
			}
		}
	})
}

// Attempts that fail alike cost little.
func TestAlikeAttemptsAreSmall(t *testing.T) {
	var raw []byte
	for i := range 20 {
		raw = AppendAttempt(raw, PastAttempt{
			Number: uint32(i), Ended: 1_900_000_000_000, Took: 10_000,
			By: []byte("https://shop.example/hooks/lapse"), Error: []byte("no answer after 10s"),
		})
	}
	if len(raw) > 200 {
		t.Errorf("%d bytes for %d attempts", len(raw), MaxAttempts)
	}
}
