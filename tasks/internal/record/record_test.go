package record

import (
	"bytes"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The fixtures of version 1. From release 0.1.0 on they stay as they are for ever: whatever becomes
// of the layout, a ledger that was written with it stays readable. -golden writes those that do not
// exist yet.
var golden = flag.Bool("golden", false, "write the fixtures in testdata that are missing")

var fixtures = map[string]Fields{
	"minimal.rec": {Revision: 1, Due: 1_900_000_000_123, Next: 1_900_000_000_123, Created: 1_800_000_000_000, Fingerprint: 0x0102030405060708, Topic: []byte("x")},
	"all.rec": {
		Flags:   ChosenID | hasHeaders | hasGroup | HasMaxLateness | hasLastError,
		Attempt: 3, Revision: 7, Due: 1_900_000_000_000, Next: 1_900_000_060_000, Created: 1_800_000_000_001,
		Fingerprint: 0xfedcba9876543210, Topic: []byte("order.unpaid"),
		Headers: AppendHeader(AppendHeader(nil, "tenant", "eu"), "trace", "00-ab-cd-01"),
		Group:   []byte("order-42"), MaxLateness: 7_200_000, LastError: []byte("connection refused"),
		Payload: []byte(`{"order":42}`),
	},
	"claimed.rec": {Flags: Claimed, Attempt: 2, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_000_000, Created: 1_800_000_000_000, Topic: []byte("x")},
	"dead.rec": {
		State: Dead, Flags: hasLastError, Attempt: 20, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_999_000,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), LastError: []byte("the lease ran out"), Payload: []byte("p"),
	},
	"dead-exhausted.rec": {
		State: Exhausted, Flags: hasLastError, Attempt: 20, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_999_000,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), LastError: []byte("the lease ran out"), Payload: []byte("p"),
	},
	"dead-buried.rec": {
		State: Buried, Flags: hasLastError | hasGroup, Attempt: 1, Revision: 3, Due: 1_900_000_000_000, Next: 1_900_000_000_001,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), Group: []byte("g"), LastError: []byte("no such order"), Payload: []byte("p"),
	},
	"dead-topic-deleted.rec": {
		State: TopicDeleted, Flags: ChosenID, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_000_001,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), Payload: []byte("p"),
	},
	"attempts.rec": {
		Flags:   ChosenID | hasLastError | hasAttempts,
		Attempt: 3, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_060_000, Created: 1_800_000_000_001,
		Fingerprint: 1, Topic: []byte("order.unpaid"), LastError: []byte("HTTP 503"), Attempts: attempts(), Payload: []byte("p"),
	},
	"attempts-dead.rec": {
		State: Exhausted, Flags: hasHeaders | hasAttempts, Attempt: 3, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_060_000,
		Created: 1_800_000_000_001, Topic: []byte("x"), Headers: AppendHeader(nil, "tenant", "eu"), Attempts: attempts(),
	},
	"held.rec": {
		Flags: ChosenID | HasMaxLateness | Held, Revision: 2, Due: 1_900_000_000_000, Next: HeldUntil, Created: 1_800_000_000_001,
		Fingerprint: 1, Topic: []byte("order.unpaid"), MaxLateness: 60_000, HeldAt: 1_899_999_400_000, HeldNext: 1_900_000_000_000,
		Payload: []byte("p"),
	},
	"held-attempts.rec": {
		Flags: hasLastError | hasAttempts | Held, Attempt: 3, Revision: 4, Due: 1_900_000_000_000, Next: HeldUntil,
		Created: 1_800_000_000_001, Topic: []byte("x"), LastError: []byte("HTTP 503"), Attempts: attempts(),
		HeldAt: 1_900_000_050_000, HeldNext: 1_900_000_060_000,
	},
	"held-stamped.rec": {
		Flags: Held | hasStamp, Revision: 2, Due: 1_900_000_000_000, Next: HeldUntil, Created: 1_800_000_000_001,
		Topic: []byte("x"), HeldAt: 1_899_999_400_000, HeldNext: 1_900_000_000_000, Stamp: 0x69_2a_0f_fe_11_22_33_44,
	},
	"stamped.rec": {
		Flags: ChosenID | hasStamp, Revision: 2, Due: 1_900_000_000_000, Next: 1_900_000_000_000, Created: 1_800_000_000_001,
		Fingerprint: 1, Topic: []byte("order.unpaid"), Stamp: 0x69_2a_0f_fe_11_22_33_44, Payload: []byte("p"),
	},
	"stamped-attempts.rec": {
		Flags: hasLastError | hasAttempts | hasStamp, Attempt: 3, Revision: 4, Due: 1_900_000_000_000, Next: 1_900_000_060_000,
		Created: 1_800_000_000_001, Topic: []byte("x"), LastError: []byte("HTTP 503"), Attempts: attempts(), Stamp: 1,
	},
	"target.rec": {
		Flags: ChosenID | HasTarget, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_000_000, Created: 1_800_000_000_001,
		Fingerprint: 1, Topic: []byte("order.unpaid"), Target: ownTarget(), Payload: []byte("p"),
	},
	"target-retry.rec": {
		Flags: HasTarget, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_000_000, Created: 1_800_000_000_001,
		Topic: []byte("x"), Target: AppendTarget(nil, &Target{MaxAttempts: 5, MaxAge: 60_000, MinBackoff: 1, MaxBackoff: 2_000}),
	},
	"target-all.rec": {
		Flags: hasHeaders | hasGroup | HasMaxLateness | hasLastError | hasAttempts | Held | hasStamp | HasTarget, Attempt: 3, Revision: 7,
		Due: 1_900_000_000_000, Next: HeldUntil, Created: 1_800_000_000_001, Topic: []byte("x"), Headers: AppendHeader(nil, "tenant", "eu"),
		Group: []byte("g"), MaxLateness: 60_000, LastError: []byte("HTTP 503"), Attempts: attempts(), HeldAt: 1_900_000_050_000,
		HeldNext: 1_900_000_060_000, Stamp: 1, Target: ownTarget(), Payload: []byte("p"),
	},
	"target-dead.rec": {
		State: Exhausted, Flags: hasLastError | HasTarget, Attempt: 20, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_999_000,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), LastError: []byte("the lease ran out"), Target: ownTarget(),
	},
	"finished.rec": {
		State: Finished, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_000_250,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), Payload: []byte("p"),
	},
	"finished-delivered.rec": {
		State: Delivered, Flags: ChosenID | hasLastError | hasAttempts, Attempt: 6, Revision: 2, Due: 1_900_000_000_000, Next: 1_900_000_100_000,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), LastError: []byte("HTTP 503"), Attempts: attempts(), Payload: []byte("p"),
	},
	"finished-told.rec": {
		State: Delivered, Flags: ChosenID | hasLastError | hasAttempts, Attempt: 6, Revision: 2, Due: 1_900_000_000_000, Next: 1_900_000_100_000,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), LastError: []byte("HTTP 503"), Payload: []byte("p"),
		Attempts: AppendAttempt(attempts(), PastAttempt{Outcome: Acked, Number: 6, Ended: 1_900_000_100_000, Took: 12, By: []byte("workers")}),
	},
	"finished-cancelled.rec": {
		State: Cancelled, Flags: hasGroup, Revision: 1, Due: 1_900_000_000_000, Next: 1_800_000_001_000,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), Group: []byte("g"), Payload: []byte("p"),
	},
	"finished-skipped.rec": {
		State: Skipped, Flags: HasMaxLateness, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_005_000,
		Created: 1_800_000_000_000, Fingerprint: 1, Topic: []byte("x"), MaxLateness: 1000, Payload: []byte("p"),
	},
	"parked.rec": {
		State: Parked, Flags: HasLease, Attempt: 1, Revision: 1, Due: 1_900_000_000_000, Next: 1_900_000_000_000,
		Created: 1_800_000_000_000, Topic: []byte("x"), LeaseRest: 1_900_000_030_000, Nonce: 0x1122334455667788, Payload: []byte("p"),
	},
}

