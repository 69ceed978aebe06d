package client_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/client"
)

// Each duration is read back as it was written, and what time.ParseDuration reads is
// read alike.
func TestDurationRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := client.Duration(rapid.Int64().Draw(t, "d"))
		if got, err := client.ParseDuration(d.String()); err != nil || got != time.Duration(d) {
			t.Fatalf("%s: got %s, %v", d, got, err)
		}
		if got, err := client.ParseDuration(time.Duration(d).String()); err != nil || got != time.Duration(d) {
			t.Fatalf("%s: got %s, %v", time.Duration(d), got, err)
		}
		text, err := json.Marshal(d)
		var back client.Duration
		if err != nil || json.Unmarshal(text, &back) != nil || back != d {
			t.Fatalf("%s: got %s, %v", text, back, err)
		}
	})
}

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"7d": 7 * day, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "-1d2h": -26 * time.Hour,
		"0d": 0, "0": 0, "90s": 90 * time.Second, "1d1ns": day + 1, "106751d23h47m16.854775807s": 1<<63 - 1,
	} {
		if got, err := client.ParseDuration(text); err != nil || got != want {
			t.Errorf("%q: got %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "1", "1h1d", "1d-1h", "1d+1h", "1d1d", "soon", "1d1", "106752d", "-106752d", "106751d24h", "--1d", " 1d"} {
		if got, err := client.ParseDuration(text); err == nil {
			t.Errorf("%q: got %s", text, got)
		}
	}
	var d client.Duration
	for text, want := range map[string]time.Duration{`1500`: 1500 * time.Millisecond, `0.25`: 250 * time.Microsecond, `"2d"`: 2 * day} {
		if err := json.Unmarshal([]byte(text), &d); err != nil || time.Duration(d) != want {
			t.Errorf("%s: got %s, %v", text, d, err)
		}
	}
	for _, text := range []string{`1e300`, `true`, `"x"`, `{}`} {
		if err := json.Unmarshal([]byte(text), &d); err == nil {
			t.Errorf("%s: got %s", text, d)
		}
	}
}

func TestNewID(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	var stamps []string
	for range 1000 {
		id := client.NewID()
		if !form.MatchString(id) || seen[id] {
			t.Fatalf("%s", id)
		}
		seen[id] = true
		stamps = append(stamps, id[:13])
	}
	if !slices.IsSorted(stamps) {
		t.Error("later ids sort before earlier ones")
	}
}
