package client

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"time"

	"github.com/goccy/go-json"
)

// ListDead returns a page of the dead tasks of a topic, the longest dead first. State of the query
// is not used, and DueFrom, DueTo and Node must not be given.
//
// Errors: ErrInvalid, ErrUnavailable, ErrUnreachable.
func (c *Client) ListDead(ctx context.Context, query Query) (*Page, error) {
	path, err := pathOf("/v1/topics/", "topic", query.Topic)
	if err != nil {
		return nil, err
	}
	if err := query.checkDead(); err != nil {
		return nil, err
	}
	query.Topic, query.State = "", ""
	return c.page(ctx, path+"/dead", query)
}

// checkDead returns ErrInvalid for what does not select among dead tasks.
func (query *Query) checkDead() error {
	if !query.DueFrom.IsZero() || !query.DueTo.IsZero() {
		return fmt.Errorf("%w: dead tasks have DiedFrom and DiedTo", ErrInvalid)
	}
	return query.checkNode()
}

// checkNode returns ErrInvalid if the query names a node, where only lists do.
func (query *Query) checkNode() error {
	if query.Node != "" {
		return fmt.Errorf("%w: Node must not be given: only List and All select by it", ErrInvalid)
	}
	return nil
}

// DeadReasons says why tasks are dead: those of a topic, or of all topics if the query has none. It
// counts those that the query selects, at all nodes that share the server's ledger, or at the
// server alone with ScopeNode. Limit of the query bounds the reasons, 1 to 50; 0 means 50. State,
// Cursor and Brief are not used, and DueFrom, DueTo and Node must not be given.
//
// Errors: ErrInvalid, ErrUnavailable, ErrUnreachable.
func (c *Client) DeadReasons(ctx context.Context, query Query, scope ...Scope) (*DeadReasons, error) {
	path := "/v1/dead/reasons"
	if query.Topic != "" {
		of, err := pathOf("/v1/topics/", "topic", query.Topic)
		if err != nil {
			return nil, err
		}
		path = of + "/dead/reasons"
	}
	if err := query.checkDead(); err != nil {
		return nil, err
	}
	query.Topic, query.State, query.Cursor, query.Brief = "", "", "", false
	values := query.values()
	maps.Copy(values, scoped(scope))
	r := &DeadReasons{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: path, query: values, effect: reads}, r); err != nil {
		return nil, err
	}
	return r, nil
}

// AllDead goes through all dead tasks of a topic, page by page. It ends after the first
// error.
func (c *Client) AllDead(ctx context.Context, query Query) iter.Seq2[*Task, error] {
	return pages(ctx, query, c.ListDead)
}

// Requeue selects dead tasks of a topic to bring back, and says when.
type Requeue struct {
	// IDs are 1 to 10,000 of them; All means all of the topic, instead. A list that
	// turned out empty does not mean all.
	IDs []string
	All bool
	// Delay is the time until they are due, at most 10 years; Due the deadline itself,
	// a time in the past meaning now. Not both; neither means now.
	Delay time.Duration
	Due   time.Time

	// What the one task of IDs has from now on, in the same step. Nil: as it was.
	Payload json.RawMessage
	Headers map[string]string // all of them
	Target  *Target           // a zero one: nothing of its own
}

// RequeueDead brings dead tasks of a topic back: with one new deadline, and all their
// attempts again.
//
// Errors: ErrInvalid, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrUnreachable. Some may
// have come back before the error; repeating the call does the rest.
func (c *Client) RequeueDead(ctx context.Context, topic string, r Requeue) (Requeued, error) {
	var done Requeued
	err := c.onDead(ctx, call{method: http.MethodPost, effect: again}, topic, "/dead/requeue", struct {
		chosen
		Delay   Duration           `json:"delay,omitempty"`
		Due     *time.Time         `json:"due_at,omitempty"`
		Payload json.RawMessage    `json:"payload,omitempty"`
		Headers *map[string]string `json:"headers,omitempty"`
		Target  *Target            `json:"delivery,omitempty"`
	}{chosen{r.IDs, r.All}, Duration(r.Delay), instant(r.Due), r.Payload, given(r.Headers), r.Target}, &done)
	return done, err
}

// DeleteDead deletes dead tasks of a topic, 1 to 10,000 ids. Ids that are not dead are
// passed over. Errors: those of RequeueDead.
func (c *Client) DeleteDead(ctx context.Context, topic string, ids ...string) error {
	return c.onDead(ctx, call{method: http.MethodDelete, effect: same}, topic, "/dead", chosen{IDs: ids}, nil)
}

// DeleteAllDead deletes all dead tasks of a topic. Errors: those of RequeueDead.
func (c *Client) DeleteAllDead(ctx context.Context, topic string) error {
	// A repeated call would also delete tasks that have died since.
	return c.onDead(ctx, call{method: http.MethodDelete, effect: again}, topic, "/dead", chosen{All: true}, nil)
}

// chosen selects dead tasks: some, or all. The server refuses a selection without ids: a list that
// turned out empty must not mean all.
type chosen struct {
	IDs []string `json:"ids,omitempty"`
	All bool     `json:"all,omitempty"`
}

func (c *Client) onDead(ctx context.Context, q call, topic, rest string, which, answer any) error {
	var err error
	if q.body, err = json.Marshal(which); err != nil {
		return err
	}
	q.extra = wholeTopic
	return c.onTopic(ctx, q, topic, rest, answer)
}

// given returns nil for headers that are not given.
func given(headers map[string]string) *map[string]string {
	if headers == nil {
		return nil
	}
	return &headers
}