// ownTarget is that of a task with a URL of its own.
func ownTarget() []byte {
	return AppendTarget(nil, &Target{
		Kind: []byte("webhook"), Receiver: []byte("https://shop.example"), MaxAttempts: 5,
		Settings: []byte(`{"headers":{"x-shop":"eu"},"timeout":"5s","url":"https://shop.example/hooks/1"}`),
	})
}

// attempts are some of each outcome.
func attempts() (raw []byte) {
	url := []byte("https://shop.example/hooks/lapse")
	for _, a := range []PastAttempt{
		{Failed, 1, 1_900_000_001_000, 250, url, []byte("HTTP 503")},
		{Failed, 2, 1_900_000_011_000, 10_000, url, []byte("HTTP 503")},
		{LeaseExpired, 3, 1_900_000_041_000, 30_000, url, []byte("the lease ran out")},
		{GivenUp, 4, 1_900_000_042_000, 1, []byte("workers"), nil},
		{ProcessEnded, 5, 1_900_000_099_000, 0, nil, []byte("the process ended during the attempt")},
	} {
		raw = AppendAttempt(raw, a)
	}
	return raw
}

// Others that must be refused, and why.
var unreadable = map[string]error{
	"newer.rec":            ErrNewer,
	"damaged-target.rec":   ErrBad,
	"damaged-attempts.rec": ErrBad,
	"damaged-cut.rec":      ErrBad,
	"damaged-flags.rec":    ErrBad,
	"damaged-headers.rec":  ErrBad,
	"damaged-state.rec":    ErrBad,
	"damaged-version.rec":  ErrBad,
}

