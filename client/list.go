package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// Query selects tasks.
type Query struct {
	Topic string // empty: of all topics
	Group string // empty: all, also those without a group. Not with Dead
	State State  // empty: all but the dead. Dead needs a topic
	// Limit is how many tasks a page has at most, 1 to 1,000. 0: 100.
	Limit int
	// Cursor is the NextCursor of the previous page. Empty: from the beginning.
	Cursor string
}

// List returns a page of tasks, the soonest first. A list is no snapshot: a task that
// moves meanwhile may be seen twice or not at all.
//
// Errors: ErrInvalid, ErrUnavailable, ErrUnreachable.
func (c *Client) List(ctx context.Context, query Query) (*Page, error) {
	return c.page(ctx, "/v1/tasks", query)
}

// All yields all tasks that List would return, page by page. It ends after the first error.
func (c *Client) All(ctx context.Context, query Query) iter.Seq2[*Task, error] {
	return pages(ctx, query, c.List)
}

func (c *Client) page(ctx context.Context, path string, query Query) (*Page, error) {
	values := url.Values{}
	for name, value := range map[string]string{"topic": query.Topic, "group": query.Group, "state": string(query.State), "cursor": query.Cursor} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if query.Limit != 0 {
		values.Set("limit", strconv.Itoa(query.Limit))
	}
	p := &Page{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: path, query: values, effect: reads}, p); err != nil {
		return nil, err
	}
	return p, nil
}

func pages(ctx context.Context, query Query, list func(context.Context, Query) (*Page, error)) iter.Seq2[*Task, error] {
	return func(yield func(*Task, error) bool) {
		for {
			p, err := list(ctx, query)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range p.Tasks {
				if !yield(&p.Tasks[i], nil) {
					return
				}
			}
			if query.Cursor = p.NextCursor; query.Cursor == "" {
				return
			}
		}
	}
}
