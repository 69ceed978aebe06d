package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Stats are the counts of a server. What only grows is counted since it started.
type Stats struct {
	Node    string      `json:"node"`
	Version string      `json:"version"`
	Uptime  Duration    `json:"uptime"`
	State   Readiness   `json:"state"`
	Total   Counts      `json:"total"`
	Topics  []Topic     `json:"topics"` // by name; empty if there are more than 1,000
	Sweep   SweepStats  `json:"sweep"`
	Ledger  LedgerStats `json:"ledger"`
	Spool   SpoolStats  `json:"spool"`
	Memory  MemoryStats `json:"memory"`
	Events  EventStats  `json:"events"`
	Nodes   NodesStats  `json:"nodes"`
	// TopicsLeftOut is how many topics there are, if they are too many for Topics.
	TopicsLeftOut int `json:"topics_left_out,omitempty"`
	// ClockSteps are jumps of the wall clock that were noticed.
	ClockSteps int64 `json:"clock_steps"`
}

// SweepStats are the counts of the sweep and its audit.
type SweepStats struct {
	Rescued        int64 `json:"rescued"` // tasks found overdue; outside a fault always 0
	LeasesReturned int64 `json:"leases_returned"`
	AuditChecked   int64 `json:"audit_checked"`
	AuditRepaired  int64 `json:"audit_repaired"`
	MissedWakes    int64 `json:"missed_wakes"` // outside a fault always 0
	Backlog        int   `json:"backlog"`      // ready tasks that the node delivers by itself
	Backlogs       int64 `json:"backlogs"`     // times that they were too many
	// Concurrency is that of topics without one of their own; raised during a backlog.
	Concurrency int       `json:"concurrency"`
	Full        FullSweep `json:"full"`
}

// NodesStats are the counts of what passes between nodes that share a ledger.
type NodesStats struct {
	ReservesGiven int64 `json:"reserves_given"` // deliveries of its tasks to receivers that wait at other nodes
	ReservesTaken int64 `json:"reserves_taken"` // deliveries of other nodes' tasks to receivers that wait at this one
	HelpTaken     int64 `json:"help_taken"`     // deliveries of its tasks that others have made during a backlog
	HelpGiven     int64 `json:"help_given"`     // deliveries that it has made for others during their backlogs
}

// FullSweep tells of the sweeps that look at everything.
type FullSweep struct {
	Count  int64      `json:"count"`             // that are over
	LastAt *time.Time `json:"last_at,omitempty"` // when the last one began
	Took   Duration   `json:"took"`
}

// LedgerStats are the counts of writes.
type LedgerStats struct {
	Commits        int64 `json:"commits"`
	Changes        int64 `json:"changes"`         // in those commits
	Repeats        int64 `json:"repeats"`         // commits that were sent again
	Queued         int   `json:"queued"`          // changes that wait now
	UnknownRecords int64 `json:"unknown_records"` // of a newer version, kept and not read
}

// SpoolStats tell of tasks that Redis could not take.
type SpoolStats struct {
	Tasks     int    `json:"tasks"`               // that only the disk of the node has
	Moved     int64  `json:"moved"`               // from there to Redis
	Condition string `json:"condition,omitempty"` // why the spool takes no new tasks
}

// MemoryStats tell where the tasks are.
type MemoryStats struct {
	ArenaBytes int64 `json:"arena_bytes"`
	ArenaLive  int64 `json:"arena_live_bytes"`
	Armed      int   `json:"armed"` // entries of the timing wheel
}

// EventStats tell of those who hear of events.
type EventStats struct {
	Streams int   `json:"streams"` // that are open
	Lost    int64 `json:"lost"`    // events that their readers were too slow for
}

// Counts are how many tasks stand where now, and what has happened.
type Counts struct {
	Pending    int64 `json:"pending"`
	Ready      int64 `json:"ready"`
	Delivering int64 `json:"delivering"`
	Dead       int64 `json:"dead"`

	// DeadOldestAt is when the first of those that are dead died; nil if there are none.
	DeadOldestAt *time.Time `json:"dead_oldest_at,omitempty"`

	Scheduled    int64    `json:"scheduled"`
	Delivered    int64    `json:"delivered"`     // acknowledged
	Failed       int64    `json:"failed"`        // attempts, of any cause
	LeaseExpired int64    `json:"lease_expired"` // also in Failed
	Panicked     int64    `json:"panicked"`      // also in Failed
	Died         int64    `json:"died"`
	Expired      int64    `json:"expired"` // dead, and deleted because they were kept long enough
	Cancelled    int64    `json:"cancelled"`
	Skipped      int64    `json:"skipped"` // later than their MaxLateness, or because of their topic's Misfire
	Lateness     Lateness `json:"lateness"`
}

