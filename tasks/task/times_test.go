package task

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func at(t testing.TB, text string) time.Time {
	t.Helper()
	moment, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

// Every expression that cannot be read is named with its position, beside all other faults of the
// settings.
func TestBadTimes(t *testing.T) {
	bad := []string{
		"", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "*/0 * * * *", "@daily", "@every 1s", "5-1 * * * *",
		"0 0 30 2 *", "TZ=", "TZ=UTC", "CRON_TZ=UTC", "CRON_TZ=Nowhere/Land 0 3 * * *", "now", "\x00", strings.Repeat("9", 1000),
	}
	cfg := Config{SweepAt: append([]string{"0 3 * * *", "CRON_TZ=Europe/Berlin 0,30 3-5 * jan-mar 1-5"}, bad...), SweepEvery: 1, SweepMaxConcurrency: 63, SweepBacklog: -1}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("no fault is found")
	}
	for i, text := range bad {
		if !strings.Contains(err.Error(), fmt.Sprintf("sweep.at[%d]", i+2)) {
			t.Errorf("%.20q at position %d is not reported", text, i+2)
		}
	}
	for _, field := range []string{"sweep.every must", "sweep.max_concurrency must be from 64 to 100000", "sweep.backlog must be from 1 to 200000000"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q is not reported", field)
		}
	}
	for _, good := range []string{"sweep.at[0]", "sweep.at[1]"} {
		if strings.Contains(err.Error(), good) {
			t.Errorf("%s is reported", good)
		}
	}
	if len(err.Error()) > 8000 {
		t.Errorf("%d bytes of faults", len(err.Error()))
	}
	if err := (Config{SweepAt: make([]string, maxTimes+1)}).Validate(); err == nil || !strings.Contains(err.Error(), "at most 100") {
		t.Errorf("too many: %v", err)
	}
}

// No text whatsoever does harm, and none that is accepted never comes.
func TestAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`((CRON_)?TZ=[A-Z/]{0,5} ?)?([0-9*/,?\-]{1,6} ?){0,6}`)).Draw(t, "text")
		when, err := ParseTimes("sweep.at", []string{text})
		if err != nil {
			return
		}
		now := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "now"), 0)
		if when.Due(now) {
			t.Fatal("due at the first look")
		}
		if !when.next.After(now) {
			t.Fatalf("the next of %q after %v is %v", text, now, when.next)
		}
		if !when.Due(when.next) || when.Due(when.asked) {
			t.Fatal("not due just once at its time")
		}
	})
}

