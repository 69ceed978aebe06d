// Package checkup has the words in which a part of Lapse tells what it has found out about the
// machine or the server that it depends on, before it depends on it.
//
// It owns one type and calls no other package of Lapse.
package checkup

// A Verdict says how serious a finding is.
type Verdict string

// The verdicts, from the best to the worst.
const (
	OK      Verdict = "ok"
	Unknown Verdict = "unknown" // it could not be found out
	Warn    Verdict = "warn"    // Lapse runs, but not as well or as safely as it could
	Fail    Verdict = "fail"    // Lapse does not start, or loses tasks
)

// A Finding is one thing that was looked at.
type Finding struct {
	Subject string  `json:"subject"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Do      string  `json:"do,omitempty"` // what helps; empty if all is well
}

// Good returns a finding that needs no action.
func Good(subject, found string) Finding { return Finding{subject, OK, found, ""} }
