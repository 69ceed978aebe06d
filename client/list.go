package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Query selects tasks. A field with its zero value does not narrow it: a caller whose text may turn
// out empty, such as that of a variable that is not set, checks it before.
type Query struct {
	Topic string // empty: of all topics
	Group string // empty: all, also those without a group
	State State  // empty: all but the dead and the finished. These two need a topic
	// Limit is how many tasks a page has at most, 1 to 1,000. 0: 100.
	Limit int
	// Cursor is the NextCursor of the previous page. Empty: from the beginning.
	Cursor string

	// Node selects tasks that the node of this name has, those that it has adopted included. Empty:
	// of all nodes. Only for List and All.
	Node string

	// The rest selects among these. Zero values select all.

	IDPrefix string // the beginning of the id
	Error    string // a part of the last error, in small or capital letters, up to 256 bytes
	// ErrorLike is what the last error is but for numbers, such as DeadReason.Error. Up to 1,024
	// bytes.
	ErrorLike string
	// DueFrom and DueTo are a window of the next attempt, without DueTo. Not with Dead.
	DueFrom, DueTo time.Time
	// Reason is why they died, and DiedFrom and DiedTo are a window of their death, without DiedTo.
	// Only with Dead.
	Reason           Reason
	DiedFrom, DiedTo time.Time

	// Brief lists tasks without payload, headers and attempts, and with at most 256 bytes of the
	// last error. A server that is older lists all.
	Brief bool
}

// List returns a page of tasks, the soonest first. A list is no snapshot: a task that
// moves meanwhile may be seen twice or not at all. A page may be empty although there is more: its
// NextCursor is not.
//
// Errors: ErrInvalid, ErrNoNode, ErrUnavailable, ErrUnreachable.
func (c *Client) List(ctx context.Context, query Query) (*Page, error) {
	return c.page(ctx, "/v1/tasks", query)
}

// All yields all tasks that List would return, page by page. It ends after the first error.
func (c *Client) All(ctx context.Context, query Query) iter.Seq2[*Task, error] {
	return pages(ctx, query, c.List)
}

func (c *Client) page(ctx context.Context, path string, query Query) (*Page, error) {
	p := &Page{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: path, query: query.values(), effect: reads}, p); err != nil {
		return nil, err
	}
	return p, nil
}

// values are the parameters of a list.
func (query *Query) values() url.Values {
	values := url.Values{}
	for name, value := range map[string]string{
		"topic": query.Topic, "group": query.Group, "state": string(query.State), "cursor": query.Cursor, "node": query.Node,
		"id_prefix": query.IDPrefix, "error": query.Error, "error_like": query.ErrorLike, "reason": string(query.Reason),
	} {
		if value != "" {
			values.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{
		"due_from": query.DueFrom, "due_to": query.DueTo, "died_from": query.DiedFrom, "died_to": query.DiedTo,
	} {
		if !at.IsZero() {
			values.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	if query.Brief {
		values.Set("details", "false")
	}
	if query.Limit != 0 {
		values.Set("limit", strconv.Itoa(query.Limit))
	}
	return values
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
