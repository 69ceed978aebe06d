package task

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/internal/timespan"
)

const (
	// MaxPeaks is how many peaks a Foresight tells of.
	MaxPeaks = 10
	// ShownWithin is how far back the best minute of a ShownRate is looked for: a night that is
	// like the one before is judged by that.
	ShownWithin = 25 * time.Hour
	// maxSpread is the longest TopicSettings.Spread.
	maxSpread = 24 * time.Hour
)

// A ShownRate is the most that receivers have shown: how much was delivered in the best minute that
// is known of the last ShownWithin.
type ShownRate struct {
	Delivered int64     // in that minute; 0: no rate was shown
	At        time.Time // when the minute began
	// Limit: about as much was delivered while most tasks had waited for a minute or longer, so
	// receivers gave no more. Without it they may be able to do more: no minute has shown.
	Limit bool
}

// PerSecond is that rate.
func (r *ShownRate) PerSecond() float64 { return float64(r.Delivered) / 60 }

// ShownBy returns what minutes have shown. One that is under way shows less than it will.
func ShownBy(minutes []PastMinute) (r ShownRate) {
	for i := range minutes {
		if m := &minutes[i]; m.Delivered > r.Delivered {
			r = ShownRate{Delivered: m.Delivered, At: m.At}
		}
	}
	for i := range minutes {
		m := &minutes[i]
		late := int64(0) // first attempts that began more than a minute late
		for _, n := range m.Lateness.Counts[LatenessBucket(time.Minute)+1:] {
			late += n
		}
		if m.Delivered >= r.Delivered-r.Delivered/10 && late > m.Lateness.Counts.Total()/2 {
			r.Limit = r.Delivered > 0
		}
	}
	return r
}

// A Foresight says whether what falls due will be delivered in time, at the rate that was shown. It
// takes all tasks for one queue: of all topics together, as if the receivers of one were there for
// the others, too. What a paused topic holds back is not in the queue, what will fall due in it is.
type Foresight struct {
	Rate      ShownRate     // without one nothing is judged
	Precision time.Duration // waits that are not longer are not seen
	Peaks     []Peak        // the earliest first; at most MaxPeaks, those that wait longest
	More      int           // how many further peaks wait
	Text      string        // all of it in one sentence; its times are of UTC
}

// A Peak is a time from which on more falls due than is delivered, until that is made up for.
type Peak struct {
	At      time.Time     // when the step with most of its tasks begins
	Tasks   int64         // that fall due until it is through
	Through time.Time     // when all of them are delivered
	Wait    time.Duration // p99: 99 of 100 wait no longer
	// Spread is how long a Spread would have to be so that none waits: rounded up, 0 if no spread
	// is long enough, because it has more than a day or begins with tasks that wait already.
	Spread time.Duration
	// Beyond: it lasts beyond the last step. Tasks that fall due after that do not count: Through
	// is the earliest time.
	Beyond bool
}

// Text says what becomes of a peak, without when it is.
func (p *Peak) Text() string {
	through := "through after "
	if p.Beyond {
		through = "not through before "
	}
	text := fmt.Sprintf("%s: %s%s, p99 of the wait %s", counted(p.Tasks, "task"), through, rounded(p.Through.Sub(p.At)), rounded(p.Wait))
	if p.Spread > 0 {
		return text + "; with a spread of " + timespan.Format(p.Spread) + " none waits"
	}
	return text
}

// When says when a peak is.
func (p *Peak) When() string { return p.At.UTC().Format("2006-01-02 15:04 UTC") }

// rounded is a duration that is not known to the second, unless it is short.
func rounded(d time.Duration) string {
	switch {
	case d >= 10*time.Minute:
		d = d.Round(time.Minute)
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	default:
		d = d.Round(100 * time.Millisecond)
	}
	return timespan.Format(d)
}

// Judge says what becomes of the tasks of a forecast at a rate. How fine the steps of the forecast
// are is its precision.
func (f *Forecast) Judge(rate ShownRate) Foresight {
	j := Foresight{Rate: rate, Precision: max(f.Step, time.Second)}
	if !rate.Limit {
		j.Precision = max(f.Step, time.Minute) // what was delivered in a minute may have taken less
	}
	if rate.Delivered > 0 {
		all := slices.DeleteFunc(peaks(f.Counts, f.Step, f.Ready-f.ReadyPaused, rate.PerSecond()), func(p peak) bool { return p.wait <= j.Precision })
		slices.SortStableFunc(all, func(a, b peak) int { return cmp.Compare(b.wait, a.wait) })
		if j.More = max(0, len(all)-MaxPeaks); j.More > 0 {
			all = all[:MaxPeaks]
		}
		for i := range all {
			p := &all[i]
			peak := Peak{At: f.From.Add(p.at).UTC(), Tasks: p.tasks, Through: f.From.Add(p.through).UTC(), Wait: p.wait, Beyond: p.beyond}
			if p.before <= j.Precision {
				peak.Spread = spreadOf(p.took)
			}
			j.Peaks = append(j.Peaks, peak)
		}
	}
	j.Text = j.sentence(f)
	slices.SortFunc(j.Peaks, func(a, b Peak) int { return a.At.Compare(b.At) })
	return j
}

