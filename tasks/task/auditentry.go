package task

import "time"

// Limits of the log of actions.
const (
	// MaxAuditPage is how many entries an answer has at most.
	MaxAuditPage = 1000
	// MaxAuditText bounds each text of an entry, in bytes. A longer one is cut.
	MaxAuditText = 2048
	// MaxAuditsAnHour bounds how many entries a node keeps of an hour, and half of it how many more
	// of acts on one task. Others are in the log alone.
	MaxAuditsAnHour = 1000
)

// An AuditEntry says who did what: an act on many tasks, on a topic or a node, or an operator's act
// on one task. The ledger keeps it for a month.
type AuditEntry struct {
	ID   string    `json:"id"`
	At   time.Time `json:"at"`
	Verb string    `json:"verb"`
	By   string    `json:"by,omitzero"`   // the name of the caller's token; empty: without a token
	Door string    `json:"door"`          // by which it came: http
	Node string    `json:"node"`          // that was asked
	From string    `json:"from,omitzero"` // the caller's address

	Topic  string `json:"topic,omitzero"` // its name, or a pattern
	Group  string `json:"group,omitzero"`
	Task   string `json:"task,omitzero"`   // of an act on one task
	Target string `json:"target,omitzero"` // of an act on a node
	// Detail is the filter of an act on many tasks, or the settings that have changed: JSON.
	Detail string `json:"detail,omitzero"`
	// Before is what an act has changed of a topic's settings, or of one task, as it was: JSON.
	Before string `json:"before,omitzero"`
	// ETag names the revision of the settings, or of the task, that the act has made; of a task
	// that it has cancelled, the last one. Empty: what was there before it is not known.
	ETag   string `json:"etag,omitzero"`
	Undoes string `json:"undoes,omitzero"` // the ID of the entry that this act has undone
	Count  int64  `json:"count,omitzero"`  // tasks that were changed
	// Partial: the act was not over when it was recorded last. Its calls make one entry.
	Partial bool `json:"partial,omitzero"`
	// Unknown: the ledger did not answer in time, so whether all of it was done is not certain.
	Unknown bool `json:"unknown,omitzero"`
}

// An AuditQuery selects entries.
type AuditQuery struct {
	From, To time.Time // zero: a month ago; now
	Topic    string    // of this topic; empty: of all
	Limit    int       // 1 to MaxAuditPage; 0: 100
	Cursor   string    // AuditPage.Cursor of the page before
}

// An AuditPage has entries, the latest first.
type AuditPage struct {
	Entries []AuditEntry
	Cursor  string // of the next page; empty: there is none
	Partial error  // why entries are missing, which the ledger keeps; nil: none are
}

// Bounded returns the entry with its texts cut to MaxAuditText.
func (e AuditEntry) Bounded() AuditEntry {
	for _, text := range []*string{&e.Verb, &e.By, &e.Door, &e.From, &e.Topic, &e.Group, &e.Task, &e.Target, &e.Detail, &e.Before} {
		*text = Cut(*text, MaxAuditText)
	}
	return e
}

// Checked returns the query with its defaults. Errors: ErrInvalid, which names from, limit or
// topic.
func (q AuditQuery) Checked(now time.Time) (AuditQuery, error) {
	if q.To.IsZero() {
		q.To = now.Add(time.Minute) // clocks of other nodes may be ahead
	}
	if q.From.IsZero() {
		q.From = q.To.Add(-MaxHourSpan)
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	switch {
	case !q.From.Before(q.To):
		return q, Invalid("from", "must be before to, which is now if it is left out")
	case q.Limit < 1 || q.Limit > MaxAuditPage:
		return q, Invalid("limit", "must be from 1 to 1000")
	case q.Topic != "" && !ValidPattern(q.Topic):
		return q, Invalid("topic", "must be the name of a topic, or the beginning of names and an asterisk")
	}
	return q, nil
}