// spoiled makes the unreadable ones.
func spoiled(name string) []byte {
	f := fixtures["all.rec"]
	rec := f.Append(nil)
	switch name {
	case "newer.rec":
		rec[0] = 2
	case "damaged-target.rec":
		f = fixtures["target.rec"]
		f.Target = []byte{7, 'w'} // a kind that is cut short
		rec = f.Append(nil)
	case "damaged-attempts.rec":
		f = fixtures["attempts.rec"]
		f.Attempts = append([]byte{Outcomes}, f.Attempts[1:]...)
		rec = f.Append(nil)
	case "damaged-cut.rec":
		rec = rec[:fixedSize+5]
	case "damaged-flags.rec":
		rec[flagsOffset+1] = 0x80
	case "damaged-headers.rec":
		rec[fixedSize+1+len(f.Topic)+1] = 200 // the length of the first name
	case "damaged-state.rec":
		rec[stateOffset] = States
	case "damaged-version.rec":
		rec[0] = 0
	}
	return rec
}

func Fixture(t testing.TB, name string) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	rec, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && *golden {
		if f, ok := fixtures[name]; ok {
			rec = f.Append(nil)
		} else {
			rec = spoiled(name)
		}
		err = os.WriteFile(path, rec, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

var exact = cmp.AllowUnexported(Fields{})

func TestFixturesStayReadable(t *testing.T) {
	for name, wanted := range fixtures {
		t.Run(name, func(t *testing.T) {
			rec := Fixture(t, name)
			got, err := Decode(rec)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Payload) == 0 {
				got.Payload = wanted.Payload
			}
			if diff := cmp.Diff(wanted, got, exact); diff != "" {
				t.Error(diff)
			}
			if again := got.Append(nil); !bytes.Equal(again, rec) {
				t.Errorf("encoded again:\n%x\n%x", again, rec)
			}
		})
	}
	for name, kind := range unreadable {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(Fixture(t, name))
			if !errors.Is(err, kind) {
				t.Errorf("decode = %v; want %v", err, kind)
			}
		})
	}
}

func drawTarget(t *rapid.T) []byte {
	if !rapid.Bool().Draw(t, "target") {
		return nil
	}
	text := func(label string) []byte { return rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, label) }
	return AppendTarget(nil, &Target{
		text("kind"), text("receiver"), rapid.Uint64().Draw(t, "max attempts"), rapid.Int64().Draw(t, "max age"),
		rapid.Int64().Draw(t, "min backoff"), rapid.Int64().Draw(t, "max backoff"), text("settings"),
	})
}

func TestTargetRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := drawTarget(t)
		if raw == nil {
			return
		}
		got, err := DecodeTarget(raw)
		if err != nil || !bytes.Equal(AppendTarget(nil, &got), raw) {
			t.Fatalf("%+v, %v", got, err)
		}
	})
}

