package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
)

// A time of day is the one next to now; a span may pass midnight; a day is as long as it is here.
func TestSpanOfAWave(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 29, 23, 50, 0, 0, zone)
	for text, want := range map[string]string{
		"00:00":                "2026-11-30T00:00 1m0s",
		"13:00":                "2026-11-29T13:00 1m0s",
		"11:00":                "2026-11-30T11:00 1m0s",
		"23:30-00:30":          "2026-11-29T23:30 1h0m0s",
		"2026-10-25":           "2026-10-25T00:00 25h0m0s",
		"2026-11-30T02:10":     "2026-11-30T02:10 1m0s",
		"2026-11-30T02:10:00Z": "2026-11-30T03:10 1m0s",
	} {
		from, to, err := spanOf(text, now)
		if got := from.In(zone).Format("2006-01-02T15:04") + " " + to.Sub(from).String(); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "24:00", "00:00-", "00:00-25:00", "today", "1:00-2:00"} {
		if from, to, err := spanOf(text, now); err == nil {
			t.Errorf("%q is read as %v to %v", text, from, to)
		}
	}
}

// A wave says that it is through only if all of it was seen.
func TestWaveText(t *testing.T) {
	end := time.Date(2026, 11, 30, 0, 41, 0, 0, time.Local)
	through := client.Wave{Complete: true, Total: client.WaveCounts{Due: 4, Delivered: 4, Progress: 1, ThroughAt: &end}}
	part := through
	part.Complete = false
	going := client.Wave{Complete: true, Total: client.WaveCounts{Due: 4, Delivered: 1, Waiting: 3, Progress: 0.25, Rate: 2, EndsAt: &end}}
	for want, w := range map[string]client.Wave{
		"nothing": {Complete: true}, "through since 00:41:00": through, "4 of 4 have ended (100.0 %)": part,
		"1 of 4 have ended (25.0 %); at 2.0/s through at 00:41:00": going,
	} {
		if got := waveText(&w); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	var b strings.Builder
	going.Topics = []client.WaveTopic{{Name: "x", WaveCounts: going.Total}}
	going.From, going.Since = end, end.Add(time.Minute)
	waveBlock(&b, &going)
	if !strings.Contains(b.String(), "is counted from") || !strings.Contains(b.String(), end.Format("MST -0700")) {
		t.Error(b.String())
	}
}
