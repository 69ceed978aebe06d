package client

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"time"
)

// Count counts the tasks that List would list, by topic and state, at all nodes that share the
// server's ledger, or at the server alone with ScopeNode. Dead and Finished need no topic. Limit
// bounds the topics, 1 to 100; 0 means 100. Cursor and Brief are not used. within bounds the time
// that the nodes look for, 50 ms to 10 s; 0 means 2 s. What was not counted by then is missing:
// Complete is false.
//
// Errors: ErrInvalid, ErrNoNode, ErrUnavailable, ErrUnreachable.
func (c *Client) Count(ctx context.Context, query Query, within time.Duration, scope ...Scope) (*TaskCounts, error) {
	query.Cursor, query.Brief = "", false
	values := query.values()
	if within != 0 {
		values.Set("within", within.String())
	}
	maps.Copy(values, scoped(scope))
	counts := &TaskCounts{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/counts", query: values, effect: reads}, counts); err != nil {
		return nil, err
	}
	return counts, nil
}

// All returns how many tasks were counted. Those that are retrying or held are pending, too.
func (c *StateCounts) All() int { return c.Pending + c.Ready + c.Delivering + c.Dead + c.Finished }

// String says what was counted: "12000 pending (3 retrying, 0 held), 30 ready".
func (c *StateCounts) String() string {
	text := ""
	for _, s := range []struct {
		n     int
		state string
	}{{c.Pending, "pending"}, {c.Ready, "ready"}, {c.Delivering, "delivering"}, {c.Dead, "dead"}, {c.Finished, "finished"}} {
		if s.n == 0 {
			continue
		}
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%d %s", s.n, s.state)
		if s.state == "pending" && c.Retrying+c.Held > 0 {
			text += fmt.Sprintf(" (%d retrying, %d held)", c.Retrying, c.Held)
		}
	}
	if text == "" {
		return "none"
	}
	return text
}