// Lateness sums up how late first attempts began. P50 and P99 are upper bounds.
type Lateness struct {
	Count int64    `json:"count"`
	Mean  Duration `json:"mean"`
	P50   Duration `json:"p50"`
	P99   Duration `json:"p99"`
}

// Readiness tells whether a server has read its tasks back, and how its ledger does.
type Readiness struct {
	Ready        bool        `json:"ready"`
	Starting     bool        `json:"starting"` // the ledger was not reached yet since the start
	ShuttingDown bool        `json:"shutting_down"`
	Draining     bool        `json:"draining"` // it hands over what it holds, and takes no new tasks
	Unsure       bool        `json:"unsure"`   // others may have adopted what it holds
	Away         int         `json:"away"`     // shards of its own that others still hold
	Replay       Replay      `json:"replay"`
	Ledger       LedgerState `json:"ledger"`
	Waiting      []Waiting   `json:"waiting"` // what is stuck or not served yet
}

// Waiting is something that is stuck or not served yet.
type Waiting struct {
	What   string    `json:"what"`
	Detail string    `json:"detail,omitempty"` // what it waits for
	Since  time.Time `json:"since"`
}

// Replay tells how far the reading back has come.
type Replay struct {
	Over    bool     `json:"over"`
	Records int64    `json:"records"` // read so far
	Elapsed Duration `json:"elapsed"`
}

// LedgerState tells how the ledger does.
type LedgerState struct {
	OK        bool     `json:"ok"`
	Stalled   Duration `json:"stalled"`             // how long it has not answered a write
	Condition string   `json:"condition,omitempty"` // why it takes no new records, or does not answer

	Where       string   `json:"where,omitempty"`        // the storage, without its secrets
	Version     string   `json:"version,omitempty"`      // of the storage's server
	Latency     Duration `json:"latency,omitempty"`      // of a recent round trip to it
	ClockOffset Duration `json:"clock_offset,omitempty"` // its clock minus the server's
	Warnings    []string `json:"warnings,omitempty"`     // what an operator should change
}

// Stats returns the counts of the server. Errors: ErrUnreachable.
func (c *Client) Stats(ctx context.Context) (*Stats, error) {
	s := &Stats{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/stats", effect: reads}, s); err != nil {
		return nil, err
	}
	return s, nil
}

// Ready asks once whether the server is ready. A server that answers that it is not is
// no error: Readiness tells how far it is. Errors: ErrUnreachable.
func (c *Client) Ready(ctx context.Context) (*Readiness, error) {
	r := &Readiness{}
	q := call{method: http.MethodGet, path: "/readyz", effect: reads, also: http.StatusServiceUnavailable}
	if _, err := c.do(ctx, q, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Outlook says what a forecast is about.
type Outlook struct {
	Topic  string        // empty: all topics
	Window time.Duration // how far to look ahead. 0: the server's default, an hour
	Step   time.Duration // what to count together. 0: a 60th of the window
}

// Forecast tells how many attempts will start when. It is no snapshot.
type Forecast struct {
	From       time.Time `json:"from"`
	Step       Duration  `json:"step"`
	Counts     []int64   `json:"counts"`     // by step, the first one beginning at From
	Ready      int64     `json:"ready"`      // wait for their receiver already
	Delivering int64     `json:"delivering"` // are being delivered
	Later      int64     `json:"later"`      // come after the last step
	Complete   bool      `json:"complete"`   // false while replay runs: some may be missing
}

// Forecast counts pending tasks by the time of their next attempt.
// Errors: ErrInvalid, ErrUnavailable, ErrUnreachable.
func (c *Client) Forecast(ctx context.Context, o Outlook) (*Forecast, error) {
	values := url.Values{}
	if o.Topic != "" {
		values.Set("topic", o.Topic)
	}
	if o.Window != 0 {
		values.Set("window", Duration(o.Window).String())
	}
	if o.Step != 0 {
		values.Set("step", Duration(o.Step).String())
	}
	f := &Forecast{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/forecast", query: values, effect: reads}, f); err != nil {
		return nil, err
	}
	return f, nil
}
