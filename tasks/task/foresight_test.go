package task

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// bars have tasks at some of n steps.
func bars(n int, at map[int]int64) []int64 {
	all := make([]int64, n)
	for k, tasks := range at {
		all[k] = tasks
	}
	return all
}

func TestJudge(t *testing.T) {
	from := time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return from.Add(time.Duration(seconds * float64(time.Second))) }
	for name, c := range map[string]struct {
		counts []int64
		step   time.Duration
		ready  int64
		paused int64
		minute int64 // delivered in the best minute
		want   []Peak
		text   string
	}{
		"a million at midnight": {
			bars(120, map[int]int64{60: 1_000_000}), time.Minute, 0, 0, 24_000,
			[]Peak{{At: at(3600), Tasks: 1_000_000, Through: at(3600 + 2500), Wait: 2475 * time.Second, Spread: 45 * time.Minute}},
			"2026-11-30 00:00 UTC, 1000000 tasks: through after 42m, p99 of the wait 41m; with a spread of 45m none waits, judged by 400/s",
		},
		"none waits": {bars(60, map[int]int64{3: 600, 7: 600}), time.Minute, 0, 0, 600, nil, "None waits for longer than 1m at 10/s, the best minute of the last day."},
		"a steady load that is just delivered": {
			slices.Repeat([]int64{600}, 60), time.Minute, 0, 0, 600, nil, "None waits",
		},
		"no rate": {bars(60, map[int]int64{3: 600}), time.Minute, 10, 0, 0, nil, "No rate has been shown yet, so nothing is judged."},
		"nothing": {bars(60, nil), time.Minute, 0, 0, 60, nil, "Nothing falls due."},
		"two peaks": {
			bars(60, map[int]int64{0: 200, 10: 400}), time.Minute, 0, 0, 60,
			[]Peak{
				{At: at(0), Tasks: 200, Through: at(200), Wait: 198 * time.Second, Spread: 4 * time.Minute},
				{At: at(600), Tasks: 400, Through: at(1000), Wait: 396 * time.Second, Spread: 7 * time.Minute},
			},
			"2026-11-29 23:10 UTC, 400 tasks: through after 6m40s, p99 of the wait 6m36s; with a spread of 7m none waits; and 1 more peak, judged by 1/s",
		},
		"behind what waits already": {
			bars(60, map[int]int64{0: 100}), time.Minute, 500, 0, 60,
			[]Peak{{At: at(0), Tasks: 100, Through: at(600), Wait: 599 * time.Second}}, "2026-11-29 23:00 UTC, 100 tasks: through after 10m, p99 of the wait 9m59s, judged by 1/s",
		},
		"what a paused topic holds back": {bars(60, map[int]int64{0: 10}), time.Minute, 500, 500, 60, nil, "None waits"},
		"longer than the window": {
			bars(10, map[int]int64{9: 600}), time.Minute, 0, 0, 60,
			[]Peak{{At: at(540), Tasks: 600, Through: at(1140), Wait: 594 * time.Second, Spread: 10 * time.Minute, Beyond: true}},
			"2026-11-29 23:09 UTC, 600 tasks: not through before 10m",
		},
		"longer than a day": {
			bars(10, map[int]int64{0: 1e9}), time.Minute, 0, 0, 60,
			[]Peak{{At: at(0), Tasks: 1e9, Through: at(0).Add(MaxAhead), Wait: MaxAhead, Beyond: true}}, "not through before 3660d, p99 of the wait 3660d, judged",
		},
	} {
		f := Forecast{From: from, Step: c.step, Counts: c.counts, Ready: c.ready, ReadyPaused: c.paused, Complete: true}
		j := f.Judge(ShownRate{Delivered: c.minute, Limit: true})
		for i := range j.Peaks {
			j.Peaks[i].Wait = j.Peaks[i].Wait.Round(time.Second)
			j.Peaks[i].Through = j.Peaks[i].Through.Round(time.Second)
		}
		if !slices.Equal(j.Peaks, c.want) {
			t.Errorf("%s: %+v, want %+v", name, j.Peaks, c.want)
		}
		if !strings.Contains(j.Text, c.text) {
			t.Errorf("%s: %q, want %q", name, j.Text, c.text)
		}
	}
	part := Forecast{From: from, Step: time.Minute, Counts: []int64{1}}
	if j := part.Judge(ShownRate{Delivered: 60}); !strings.HasSuffix(j.Text, "; not all tasks are in it.") {
		t.Errorf("of a part it says %q", j.Text)
	}
	several := Forecast{From: from, Step: time.Second, Counts: []int64{59, 0, 0}, Complete: true}
	if j := several.Judge(ShownRate{Delivered: 60}); len(j.Peaks) != 0 || j.Precision != time.Minute {
		t.Errorf("what was delivered within a minute before waits: %+v", j)
	}
	several.Counts[0] = 120
	if j := several.Judge(ShownRate{Delivered: 60}); len(j.Peaks) != 1 || !strings.HasPrefix(j.Text, "Whether tasks wait is not known: receivers may do more than 1/s,") {
		t.Errorf("without a limit it says %q", j.Text)
	}
}

