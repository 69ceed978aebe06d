package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A Scope says whose figures are asked for.
type Scope string

// The scopes of figures.
const (
	ScopeFleet Scope = "fleet" // of all nodes that share the server's ledger; the default
	ScopeNode  Scope = "node"  // of the server alone
)

// scoped returns the parameters of a request for figures.
func scoped(scope []Scope) url.Values {
	values := url.Values{}
	if len(scope) > 0 && scope[0] != "" {
		values.Set("scope", string(scope[0]))
	}
	return values
}

// Stats returns the counts of all nodes that share the server's ledger, or of the server alone with
// ScopeNode. A node that does not answer is named in Missing, and is no error. Errors: ErrInvalid,
// ErrUnreachable.
func (c *Client) Stats(ctx context.Context, scope ...Scope) (*Stats, error) {
	return c.stats(ctx, scoped(scope))
}

// Totals is Stats without Topics, of which TopicsLeftOut is the number: the answer is small however
// many topics there are. Errors: those of Stats.
func (c *Client) Totals(ctx context.Context, scope ...Scope) (*Stats, error) {
	values := scoped(scope)
	values.Set("topics", "false")
	return c.stats(ctx, values)
}

func (c *Client) stats(ctx context.Context, values url.Values) (*Stats, error) {
	s := &Stats{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/stats", query: values, effect: reads}, s); err != nil {
		return nil, err
	}
	return s, nil
}

// Diagnosis says what is wrong with the server's fleet: with its ledger, with nodes, with topics,
// the causes first. A node that does not answer is named in Missing and among the troubles, and is
// no error. Errors: ErrInvalid, ErrUnreachable.
func (c *Client) Diagnosis(ctx context.Context) (*Diagnosis, error) {
	d := &Diagnosis{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/diagnosis", effect: reads}, d); err != nil {
		return nil, err
	}
	return d, nil
}

// Alive asks once whether the server does its work. An answer that it does not is no error: Alive
// says what is wrong. Errors: ErrUnreachable.
func (c *Client) Alive(ctx context.Context) (*Alive, error) {
	a := &Alive{}
	q := call{method: http.MethodGet, path: "/healthz", effect: reads, also: http.StatusServiceUnavailable}
	if _, err := c.do(ctx, q, a); err != nil {
		return nil, err
	}
	return a, nil
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

// History returns what has happened in the last minutes, by the minute, at all nodes that share the
// server's ledger, or at the server alone with ScopeNode. minutes is how many to show before the
// one under way, 1 to 60; 0 stands for 60. Errors: ErrInvalid, ErrUnreachable.
func (c *Client) History(ctx context.Context, minutes int, scope ...Scope) (*History, error) {
	values := scoped(scope)
	if minutes != 0 {
		values.Set("minutes", strconv.Itoa(minutes))
	}
	h := &History{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/history", query: values, effect: reads}, h); err != nil {
		return nil, err
	}
	return h, nil
}

// PastQuery selects what Past shows.
type PastQuery struct {
	Topic    string        // empty: all topics together
	From, To time.Time     // from a time on, until before another one; zero: an hour before To; now
	Step     time.Duration // a minute (also 0) or an hour
}

// Past returns what has happened, by the minute for a day or by the hour for a month, as the ledger
// keeps it. Errors: ErrInvalid, ErrForbidden, ErrUnreachable.
func (c *Client) Past(ctx context.Context, q PastQuery, scope ...Scope) (*History, error) {
	values := scoped(scope)
	if q.Topic != "" {
		values.Set("topic", q.Topic)
	}
	if !q.From.IsZero() {
		values.Set("from", q.From.UTC().Format(time.RFC3339))
	}
	if !q.To.IsZero() {
		values.Set("to", q.To.UTC().Format(time.RFC3339))
	}
	switch q.Step {
	case 0, time.Minute:
	case time.Hour:
		values.Set("step", "1h")
	default:
		values.Set("step", q.Step.String()) // which the server refuses
	}
	h := &History{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/history", query: values, effect: reads}, h); err != nil {
		return nil, err
	}
	return h, nil
}

// AuditQuery selects entries of the log of actions.
type AuditQuery struct {
	Topic    string    // empty: of all topics, and of nodes
	From, To time.Time // zero: a month ago; now
	Limit    int       // 1 to 1000; 0: 100
	Cursor   string    // AuditPage.NextCursor of the page before
}

// Audit returns a page of the log of actions, of all nodes, the latest first. Errors: ErrInvalid,
// ErrUnavailable, ErrUnreachable.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (*AuditPage, error) {
	values := url.Values{}
	for name, text := range map[string]string{"topic": q.Topic, "cursor": q.Cursor} {
		if text != "" {
			values.Set(name, text)
		}
	}
	for name, at := range map[string]time.Time{"from": q.From, "to": q.To} {
		if !at.IsZero() {
			values.Set(name, at.UTC().Format(time.RFC3339))
		}
	}
	if q.Limit != 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	p := &AuditPage{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/audit", query: values, effect: reads}, p); err != nil {
		return nil, err
	}
	return p, nil
}

// Undo takes an act back that AuditEntry.ID names, if nothing has changed since: a pause, a resume,
// a change of a topic's settings, or an operator's act on one task. AuditEntry.Undo says how.
//
// Errors: ErrNoAct; ErrNotUndone if the log does not have what that takes; ErrRevision if the topic
// or the task was changed since, also by an Undo that was repeated; those of the call that it
// makes, ErrUnknown among them.
func (c *Client) Undo(ctx context.Context, id string) (*Undone, error) {
	u := &Undone{}
	if _, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/audit/" + url.PathEscape(id) + "/undo", effect: again}, u); err != nil {
		return nil, err
	}
	return u, nil
}

// WaveQuery selects the tasks of a wave by their deadline, in whole minutes.
type WaveQuery struct {
	From  time.Time
	To    time.Time // at most 25 hours later; zero: a minute later
	Topic string    // empty: all topics
	Scope Scope     // empty: ScopeFleet
}

// Wave says what became of the tasks that were due in a span, or how many are.
// Errors: ErrInvalid, ErrUnavailable, ErrUnreachable.
func (c *Client) Wave(ctx context.Context, q WaveQuery) (*Wave, error) {
	values := scoped([]Scope{q.Scope})
	values.Set("from", q.From.UTC().Format(time.RFC3339Nano))
	if !q.To.IsZero() {
		values.Set("to", q.To.UTC().Format(time.RFC3339Nano))
	}
	if q.Topic != "" {
		values.Set("topic", q.Topic)
	}
	w := &Wave{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/waves", query: values, effect: reads}, w); err != nil {
		return nil, err
	}
	return w, nil
}

// Outlook selects what a forecast covers.
type Outlook struct {
	Topic  string        // empty: all topics
	Window time.Duration // how far to look ahead. 0: the server's default, an hour
	Step   time.Duration // length of a step. 0: a 60th of the window
	Scope  Scope         // empty: ScopeFleet
}

// Forecast counts pending tasks by the time of their next attempt.
// Errors: ErrInvalid, ErrUnavailable, ErrUnreachable.
func (c *Client) Forecast(ctx context.Context, o Outlook) (*Forecast, error) {
	values := scoped([]Scope{o.Scope})
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
