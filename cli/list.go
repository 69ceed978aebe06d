package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lapsehq/lapse/client"
)

// paging are the flags of commands that list tasks.
type paging struct {
	Limit  int    `env:"-" default:"100" help:"At most so many tasks."`
	All    bool   `env:"-" help:"All tasks, however many."`
	Cursor string `env:"-" placeholder:"TEXT" help:"Where an earlier list has ended."`
}

const largestPage = 1000 // the API's limit

// list is the command that lists tasks.
type list struct {
	remote
	paging
	Topic string `env:"-" placeholder:"NAME" help:"Only of this topic."`
	Group string `env:"-" placeholder:"NAME" help:"Only of this group. Not with the state dead."`
	State string `env:"-" placeholder:"STATE" help:"Only in this state: pending, retrying (pending, and an attempt was made), ready, delivering or dead. Default: all but the dead."`
}

// Run lists, the soonest first.
func (c *list) Run(ctx context.Context, std streams, bad *faults) error {
	c.check(bad)
	s, err := c.connect(std, bad)
	if err != nil {
		return err
	}
	query := client.Query{Topic: c.Topic, Group: c.Group, State: client.State(c.State)}
	return c.pages(ctx, s, query, s.List, taskTable)
}

func (p *paging) check(bad *faults) {
	if p.Limit < 0 {
		bad.add("limit: must be at least 1")
	}
}

// pages lists page by page, and says where it has ended if there is more.
func (p *paging) pages(ctx context.Context, s *session, query client.Query,
	list func(context.Context, client.Query) (*client.Page, error), human func(io.Writer, []client.Task, time.Time)) error {
	query.Cursor = p.Cursor
	for left := p.Limit; p.All || left > 0; {
		query.Limit = largestPage
		if !p.All {
			query.Limit = min(left, largestPage)
		}
		page, err := list(ctx, query)
		if err != nil {
			return err
		}
		if err := s.printList("tasks", func(w io.Writer) { human(w, page.Tasks, time.Now()) }); err != nil {
			return err
		}
		left -= len(page.Tasks)
		if query.Cursor = page.NextCursor; query.Cursor == "" {
			return nil
		}
	}
	fmt.Fprintf(s.std.err, "there is more: --cursor %s, or --all\n", query.Cursor)
	return nil
}
