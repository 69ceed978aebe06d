package client

import (
	"context"
	"net/http"
	"net/url"
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
	s := &Stats{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/stats", query: scoped(scope), effect: reads}, s); err != nil {
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
