package task

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Bounds of waves.
const (
	// MaxWave is the longest span of a wave: a day with another hour.
	MaxWave = 25 * time.Hour
	// MaxWaveTopics is how many topics of a wave are told apart.
	MaxWaveTopics = 100
)

// A WaveQuery asks for what is due, or was, from one minute on until before another one.
type WaveQuery struct {
	From, To time.Time // rounded down and up to whole minutes; From before To, at most MaxWave
	Topic    string    // empty: all topics
}

// Check returns the query with whole minutes. Errors: ErrInvalid.
func (q WaveQuery) Check() (WaveQuery, error) {
	var f Faults
	if q.Topic != "" && !ValidName(q.Topic) {
		f.Add("topic", NameProblem)
	}
	q.From = q.From.UTC().Truncate(time.Minute)
	if to := q.To.UTC().Truncate(time.Minute); to.Before(q.To) {
		q.To = to.Add(time.Minute)
	} else {
		q.To = to
	}
	switch {
	case q.From.Unix() < 0:
		f.Add("from", "must be in 1970 or later")
	case !q.To.After(q.From):
		f.Add("to", "must be after from")
	case q.To.Sub(q.From) > MaxWave:
		f.Add("to", fmt.Sprintf("must be at most %d hours after from", MaxWave/time.Hour))
	}
	return q, f.Err()
}

// WaveCounts count the tasks that were due in a wave by their fate. What has ended is counted when
// it ends; a dead task that is requeued or deleted is dead no more.
type WaveCounts struct {
	Waiting    int64 `json:"waiting,omitzero"`    // for their time or a receiver; none has failed
	Delivering int64 `json:"delivering,omitzero"` // at whatever attempt
	Retrying   int64 `json:"retrying,omitzero"`   // an attempt has failed since the deadline
	Held       int64 `json:"held,omitzero"`
	Delivered  int64 `json:"delivered,omitzero"`
	Dead       int64 `json:"dead,omitzero"`
	Cancelled  int64 `json:"cancelled,omitzero"` // or deleted once they were dead
	Skipped    int64 `json:"skipped,omitzero"`

	// Oldest is the earliest deadline of those that wait, are delivered or retry.
	Oldest time.Time `json:"oldest,omitzero"`
	// LastEnd is when the last of those that have ended did, by the sweep before that.
	LastEnd time.Time `json:"last_end,omitzero"`
	// Per1000s is how many tasks were delivered in 1,000 seconds of late, of whatever wave: by the
	// last 5 minutes, or by those since the first delivery of these.
	Per1000s int64 `json:"per_1000s,omitzero"`
}

// Rate is how many tasks a second were delivered of late.
func (c *WaveCounts) Rate() float64 { return float64(c.Per1000s) / 1000 }

// Open is how many tasks are still to be delivered.
func (c *WaveCounts) Open() int64 { return c.Waiting + c.Delivering + c.Retrying + c.Held }

// Ended is how many tasks have ended.
func (c *WaveCounts) Ended() int64 { return c.Delivered + c.Dead + c.Cancelled + c.Skipped }

// Add adds what other tasks have come to.
func (c *WaveCounts) Add(o *WaveCounts) {
	c.Waiting += o.Waiting
	c.Delivering += o.Delivering
	c.Retrying += o.Retrying
	c.Held += o.Held
	c.Delivered += o.Delivered
	c.Dead += o.Dead
	c.Cancelled += o.Cancelled
	c.Skipped += o.Skipped
	c.Oldest = earlier(c.Oldest, o.Oldest)
	if o.LastEnd.After(c.LastEnd) {
		c.LastEnd = o.LastEnd
	}
	c.Per1000s += o.Per1000s
}

// A WaveTopic is the part of a wave that is of one topic.
type WaveTopic struct {
	Name string `json:"name"`
	WaveCounts
}

// A Wave is all that was due in a span, and its fate. It is no snapshot: a task that ends meanwhile
// counts as open or as ended, and one whose shard changes hands twice or not at all.
type Wave struct {
	From, To time.Time   // whole minutes
	At       time.Time   // when it was counted
	Since    time.Time   // from when on what has ended is known, a day before At at the earliest
	Topics   []WaveTopic // at most MaxWaveTopics, those with the most tasks first
	Others   WaveCounts  // of further topics
	Beyond   int         // how many further topics there are, at least
	// Complete is false while a node that was asked reads its tasks, or the ledger cannot be read;
	// and if some topics were asked for and ends of the span are counted for others, whose topics
	// are not known any more.
	Complete bool
}

// A WaveTally adds up the counts of a wave by topic, of the topics that were asked for.
type WaveTally struct {
	Topics   map[string]*WaveCounts // "": topics that are not known any more
	topic    string                 // the only one; empty: all that patterns allow
	patterns []string
	partly   bool
}