// Many peaks are not all told of: those that wait longest are, in order of time.
func TestJudgeIsBounded(t *testing.T) {
	f := Forecast{Step: time.Minute, Counts: make([]int64, 1000), Complete: true}
	for k := range 100 {
		f.Counts[10*k] = int64(200 + k)
	}
	j := f.Judge(ShownRate{Delivered: 60})
	if len(j.Peaks) != MaxPeaks || j.More != 100-MaxPeaks || j.Peaks[0].Tasks != 290 || j.Peaks[MaxPeaks-1].Tasks != 299 {
		t.Errorf("%d peaks and %d more: %+v", len(j.Peaks), j.More, j.Peaks)
	}
}

// With the spread that is told, none waits; and all is delivered when the last peak is through, not
// sooner than the rate allows.
func TestSpreadOfAPeak(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		const perStep = 100 // the rate is 100 a minute
		counts := make([]int64, 1000)
		background := r.Int64N(perStep / 2)
		for k := range counts {
			counts[k] = background
		}
		at := r.IntN(50)
		counts[at] += 200 + r.Int64N(20_000)
		f := Forecast{Step: time.Minute, Counts: counts, Complete: true}
		j := f.Judge(ShownRate{Delivered: perStep, Limit: true})
		if len(j.Peaks) != 1 || j.Peaks[0].Spread == 0 {
			t.Fatalf("%d at %d over %d: %+v", counts[at], at, background, j.Peaks)
		}
		wave, window := counts[at]-background, int64(j.Peaks[0].Spread/time.Minute)
		counts[at] = background
		for k := range window {
			counts[int64(at)+k] += wave*(k+1)/window - wave*k/window
		}
		if again := f.Judge(ShownRate{Delivered: perStep, Limit: true}); len(again.Peaks) != 0 {
			t.Fatalf("%d over %d, spread over %d minutes: %+v", wave, background, window, again.Peaks)
		}
	}
}

// The best minute counts; it is a limit if tasks waited in it, or in one that is about as good.
func TestShownBy(t *testing.T) {
	at := time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)
	minute := func(k int, delivered, late, inTime int64) PastMinute {
		m := PastMinute{At: at.Add(time.Duration(k) * time.Minute), Delivered: delivered}
		m.Lateness.Counts[LatenessBucket(5*time.Minute)] = late
		m.Lateness.Counts[LatenessBucket(time.Minute)] = inTime
		return m
	}
	for name, c := range map[string]struct {
		minutes []PastMinute
		want    ShownRate
	}{
		"nothing":          {nil, ShownRate{}},
		"none":             {[]PastMinute{minute(0, 0, 5, 0)}, ShownRate{}},
		"in time":          {[]PastMinute{minute(0, 5, 0, 5), minute(1, 90, 0, 90)}, ShownRate{Delivered: 90, At: at.Add(time.Minute)}},
		"late":             {[]PastMinute{minute(0, 90, 60, 30)}, ShownRate{Delivered: 90, At: at, Limit: true}},
		"some are late":    {[]PastMinute{minute(0, 90, 30, 60)}, ShownRate{Delivered: 90, At: at}},
		"late, about best": {[]PastMinute{minute(0, 90, 0, 90), minute(1, 81, 81, 0)}, ShownRate{Delivered: 90, At: at, Limit: true}},
		"late, slow":       {[]PastMinute{minute(0, 90, 0, 90), minute(1, 80, 80, 0)}, ShownRate{Delivered: 90, At: at}},
	} {
		if got := ShownBy(c.minutes); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// A finer outlook has the same window, and its steps add up to those that were asked for.
func TestFineOutlook(t *testing.T) {
	for _, o := range []Outlook{
		{Window: time.Hour, Step: time.Minute}, {Window: 24 * time.Hour, Step: 30 * time.Minute}, {Window: time.Second, Step: time.Millisecond},
		{Window: MaxAhead, Step: MaxAhead}, {Window: MaxAhead, Step: MaxAhead - 1}, {Window: 1999 * time.Millisecond, Step: 1999 * time.Microsecond},
		{Window: time.Hour, Step: 7 * time.Minute}, {Window: MinForecast, Step: MinForecast},
	} {
		finer, each := o.Fine()
		if err := finer.Faults().Err(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		if each > 1 && time.Duration(each)*finer.Step < o.Step {
			t.Errorf("%+v: %d steps of %v", o, each, finer.Step)
		}
	}
	f := Forecast{Step: time.Second, Counts: []int64{1, 2, 3, 4, 5}}
	if f.Coarse(2); f.Step != 2*time.Second || !slices.Equal(f.Counts, []int64{3, 7, 5}) {
		t.Errorf("%+v", f)
	}
}