// The clock goes from one moment to the next; due tells in which of them a time has come.
func TestTimesComeOnce(t *testing.T) {
	type look struct {
		now string
		due bool
	}
	for name, c := range map[string]struct {
		at    []string
		looks []look
	}{
		"in UTC": {[]string{"0 3 * * *"}, []look{
			{"2026-03-01 02:59:58", false}, {"2026-03-01 02:59:59", false}, {"2026-03-01 03:00:00", true}, {"2026-03-01 03:00:01", false},
			{"2026-03-02 02:59:59", false}, {"2026-03-02 03:00:01", true}, {"2026-03-02 03:00:02", false}}},
		"several": {[]string{"30 4 * * *", "0 3 * * *", "0 3 * * *"}, []look{
			{"2026-03-01 00:00:00", false}, {"2026-03-01 03:00:00", true}, {"2026-03-01 03:00:01", false}, {"2026-03-01 04:30:00", true}}},
		"in a zone": {[]string{"CRON_TZ=Asia/Tokyo 0 3 * * *"}, []look{
			{"2026-03-01 03:00:00", false}, {"2026-03-01 17:59:59", false}, {"2026-03-01 18:00:00", true}, {"2026-03-02 03:00:00", false}}},
		"summer time begins: the hour does not exist": {[]string{"TZ=Europe/Berlin 30 2 * * *"}, []look{
			{"2026-03-28 12:00:00", false}, {"2026-03-29 12:00:00", false}, {"2026-03-30 00:30:00", true}}},
		"the machine slept through many": {[]string{"*/5 * * * *"}, []look{
			{"2026-03-01 00:00:00", false}, {"2026-03-04 12:02:00", true}, {"2026-03-04 12:02:01", false}, {"2026-03-04 12:05:00", true}}},
		"set forward over it": {[]string{"0 3 * * *"}, []look{
			{"2026-03-01 02:00:00", false}, {"2026-03-01 09:00:00", true}, {"2026-03-01 09:00:01", false}}},
		"set back before it: it comes again": {[]string{"0 3 * * *"}, []look{
			{"2026-03-01 02:59:59", false}, {"2026-03-01 03:00:00", true}, {"2026-03-01 02:30:00", false}, {"2026-03-01 03:00:00", true}}},
		"put right by a moment: it does not": {[]string{"0 3 * * *"}, []look{
			{"2026-03-01 02:59:59", false}, {"2026-03-01 03:00:01", true}, {"2026-03-01 02:59:59", false}, {"2026-03-01 03:00:02", false}}},
		"started in a wrong year": {[]string{"0 3 * * *"}, []look{
			{"2036-03-01 12:00:00", false}, {"2026-03-01 12:00:00", false}, {"2026-03-02 03:00:00", true}}},
		"a leap day": {[]string{"0 0 29 2 *"}, []look{
			{"2025-03-01 00:00:00", false}, {"2027-03-01 00:00:00", false}, {"2028-02-29 00:00:01", true}}},
		"never": {nil, []look{{"2026-03-01 00:00:00", false}, {"2036-03-01 00:00:00", false}, {"2016-03-01 00:00:00", false}}},
	} {
		t.Run(name, func(t *testing.T) {
			// The machine's own zone changes nothing.
			elsewhere := time.FixedZone("elsewhere", -5*3600)
			when, err := ParseTimes("sweep.at", c.at)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range c.looks {
				if got := when.Due(at(t, l.now).In(elsewhere)); got != l.due {
					t.Errorf("due at %s: %v", l.now, got)
				}
			}
		})
	}
}

// An entry for a minute holds in all of that minute, in its own zone, and not outside of it.
func TestTimesHold(t *testing.T) {
	when, err := ParseTimes("sweep.helper", []string{"30 20 * * *", "CRON_TZ=Asia/Tokyo 0-14 6 * * *"})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []struct {
		now   string
		holds bool
	}{
		{"2026-03-01 20:29:59", false}, {"2026-03-01 20:30:00", true}, {"2026-03-01 20:30:59", true}, {"2026-03-01 20:31:00", false},
		{"2026-03-01 20:59:59", false}, {"2026-03-01 21:00:00", true}, {"2026-03-01 21:14:59", true}, {"2026-03-01 21:15:00", false},
	} {
		if got := when.Holds(at(t, l.now)); got != l.holds {
			t.Errorf("at %s: %v", l.now, got)
		}
	}
	if never := new(Times); never.Holds(at(t, "2026-03-01 20:30:00")) {
		t.Error("no expression holds")
	}
}

func TestHelpingIsChecked(t *testing.T) {
	c, err := Config{SweepHelper: []string{"backlog", "30 20 * * *"}}.Check()
	if err != nil || !c.Helps.Backlog || !c.Helps.Times.Holds(at(t, "2026-03-01 20:30:01")) {
		t.Errorf("%+v, %v", c.Helps, err)
	}
	_, err = Config{SweepHelper: []string{"backlogs"}}.Check()
	if err == nil || !strings.Contains(err.Error(), `sweep.helper[0] "backlogs"`) || !strings.Contains(err.Error(), "the word backlog") {
		t.Errorf("%v", err)
	}
}

// FuzzTimes checks that an expression which is taken has a time to come.
func FuzzTimes(f *testing.F) {
	for _, text := range []string{"* * * * *", "0 5 * * 1-5", "*/5 8-18 * * *", "TZ=Europe/Berlin 0 3 * * *", "CRON_TZ=", "TZ= * * * * *", "0 0 30 2 *", "@daily", "60 * * * *", "1-0 * * * *", "*/0 * * * *", "? ? ? ? ?", "0 0 29 2 *"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		times, err := ParseTimes("at", []string{text})
		if err != nil {
			return
		}
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		if times.Due(now); times.next.IsZero() || !times.next.After(now) {
			t.Errorf("%q is due at %v", text, times.next)
		}
	})
}