func drawFields(t *rapid.T) Fields {
	text := func(label string, low, high int) []byte {
		return rapid.SliceOfN(rapid.Byte(), low, high).Draw(t, label)
	}
	f := Fields{
		State:       rapid.Uint8Range(0, States-1).Draw(t, "state"),
		Flags:       rapid.Uint16().Draw(t, "flags") & (Claimed | ChosenID | HasLease | Held),
		Attempt:     rapid.Uint32().Draw(t, "attempt"),
		Revision:    rapid.Uint32().Draw(t, "revision"),
		Due:         rapid.Int64().Draw(t, "due"),
		Next:        rapid.Int64().Draw(t, "next"),
		Created:     rapid.Int64().Draw(t, "created"),
		Fingerprint: rapid.Uint64().Draw(t, "fingerprint"),
		Topic:       text("topic", 1, 200),
		Group:       text("group", 0, 200),
		MaxLateness: rapid.Int64().Draw(t, "max lateness"),
		LastError:   text("last error", 0, 300),
		Attempts:    drawAttempts(t),
		Stamp:       rapid.Uint64().Draw(t, "stamp"),
		Target:      drawTarget(t),
		Payload:     text("payload", 0, 300),
	}
	if f.Flags&HasLease != 0 {
		f.LeaseRest, f.Nonce = rapid.Int64().Draw(t, "lease"), rapid.Uint64().Draw(t, "nonce")
	}
	if f.Flags&Held != 0 {
		f.HeldAt, f.HeldNext = rapid.Int64().Draw(t, "held"), rapid.Int64().Draw(t, "held next")
	}
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		f.Headers = AppendHeader(f.Headers, rapid.String().Draw(t, "name"), rapid.String().Draw(t, "value"))
	}
	for flag, on := range map[uint16]bool{
		hasHeaders: len(f.Headers) > 0, hasGroup: len(f.Group) > 0,
		HasMaxLateness: f.MaxLateness != 0, hasLastError: len(f.LastError) > 0, hasAttempts: len(f.Attempts) > 0, hasStamp: f.Stamp != 0,
		HasTarget: len(f.Target) > 0,
	} {
		if on {
			f.Flags |= flag
		}
	}
	return f
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFields(t)
		rec := f.Append([]byte("before"))[6:]
		got, err := Decode(rec)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []*[]byte{&f.Headers, &f.Group, &f.LastError, &f.Attempts, &f.Target, &f.Payload, &got.Headers, &got.Group, &got.LastError, &got.Attempts, &got.Target, &got.Payload} {
			if len(*part) == 0 {
				*part = nil
			}
		}
		if diff := cmp.Diff(f, got, exact); diff != "" {
			t.Fatal(diff)
		}
		for n := range rec[:len(rec)-len(f.Payload)] {
			if _, err := Decode(rec[:n]); err == nil {
				t.Fatalf("cut at %d of %d, the record is read", n, len(rec))
			}
		}
		if Attempt(rec) != f.Attempt || Stamp(rec) != f.Stamp || Flags(rec) != f.Flags || Fingerprint(rec) != f.Fingerprint ||
			State(rec) != f.State || Revision(rec) != f.Revision || Due(rec) != f.Due || Next(rec) != f.Next || Created(rec) != f.Created ||
			string(Topic(rec)) != string(f.Topic) || string(Group(rec)) != string(f.Group) {
			t.Fatal("read in place, fields are others")
		}
	})
}

func TestHeadersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		headers := rapid.MapOfN(rapid.String(), rapid.String(), 0, 20).Draw(t, "headers")
		raw := EncodeHeaders(headers)
		got, err := DecodeHeaders(raw)
		if err != nil || !maps.Equal(got, headers) {
			t.Fatalf("%v, %v; want %v", got, err, headers)
		}
		var ordered []byte // fingerprints are made of the headers: they have one order
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			ordered = AppendHeader(ordered, name, headers[name])
		}
		if !bytes.Equal(raw, ordered) {
			t.Fatalf("%q is not in the order of the names", raw)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for name := range fixtures {
		f.Add(Fixture(f, name))
	}
	for name := range unreadable {
		f.Add(Fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, rec []byte) {
		first, err := Decode(rec)
		if err != nil {
			if !errors.Is(err, ErrBad) && !errors.Is(err, ErrNewer) {
				t.Fatalf("decode = %v", err)
			}
			return
		}
		second, err := Decode(first.Append(nil))
		if err != nil {
			t.Fatalf("encoded again, it cannot be read: %v", err)
		}
		if string(first.Payload) != string(second.Payload) || string(first.Topic) != string(second.Topic) || first.Next != second.Next {
			t.Fatalf("encoded again, it says something else: %+v, %+v", first, second)
		}
	})
}

// Times of creation grow, whatever a clock does within a second, and are those of the clock.
func TestNewCreated(t *testing.T) {
	now, last := time.Date(2026, 11, 26, 1, 2, 3, 4e6, time.UTC), int64(0)
	for i, step := range []time.Duration{0, 0, time.Millisecond, -time.Millisecond, -500 * time.Millisecond, time.Second, 0} {
		now = now.Add(step)
		made := NewCreated(now, last)
		if made <= last {
			t.Errorf("step %d: %d comes after %d", i, made, last)
		}
		if off := time.Unix(0, made).Sub(now); off < 0 || off > time.Second {
			t.Errorf("step %d: %v from the clock", i, off)
		}
		last = made
	}
	now = now.Add(-time.Hour)
	if off := time.Unix(0, NewCreated(now, last)).Sub(now); off < 0 || off >= time.Millisecond {
		t.Errorf("after the clock was set back: %v from the clock", off)
	}
}
