package tasks

import (
	"bytes"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The fixtures of version 1. They stay as they are for ever: whatever becomes of
// the layout, a ledger that was written with it stays readable. -golden writes
// those that do not exist yet.
var golden = flag.Bool("golden", false, "write the fixtures in testdata that are missing")

var fixtures = map[string]fields{
	"minimal.rec": {revision: 1, due: 1_900_000_000_123, next: 1_900_000_000_123, created: 1_800_000_000_000, fingerprint: 0x0102030405060708, topic: []byte("x")},
	"all.rec": {
		flags:   flagChosenID | flagHeaders | flagGroup | flagMaxLateness | flagLastError,
		attempt: 3, revision: 7, due: 1_900_000_000_000, next: 1_900_000_060_000, created: 1_800_000_000_001,
		fingerprint: 0xfedcba9876543210, topic: []byte("order.unpaid"),
		headers: appendHeader(appendHeader(nil, "tenant", "eu"), "trace", "00-ab-cd-01"),
		group:   []byte("order-42"), maxLateness: 7_200_000, lastError: []byte("connection refused"),
		payload: []byte(`{"order":42}`),
	},
	"claimed.rec": {flags: flagClaimed, attempt: 2, revision: 1, due: 1_900_000_000_000, next: 1_900_000_000_000, created: 1_800_000_000_000, topic: []byte("x")},
	"dead.rec": {
		state: recDead, flags: flagLastError, attempt: 20, revision: 1, due: 1_900_000_000_000, next: 1_900_000_999_000,
		created: 1_800_000_000_000, fingerprint: 1, topic: []byte("x"), lastError: []byte("the lease ran out"), payload: []byte("p"),
	},
	"dead-exhausted.rec": {
		state: recExhausted, flags: flagLastError, attempt: 20, revision: 1, due: 1_900_000_000_000, next: 1_900_000_999_000,
		created: 1_800_000_000_000, fingerprint: 1, topic: []byte("x"), lastError: []byte("the lease ran out"), payload: []byte("p"),
	},
	"dead-buried.rec": {
		state: recBuried, flags: flagLastError | flagGroup, attempt: 1, revision: 3, due: 1_900_000_000_000, next: 1_900_000_000_001,
		created: 1_800_000_000_000, fingerprint: 1, topic: []byte("x"), group: []byte("g"), lastError: []byte("no such order"), payload: []byte("p"),
	},
	"dead-topic-deleted.rec": {
		state: recTopicDeleted, flags: flagChosenID, revision: 1, due: 1_900_000_000_000, next: 1_900_000_000_001,
		created: 1_800_000_000_000, fingerprint: 1, topic: []byte("x"), payload: []byte("p"),
	},
	"parked.rec": {
		state: recParked, flags: flagLease, attempt: 1, revision: 1, due: 1_900_000_000_000, next: 1_900_000_000_000,
		created: 1_800_000_000_000, topic: []byte("x"), leaseRest: 1_900_000_030_000, nonce: 0x1122334455667788, payload: []byte("p"),
	},
}

// Others that version 1 must refuse, and why.
var unreadable = map[string]error{
	"newer.rec":           errNewerRecord,
	"damaged-cut.rec":     errBadRecord,
	"damaged-flags.rec":   errBadRecord,
	"damaged-headers.rec": errBadRecord,
	"damaged-state.rec":   errBadRecord,
	"damaged-version.rec": errBadRecord,
}

// spoiled makes the unreadable ones.
func spoiled(name string) []byte {
	f := fixtures["all.rec"]
	rec := f.encode(nil)
	switch name {
	case "newer.rec":
		rec[0] = 2
	case "damaged-cut.rec":
		rec = rec[:recordFixed+5]
	case "damaged-flags.rec":
		rec[offFlags+1] = 0x80
	case "damaged-headers.rec":
		rec[recordFixed+1+len(f.topic)+1] = 200 // the length of the first name
	case "damaged-state.rec":
		rec[offState] = 9
	case "damaged-version.rec":
		rec[0] = 0
	}
	return rec
}

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	rec, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && *golden {
		if f, ok := fixtures[name]; ok {
			rec = f.encode(nil)
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

var exact = cmp.AllowUnexported(fields{})

func TestFixturesStayReadable(t *testing.T) {
	for name, wanted := range fixtures {
		t.Run(name, func(t *testing.T) {
			rec := fixture(t, name)
			got, err := decode(rec)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.payload) == 0 {
				got.payload = wanted.payload
			}
			if diff := cmp.Diff(wanted, got, exact); diff != "" {
				t.Error(diff)
			}
			if again := got.encode(nil); !bytes.Equal(again, rec) {
				t.Errorf("encoded again:\n%x\n%x", again, rec)
			}
		})
	}
	for name, kind := range unreadable {
		t.Run(name, func(t *testing.T) {
			_, err := decode(fixture(t, name))
			want(t, "decode", err, kind)
		})
	}
}

func drawFields(t *rapid.T) fields {
	text := func(label string, low, high int) []byte {
		return rapid.SliceOfN(rapid.Byte(), low, high).Draw(t, label)
	}
	f := fields{
		state:       rapid.Uint8Range(0, recordStates-1).Draw(t, "state"),
		flags:       rapid.Uint16().Draw(t, "flags") & (flagClaimed | flagChosenID | flagLease),
		attempt:     rapid.Uint32().Draw(t, "attempt"),
		revision:    rapid.Uint32().Draw(t, "revision"),
		due:         rapid.Int64().Draw(t, "due"),
		next:        rapid.Int64().Draw(t, "next"),
		created:     rapid.Int64().Draw(t, "created"),
		fingerprint: rapid.Uint64().Draw(t, "fingerprint"),
		topic:       text("topic", 1, MaxIDBytes),
		group:       text("group", 0, MaxIDBytes),
		maxLateness: rapid.Int64().Draw(t, "max lateness"),
		lastError:   text("last error", 0, 300),
		payload:     text("payload", 0, 300),
	}
	if f.flags&flagLease != 0 {
		f.leaseRest, f.nonce = rapid.Int64().Draw(t, "lease"), rapid.Uint64().Draw(t, "nonce")
	}
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		f.headers = appendHeader(f.headers, rapid.String().Draw(t, "name"), rapid.String().Draw(t, "value"))
	}
	for flag, on := range map[uint16]bool{
		flagHeaders: len(f.headers) > 0, flagGroup: len(f.group) > 0,
		flagMaxLateness: f.maxLateness != 0, flagLastError: len(f.lastError) > 0,
	} {
		if on {
			f.flags |= flag
		}
	}
	return f
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFields(t)
		rec := f.encode([]byte("before"))[6:]
		got, err := decode(rec)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []*[]byte{&f.headers, &f.group, &f.lastError, &f.payload, &got.headers, &got.group, &got.lastError, &got.payload} {
			if len(*part) == 0 {
				*part = nil
			}
		}
		if diff := cmp.Diff(f, got, exact); diff != "" {
			t.Fatal(diff)
		}
		for n := range rec[:len(rec)-len(f.payload)] {
			if _, err := decode(rec[:n]); err == nil {
				t.Fatalf("cut at %d of %d, the record is read", n, len(rec))
			}
		}
		if recordAttempt(rec) != f.attempt || recordFlags(rec) != f.flags || recordFingerprint(rec) != f.fingerprint {
			t.Fatal("read in place, fields are others")
		}
	})
}

func TestHeadersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		headers := rapid.MapOfN(rapid.String(), rapid.String(), 0, 20).Draw(t, "headers")
		got, err := decodeHeaders(encodeHeaders(headers))
		if err != nil || !maps.Equal(got, headers) {
			t.Fatalf("%v, %v; want %v", got, err, headers)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for name := range fixtures {
		f.Add(fixture(f, name))
	}
	for name := range unreadable {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, rec []byte) {
		first, err := decode(rec)
		if err != nil {
			if !errors.Is(err, errBadRecord) && !errors.Is(err, errNewerRecord) {
				t.Fatalf("decode = %v", err)
			}
			return
		}
		second, err := decode(first.encode(nil))
		if err != nil {
			t.Fatalf("encoded again, it cannot be read: %v", err)
		}
		if string(first.payload) != string(second.payload) || string(first.topic) != string(second.topic) || first.next != second.next {
			t.Fatalf("encoded again, it says something else: %+v, %+v", first, second)
		}
	})
}