// NewWaveTally returns one of a topic, or of all that the grant of ctx allows.
func NewWaveTally(ctx context.Context, topic string) *WaveTally {
	return &WaveTally{Topics: make(map[string]*WaveCounts), topic: topic, patterns: PatternsOf(ctx)}
}

// Of returns the counts of a topic.
func (t *WaveTally) Of(topic string) *WaveCounts {
	c := t.Topics[topic]
	if c == nil {
		c = new(WaveCounts)
		t.Topics[topic] = c
	}
	return c
}

// Enter adds counts of a topic, if it was asked for. Of topics that are not known any more it adds
// them if all were asked for; else the wave is not complete.
func (t *WaveTally) Enter(topic string, c *WaveCounts) {
	switch {
	case topic == "" && (t.topic != "" || len(t.patterns) > 0):
		t.partly = true
	case topic == "" || t.topic == topic || t.topic == "" && AnyMatches(t.patterns, topic):
		t.Of(topic).Add(c)
	}
}

// AddTo enters all that was counted in a wave.
func (t *WaveTally) AddTo(w *Wave) {
	o := Wave{Complete: !t.partly}
	for name, c := range t.Topics {
		if name == "" {
			o.Others.Add(c)
			o.Beyond++
			continue
		}
		o.Topics = append(o.Topics, WaveTopic{Name: name, WaveCounts: *c})
	}
	o.Bound()
	w.Add(&o)
}

// Total is that of all topics.
func (w *Wave) Total() WaveCounts {
	all := w.Others
	for i := range w.Topics {
		all.Add(&w.Topics[i].WaveCounts)
	}
	return all
}

// Add adds the wave of another node, with the same span. Sum follows the last one.
func (w *Wave) Add(o *Wave) {
	at := make(map[string]int, len(w.Topics))
	for i := range w.Topics {
		at[w.Topics[i].Name] = i
	}
	for i := range o.Topics {
		t := &o.Topics[i]
		if k, known := at[t.Name]; known {
			w.Topics[k].Add(&t.WaveCounts)
		} else {
			w.Topics = append(w.Topics, *t)
		}
	}
	w.Others.Add(&o.Others)
	w.Beyond = max(w.Beyond, o.Beyond)
	if o.Since.After(w.Since) {
		w.Since = o.Since
	}
	w.Complete = w.Complete && o.Complete
}

// Sum ends the adding of nodes. What a node has counted may be less than 0: a task that died at
// another one, or before a restart, may be requeued there. What is less than 0 for all nodes
// together counts as 0. Topics without tasks are left out.
func (w *Wave) Sum() {
	for i := range w.Topics {
		w.Topics[i].clamp()
	}
	w.Others.clamp()
	w.Topics = slices.DeleteFunc(w.Topics, func(t WaveTopic) bool { return t.Open()+t.Ended() == 0 })
	w.Bound()
}

// clamp takes what has ended as 0 where it is less.
func (c *WaveCounts) clamp() {
	for _, n := range []*int64{&c.Delivered, &c.Dead, &c.Cancelled, &c.Skipped} {
		*n = max(*n, 0)
	}
}

// Bound sorts the topics, and adds those beyond MaxWaveTopics to the others.
func (w *Wave) Bound() {
	slices.SortFunc(w.Topics, func(a, b WaveTopic) int {
		return cmp.Or(cmp.Compare(b.Open()+b.Ended(), a.Open()+a.Ended()), cmp.Compare(a.Name, b.Name))
	})
	if len(w.Topics) <= MaxWaveTopics {
		return
	}
	for i := range w.Topics[MaxWaveTopics:] {
		w.Others.Add(&w.Topics[MaxWaveTopics+i].WaveCounts)
	}
	w.Beyond += len(w.Topics) - MaxWaveTopics
	w.Topics = w.Topics[:MaxWaveTopics]
}

// A WaveOutlook says how far a wave is.
type WaveOutlook struct {
	Due      int64     // all tasks of the wave
	Progress float64   // the part of them that has ended, 0 to 1; 1 if there are none
	Through  time.Time // when the last one has ended; zero: one has not, or it is not known
	Ends     time.Time // when the last one is expected to end at Rate(); zero: not known
}

// Outlook says how far a wave is, of counts at a time.
func (w *Wave) Outlook(c *WaveCounts) WaveOutlook {
	open, ended := c.Open(), c.Ended()
	o := WaveOutlook{Due: open + ended, Progress: 1}
	if o.Due > 0 {
		o.Progress = float64(ended) / float64(o.Due)
	}
	switch {
	case open == 0 && !w.At.Before(w.To):
		o.Through = c.LastEnd
	case open > c.Held && c.Per1000s > 0:
		const longest = 366 * 24 * 3600 // seconds
		left := time.Duration(min(float64(open-c.Held)/c.Rate(), longest) * float64(time.Second))
		from := w.At
		if from.Before(w.From) {
			from = w.From
		}
		if o.Ends = from.Add(left); o.Ends.Before(w.To) && w.At.Before(w.To) {
			o.Ends = w.To
		}
	}
	return o
}