// sentence is Text, while the first of the peaks is that which waits longest.
func (j *Foresight) sentence(f *Forecast) string {
	due := f.Ready
	for _, n := range f.Counts {
		due += n
	}
	rate := perSecond(j.Rate.PerSecond())
	var text string
	switch {
	case j.Rate.Delivered == 0:
		return "No rate has been shown yet, so nothing is judged."
	case due == 0:
		text = "Nothing falls due"
	case len(j.Peaks) == 0:
		text = "None waits for longer than " + timespan.Format(j.Precision) + " at " + rate + ", the best minute of the last day"
	default:
		p := &j.Peaks[0]
		text = p.When() + ", " + p.Text()
		if more := len(j.Peaks) + j.More - 1; more > 0 {
			text += "; and " + counted(int64(more), "more peak")
		}
		if j.Rate.Limit {
			text += ", judged by " + rate + ", all that receivers gave while tasks waited"
		} else {
			text = "Whether tasks wait is not known: receivers may do more than " + rate + ", the best minute of the last day. By that, " + text
		}
	}
	if !f.Complete {
		text += "; not all tasks are in it"
	}
	return text + "."
}

// perSecond writes a rate.
func perSecond(rate float64) string {
	if rate >= 10 {
		return fmt.Sprintf("%.0f/s", rate)
	}
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.2f", rate), "0"), ".") + "/s"
}

// A peak is a Peak in times since the first step began.
type peak struct {
	at, through, wait, took time.Duration // took: how long its tasks take to be delivered
	before                  time.Duration // how long what waited at its beginning takes
	tasks, most             int64         // most of a step
	beyond                  bool
	waits                   []waiting
}

// waiting are tasks whose waits are evenly distributed between two.
type waiting struct {
	tasks    float64
	from, to float64 // seconds
}

// peaks lets bars, one a step, fall due and be delivered at a rate, tasks a second, the earliest
// first. Those of a step fall due at its beginning. waits is how many wait already. It returns each
// time in which some wait.
func peaks(bars []int64, step time.Duration, waits int64, rate float64) (all []peak) {
	left := float64(waits) // to be delivered
	seconds := step.Seconds()
	var p *peak
	end := func(through float64, beyond bool) {
		if p != nil && p.tasks > 0 {
			p.through, p.beyond = span(through), beyond
			p.wait, p.took = p.p99(), span(float64(p.tasks)/rate)
			p.waits = nil
			all = append(all, *p)
		}
		p = nil
	}
	for k, n := range bars {
		begin := float64(k) * seconds
		if left+float64(n) > 0 {
			if p == nil {
				p = &peak{before: span(left / rate)}
			}
			if n > p.most {
				p.most, p.at = n, span(begin)
			}
			if n > 0 {
				p.tasks += n
				p.waits = append(p.waits, waiting{float64(n), left / rate, (left + float64(n)) / rate})
			}
		}
		if left += float64(n); left > rate*seconds {
			left -= rate * seconds
			continue
		}
		end(begin+left/rate, false)
		left = 0
	}
	end(float64(len(bars))*seconds+left/rate, true)
	return all
}

// p99 returns how long 99 of 100 tasks wait at most.
func (p *peak) p99() time.Duration {
	longest := 0.0
	for _, w := range p.waits {
		longest = max(longest, w.to)
	}
	low, high := 0.0, longest
	for range 40 {
		middle, longer := (low+high)/2, 0.0
		for _, w := range p.waits {
			longer += w.tasks * min(1, max(0, (w.to-middle)/(w.to-w.from)))
		}
		if longer > float64(p.tasks)/100 {
			low = middle
		} else {
			high = middle
		}
	}
	return span(high)
}

// span is a number of seconds, of ten years at most.
func span(seconds float64) time.Duration {
	return time.Duration(min(seconds, MaxAhead.Seconds()) * float64(time.Second))
}

// spreadOf rounds up how long a spread has to be; 0: longer than there is one.
func spreadOf(d time.Duration) time.Duration {
	unit := 10 * time.Second
	switch {
	case d > time.Hour:
		unit = 15 * time.Minute
	case d > 10*time.Minute:
		unit = 5 * time.Minute
	case d > time.Minute:
		unit = time.Minute
	}
	d = time.Duration(math.Ceil(float64(d)/float64(unit))) * unit
	if d > maxSpread {
		return 0
	}
	return d
}

// Fine returns an outlook of the same window with as many steps as are allowed, and how many of
// them make up one of o, which was checked.
func (o Outlook) Fine() (finer Outlook, each int) {
	step := (o.Step + time.Millisecond - 1).Truncate(time.Millisecond)
	steps := int((o.Window + step - 1) / step)
	window := time.Duration(steps) * step
	for each = MaxForecastSteps / steps; each > 1; each-- {
		if step.Milliseconds()%int64(each) == 0 && window <= MaxAhead {
			o.Window, o.Step = window, step/time.Duration(each)
			return o, each
		}
	}
	return o, 1
}

// Coarse makes one step of so many.
func (f *Forecast) Coarse(each int) {
	counts := make([]int64, (len(f.Counts)+each-1)/each)
	for i, n := range f.Counts {
		counts[i/each] += n
	}
	f.Counts, f.Step = counts, time.Duration(each)*f.Step
}
