package task

import (
	"errors"
	"strconv"
	"testing"
	"time"
)

// A span has whole minutes, and is neither empty nor longer than a day.
func TestWaveQuery(t *testing.T) {
	at := time.Date(2026, 11, 30, 0, 0, 30, 0, time.UTC)
	q, err := WaveQuery{From: at, To: at.Add(time.Minute)}.Check()
	if err != nil || q.To.Sub(q.From) != 2*time.Minute || q.From.Second() != 0 {
		t.Errorf("%+v, %v", q, err)
	}
	for _, bad := range []WaveQuery{{From: at, To: at.Add(-time.Minute)}, {From: at, To: at.Add(MaxWave + time.Minute)}, {To: at},
		{From: at, To: at.Add(time.Second), Topic: "no topic"}} {
		if _, err := bad.Check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A wave is through when nothing of it is left, and ends at the rate of late.
func TestWaveOutlook(t *testing.T) {
	from := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	end := from.Add(41 * time.Minute)
	w := Wave{From: from, To: from.Add(time.Minute), At: from.Add(50 * time.Minute)}
	for name, c := range map[string]struct {
		counts WaveCounts
		want   WaveOutlook
	}{
		"nothing": {WaveCounts{}, WaveOutlook{Progress: 1}},
		"through": {WaveCounts{Delivered: 3, Dead: 1, LastEnd: end}, WaveOutlook{Due: 4, Progress: 1, Through: end}},
		"going":   {WaveCounts{Delivered: 40, Waiting: 100, Retrying: 20, Per1000s: 2000}, WaveOutlook{Due: 160, Progress: 0.25, Ends: w.At.Add(time.Minute)}},
		"stuck":   {WaveCounts{Waiting: 1, LastEnd: end}, WaveOutlook{Due: 1}},
		"held":    {WaveCounts{Held: 1, Delivered: 1, Per1000s: 2000, LastEnd: end}, WaveOutlook{Due: 2, Progress: 0.5}},
		"endless": {WaveCounts{Waiting: 1e15, Per1000s: 1}, WaveOutlook{Due: 1e15, Ends: w.At.Add(366 * 24 * time.Hour)}},
	} {
		if got := w.Outlook(&c.counts); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	ahead := Wave{From: from, To: from.Add(time.Minute), At: from.Add(-time.Hour)}
	if o := ahead.Outlook(&WaveCounts{Waiting: 10, Per1000s: 1000}); !o.Ends.Equal(ahead.To) {
		t.Errorf("one that is to come ends at %v", o.Ends)
	}
}

// Waves of nodes add up, and what is beyond the bound is told as others.
func TestWaveAdds(t *testing.T) {
	since := time.Unix(1000, 0)
	a := Wave{Since: since, Complete: true, Topics: []WaveTopic{{"x", WaveCounts{Delivered: 2, Dead: 1}}}}
	b := Wave{Since: since.Add(time.Minute), Complete: true, Topics: []WaveTopic{{"x", WaveCounts{Waiting: 1, Dead: -1}}, {"y", WaveCounts{Held: 9}}}}
	a.Add(&b)
	a.Sum()
	if total := a.Total(); !a.Since.Equal(b.Since) || total.Open() != 10 || total.Ended() != 2 || a.Topics[0].Name != "y" || !a.Complete {
		t.Errorf("%+v", a)
	}
	var many Wave
	for i := range MaxWaveTopics + 3 {
		many.Topics = append(many.Topics, WaveTopic{"t" + strconv.Itoa(i), WaveCounts{Waiting: 1}})
	}
	many.Bound()
	if total := many.Total(); len(many.Topics) != MaxWaveTopics || many.Beyond != 3 || many.Others.Waiting != 3 || total.Waiting != MaxWaveTopics+3 {
		t.Errorf("%d topics, %d beyond, %+v", len(many.Topics), many.Beyond, many.Others)
	}
}

// What a node has requeued that it has not seen die takes nothing from other topics.
func TestWaveSums(t *testing.T) {
	a := Wave{Topics: []WaveTopic{{"x", WaveCounts{Dead: -3}}, {"y", WaveCounts{Delivered: 5}}}, Others: WaveCounts{Cancelled: -2}}
	b := Wave{Topics: []WaveTopic{{"x", WaveCounts{Dead: 1}}, {"z", WaveCounts{Skipped: -1, Waiting: 1}}}}
	a.Add(&b)
	a.Sum()
	if total := a.Total(); total.Dead != 0 || total.Ended() != 5 || total.Open() != 1 || len(a.Topics) != 2 {
		t.Errorf("%+v", a)
	}
	c := a.Total()
	if o := a.Outlook(&c); o.Due != 6 {
		t.Errorf("%+v", o)
	}
	many := Wave{Topics: []WaveTopic{{"one", WaveCounts{Dead: -MaxWaveTopics}}}}
	for i := range MaxWaveTopics + 1 {
		many.Topics = append(many.Topics, WaveTopic{"t" + strconv.Itoa(i), WaveCounts{Delivered: 1}})
	}
	if many.Sum(); many.Beyond != 1 || many.Others.Ended() != 1 {
		t.Errorf("%d beyond, %+v", many.Beyond, many.Others)
	}
}
