package timespan_test

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/internal/timespan"
)

func FuzzParse(f *testing.F) {
	for _, text := range []string{"7d", "1d12h", "1.5d", "-1d", "-1d1h", "1d-1h", "d", "1d1d", "1h1d", "106751d23h", "106752d", "-106752d", "0", "", "1µs", "1e3s", "+1d", "1dd", "9223372036854775807ns"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, ok := timespan.Parse(text)
		if plain, plainErr := time.ParseDuration(text); plainErr == nil && (!ok || d != plain) {
			t.Errorf("%q is %v (%v), want %v", text, d, ok, plain)
		}
		if !ok {
			return
		}
		if again, ok := timespan.Parse(timespan.Format(d)); !ok || again != d {
			t.Errorf("%q is %v, which is written %s and read as %v (%v)", text, d, timespan.Format(d), again, ok)
		}
	})
}

func TestForms(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7d": 7 * timespan.Day, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "-1d1h": -25 * time.Hour, "30m": 30 * time.Minute, "0": 0, "1d0.5s": timespan.Day + 500*time.Millisecond,
	} {
		if got, ok := timespan.Parse(text); !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "d", "1", "1w", "1d-1h", "1h1d", "1d1d", "1dx", "106752d", "999999999999d"} {
		if got, ok := timespan.Parse(text); ok {
			t.Errorf("%q is read as %v", text, got)
		}
	}
	for text, want := range map[string]time.Duration{
		"1000": time.Second, "1e3": time.Second, "1.5": 1500 * time.Microsecond, "-1": -time.Millisecond, "0": 0,
	} {
		if got, ok := timespan.ParseMillis(text); !ok || got != want {
			t.Errorf("%s ms are %v (%v), want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"1e400", "1e13", "9223372036854775807", "-1e99"} {
		if got, ok := timespan.ParseMillis(text); ok {
			t.Errorf("%s ms are read as %v", text, got)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", timespan.Day: "1d", 90 * time.Second: "1m30s", 36 * time.Hour: "1d12h", 1500 * time.Millisecond: "1.5s", -time.Hour: "-1h", timespan.Day + time.Millisecond: "1d1ms",
	} {
		if got := timespan.Format(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
}
