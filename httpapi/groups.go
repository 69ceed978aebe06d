package httpapi

import (
	"context"

	"github.com/lapsehq/lapse/tasks"
)

// GroupCancelled reports what the cancellation of a group has done.
type GroupCancelled struct {
	Cancelled      int      `json:"cancelled" doc:"Tasks that are never delivered (again)."`
	Delivering     []string `json:"delivering" nullable:"false" maxItems:"1000" doc:"Ids of tasks that are being delivered. They are not changed."`
	MoreDelivering int      `json:"more_delivering,omitempty" doc:"How many of those there were beyond the first 1,000. Left out if all are named."`
}

type groupInput struct {
	request
	Group string `path:"group" doc:"Name of the group."`
}

// cancelGroup answers DELETE /v1/groups/{group}.
func (s *Server) cancelGroup(ctx context.Context, in *groupInput) (*reply[GroupCancelled], error) {
	defer withoutDeadline(in.gin)()
	c, err := s.scheduler.CancelGroup(ctx, in.Group)
	if c.Cancelled > 0 || err != nil {
		s.record(in.gin, tasks.AuditEntry{Verb: "cancel-group", Group: in.Group, Count: int64(c.Cancelled)}, err)
	}
	if err != nil {
		return nil, withDone(err, c.Cancelled)
	}
	if c.Delivering == nil {
		c.Delivering = []string{}
	}
	return &reply[GroupCancelled]{GroupCancelled{c.Cancelled, c.Delivering, c.More}}, nil
}

type listGroupInput struct {
	request
	Group string `path:"group" doc:"Name of the group."`
	TextFilter
	DueFilter
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Tasks a page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The next_cursor of the page before."`
}

// listGroup answers GET /v1/groups/{group}.
func (s *Server) listGroup(ctx context.Context, in *listGroupInput) (*reply[TaskPage], error) {
	q := tasks.Query{Group: in.Group, Limit: in.Limit, Cursor: in.Cursor}
	in.TextFilter.add(&q)
	if err := instants(in.DueFilter.bounds(&q)); err != nil {
		return nil, err
	}
	return s.listed(ctx, in.gin, func() (tasks.Page, error) { return s.scheduler.List(ctx, q) })
}
