package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Stats are the counts of a server. Counters begin at its start.
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
	Rescued        int64 `json:"rescued"` // tasks found overdue; without a fault always 0
	LeasesReturned int64 `json:"leases_returned"`
	AuditChecked   int64 `json:"audit_checked"`
	AuditRepaired  int64 `json:"audit_repaired"`
	MissedWakes    int64 `json:"missed_wakes"` // without a fault always 0
	Backlog        int   `json:"backlog"`      // ready tasks that the node delivers by itself
	Backlogs       int64 `json:"backlogs"`     // how often they were too many
	// Concurrency is the bound of topics without one of their own; raised during a backlog.
	Concurrency int       `json:"concurrency"`
	Full        FullSweep `json:"full"`
}

// NodesStats are the counts of calls between nodes that share a ledger.
type NodesStats struct {
	// Deliveries of its tasks to receivers that wait at other nodes.
	ReservesGiven int64 `json:"reserves_given"`
	// Deliveries of other nodes' tasks to receivers that wait at this one.
	ReservesTaken int64 `json:"reserves_taken"`
	// Deliveries of its tasks that other nodes have made during a backlog.
	HelpTaken int64 `json:"help_taken"`
	// Deliveries that it has made for other nodes during their backlogs.
	HelpGiven int64 `json:"help_given"`
}

// FullSweep reports the sweeps over everything.
type FullSweep struct {
	Count  int64      `json:"count"`             // that have ended
	LastAt *time.Time `json:"last_at,omitempty"` // when the last one began
	Took   Duration   `json:"took"`
}

// LedgerStats are the counts of writes.
type LedgerStats struct {
	Commits        int64 `json:"commits"`
	Changes        int64 `json:"changes"`         // in those commits
	Repeats        int64 `json:"repeats"`         // commits sent again
	Queued         int   `json:"queued"`          // changes that wait now
	UnknownRecords int64 `json:"unknown_records"` // of a newer version, kept and not read
}

// SpoolStats are about tasks that Redis could not store.
type SpoolStats struct {
	Tasks     int    `json:"tasks"`               // on the disk of the node only
	Moved     int64  `json:"moved"`               // from there to Redis
	Condition string `json:"condition,omitempty"` // why the spool takes no new tasks
}

// MemoryStats report where the tasks are.
type MemoryStats struct {
	ArenaBytes int64 `json:"arena_bytes"`
	ArenaLive  int64 `json:"arena_live_bytes"`
	Armed      int   `json:"armed"` // entries of the timing wheel
}

// EventStats are about the readers of events.
type EventStats struct {
	Streams int   `json:"streams"` // that are open
	Lost    int64 `json:"lost"`    // events that their readers were too slow for
}

// Counts are how many tasks are in which state, and what has happened.
type Counts struct {
	Pending    int64 `json:"pending"`
	Ready      int64 `json:"ready"`
	Delivering int64 `json:"delivering"`
	Dead       int64 `json:"dead"`

	// DeadOldestAt is when the oldest dead task died; nil if there is none.
	DeadOldestAt *time.Time `json:"dead_oldest_at,omitempty"`

	Scheduled    int64 `json:"scheduled"`
	Delivered    int64 `json:"delivered"`     // acknowledged
	Failed       int64 `json:"failed"`        // attempts, of any cause
	LeaseExpired int64 `json:"lease_expired"` // also in Failed
	Panicked     int64 `json:"panicked"`      // also in Failed
	Died         int64 `json:"died"`
	Expired      int64 `json:"expired"` // dead, and deleted after their retention
	Cancelled    int64 `json:"cancelled"`
	// Later than their MaxLateness, or not delivered because of their topic's Misfire.
	Skipped  int64    `json:"skipped"`
	Lateness Lateness `json:"lateness"`
}

// Lateness sums up how late first attempts began. P50 and P99 are upper bounds.
type Lateness struct {
	Count int64    `json:"count"`
	Mean  Duration `json:"mean"`
	P50   Duration `json:"p50"`
	P99   Duration `json:"p99"`
}

// Readiness reports whether a server has read its tasks back, and the state of its ledger.
type Readiness struct {
	Ready        bool `json:"ready"`
	Starting     bool `json:"starting"` // the ledger has not been reached since the start
	ShuttingDown bool `json:"shutting_down"`
	// The node hands over its shards, and takes no new tasks.
	Draining bool        `json:"draining"`
	Unsure   bool        `json:"unsure"` // other nodes may have adopted its shards
	Away     int         `json:"away"`   // shards of its own that other nodes still hold
	Replay   Replay      `json:"replay"`
	Ledger   LedgerState `json:"ledger"`
	Waiting  []Waiting   `json:"waiting"` // what is stuck or not served yet
}

// Waiting is one thing that is stuck or not served yet.
type Waiting struct {
	What   string    `json:"what"`
	Detail string    `json:"detail,omitempty"` // what it waits for
	Since  time.Time `json:"since"`
}

// Replay reports how far the reading back of tasks has come.
type Replay struct {
	Over    bool     `json:"over"`
	Records int64    `json:"records"` // read so far
	Elapsed Duration `json:"elapsed"`
}

// LedgerState is the state of the ledger.
type LedgerState struct {
	OK      bool     `json:"ok"`
	Stalled Duration `json:"stalled"` // time since it stopped answering writes
	// Condition is why the ledger takes no new records, or does not answer.
	Condition string `json:"condition,omitempty"`

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

// Ready asks once whether the server is ready. An answer that it is not is no error: Readiness says
// how far it is. Errors: ErrUnreachable.
func (c *Client) Ready(ctx context.Context) (*Readiness, error) {
	r := &Readiness{}
	q := call{method: http.MethodGet, path: "/readyz", effect: reads, also: http.StatusServiceUnavailable}
	if _, err := c.do(ctx, q, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Outlook selects what a forecast covers.
type Outlook struct {
	Topic  string        // empty: all topics
	Window time.Duration // how far to look ahead. 0: the server's default, an hour
	Step   time.Duration // length of a step. 0: a 60th of the window
}

// Forecast reports how many attempts will start when. It is no snapshot.
type Forecast struct {
	From       time.Time `json:"from"`
	Step       Duration  `json:"step"`
	Counts     []int64   `json:"counts"`     // by step, the first one beginning at From
	Ready      int64     `json:"ready"`      // tasks that wait for their receiver
	Delivering int64     `json:"delivering"` // tasks that are being delivered
	Later      int64     `json:"later"`      // tasks after the last step
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
