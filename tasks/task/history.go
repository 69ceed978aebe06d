package task

import "time"

// HistoryMinutes is how many minutes a History has before the one that is under way.
const HistoryMinutes = 60

// A History says what a process has counted in the last hour, by the minute, of all topics
// together. It is in memory, and ends with the process: see PastQuery.
type History struct {
	// Since is when the process began to count.
	Since time.Time
	// Minutes begin with that in which it began to count, or HistoryMinutes ago. The
	// last is under way.
	Minutes []PastMinute
}

// A PastMinute is a minute of a History. What is counted at its end may be in the next one, or the
// other way round, by a period of the sweep.
type PastMinute struct {
	At time.Time `json:"at" fleet:"own"` // when it began, by the clocks of the nodes

	Scheduled int64 `json:"scheduled,omitzero"` // tasks that were accepted
	Delivered int64 `json:"delivered,omitzero"` // acknowledged
	Failed    int64 `json:"failed,omitzero"`    // attempts, of any cause
	Died      int64 `json:"died,omitzero"`
	Cancelled int64 `json:"cancelled,omitzero"`

	// Lateness is that of the first attempts that began; not of tasks that are still ready. Of one
	// topic alone, Max is the upper bound of its bucket.
	Lateness RecentLateness `json:"lateness,omitzero"`

	// Nodes is of how many nodes the minute is, in an answer of FleetPast; 0: nothing is known.
	Nodes int `json:"nodes,omitzero" fleet:"own"`
}

// Add adds what another process has counted in that minute, or that hour.
func (m *PastMinute) Add(o *PastMinute) { addUp(m, o) }

// Limits of a PastQuery.
const (
	MaxMinuteSpan = 25 * time.Hour      // by the minute
	MaxHourSpan   = 31 * 24 * time.Hour // by the hour
)

// A PastQuery asks what has happened from a time on, until before another one.
type PastQuery struct {
	Topic    string        // empty: all topics together
	From, To time.Time     // To is now if it is zero, the minute or hour under way included
	Last     time.Duration // without From: how long before To it is, and a step; 0: an hour
	Step     time.Duration // a minute or an hour; 0: a minute
}

// Checked returns the query with its defaults, From rounded down to a step. Errors: ErrInvalid,
// which names topic, step or from.
func (q PastQuery) Checked(now time.Time) (PastQuery, error) {
	if q.Step == 0 {
		q.Step = time.Minute
	}
	most := MaxMinuteSpan
	switch q.Step {
	case time.Minute:
	case time.Hour:
		most = MaxHourSpan
	default:
		return q, Invalid("step", "must be 1m or 1h")
	}
	if q.Topic != "" && !ValidName(q.Topic) {
		return q, Invalid("topic", "must be the name of a topic")
	}
	if q.To.IsZero() || q.To.After(now.Add(q.Step)) {
		q.To = now.Truncate(q.Step).Add(q.Step)
	}
	if q.From.IsZero() {
		if q.Last <= 0 {
			q.Last = HistoryMinutes * time.Minute
		}
		q.From = q.To.Add(-q.Last - q.Step)
	}
	q.From = q.From.Truncate(q.Step)
	switch {
	case !q.From.Before(q.To):
		return q, Invalid("from", "must be before to, which is now if it is left out")
	case q.To.Sub(q.From) > most+q.Step:
		return q, Invalid("from", "may be 25 hours before to with steps of 1m, and 31 days with steps of 1h")
	}
	return q, nil
}

// A Past is the answer to a PastQuery.
type Past struct {
	Query  PastQuery
	Points []PastMinute // the oldest first, from the first one on of which something is known
	Marks  []Mark       // the earliest first; at most 500, the latest
	// Unread says why what the ledger keeps could not be read, so that there is only what the nodes
	// have in memory; nil if it was, or if the ledger keeps nothing.
	Unread error
}

// A MarkKind says what has happened.
type MarkKind string

// The kinds of marks.
const (
	MarkStarted  MarkKind = "node_started"  // a process has begun; Text is its version
	MarkStopped  MarkKind = "node_stopped"  // it has ended in order
	MarkDown     MarkKind = "node_down"     // its heartbeat has ended
	MarkUp       MarkKind = "node_up"       // it is back
	MarkOutage   MarkKind = "ledger_outage" // the ledger did not answer a node, until Until
	MarkPaused   MarkKind = "paused"        // a topic was paused
	MarkResumed  MarkKind = "resumed"
	MarkSettings MarkKind = "settings" // the settings of a topic were changed
)

// A Mark is something that has happened at a time, beside what was counted.
type Mark struct {
	At    time.Time `json:"at"`
	Until time.Time `json:"until,omitzero"` // when it was over; zero for what has no length
	Kind  MarkKind  `json:"kind"`
	Node  string    `json:"node,omitzero"`  // which was it, or which has noticed it
	Topic string    `json:"topic,omitzero"` // empty: of all topics
	By    string    `json:"by,omitzero"`    // whose act it was
	Text  string    `json:"text,omitzero"`
}
