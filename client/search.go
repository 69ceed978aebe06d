package client

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A SearchQuery asks for a part of a search.
type SearchQuery struct {
	// Text is what the id of a task, or the name of a group or a topic, must have in it, in capital
	// or small letters: 1 to 128 of the characters that these have.
	Text   string
	Cursor string        // FoundPart.NextCursor of the part before; empty: from the beginning
	Limit  int           // about how many tasks and groups are found at most, 1 to 1000; 0: 100
	Within time.Duration // for how long the nodes look, 50 ms to 10 s; 0: 1 s
}

// Search finds tasks in all states, groups and topics by a part of their names, at all nodes that
// share the server's ledger, or at the server alone with ScopeNode. It returns one part: Searches
// goes on to the end.
//
// Errors: ErrInvalid, ErrUnavailable, ErrUnreachable.
func (c *Client) Search(ctx context.Context, query SearchQuery, scope ...Scope) (*FoundPart, error) {
	values := url.Values{"q": {query.Text}}
	if query.Cursor != "" {
		values.Set("cursor", query.Cursor)
	}
	if query.Limit != 0 {
		values.Set("limit", strconv.Itoa(query.Limit))
	}
	if query.Within != 0 {
		values.Set("within", query.Within.String())
	}
	maps.Copy(values, scoped(scope))
	part := &FoundPart{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/search", query: values, effect: reads}, part); err != nil {
		return nil, err
	}
	return part, nil
}

// Searches goes through the parts of a search to its end. It stops at an error: those of Search. A
// task or a group may be in several parts.
func (c *Client) Searches(ctx context.Context, query SearchQuery, scope ...Scope) iter.Seq2[*FoundPart, error] {
	return func(yield func(*FoundPart, error) bool) {
		for {
			part, err := c.Search(ctx, query, scope...)
			if !yield(part, err) || err != nil || part.NextCursor == "" {
				return
			}
			query.Cursor = part.NextCursor
		}
	}
}
