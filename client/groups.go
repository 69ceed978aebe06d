package client

import (
	"context"
	"net/http"
)

// Group returns a page of the tasks of a group, the soonest first; limit and cursor are those of a
// Query. An unknown group is empty. All with Query.Group yields all of them.
//
// Errors: ErrInvalid, ErrUnavailable, ErrUnreachable.
func (c *Client) Group(ctx context.Context, group string, limit int, cursor string) (*Page, error) {
	path, err := pathOf("/v1/groups/", "group", group)
	if err != nil {
		return nil, err
	}
	return c.page(ctx, path, Query{Limit: limit, Cursor: cursor})
}

// CancelGroup cancels all pending and ready tasks of a group, of whatever topic: each
// definitely, as Cancel does, but not all in one step. Dead tasks are not touched.
//
// Errors: ErrInvalid, ErrUnavailable, ErrUnknown, ErrUnreachable. Some may have been
// cancelled before the error; repeating the call does the rest.
func (c *Client) CancelGroup(ctx context.Context, group string) (*GroupCancelled, error) {
	done := &GroupCancelled{}
	q := call{method: http.MethodDelete, effect: again, extra: wholeTopic}
	if err := c.named(ctx, q, "/v1/groups/", "group", group, "", done); err != nil {
		return nil, err
	}
	return done, nil
}
