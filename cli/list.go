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

// textFilter are the flags by which any list of tasks is filtered.
type textFilter struct {
	IDPrefix  string `env:"-" placeholder:"TEXT" help:"Only tasks whose ids begin so."`
	Error     string `env:"-" placeholder:"TEXT" help:"Only tasks whose last error has this in it, in small or capital letters."`
	ErrorLike string `env:"-" placeholder:"TEXT" help:"Only tasks whose last error is this but for numbers, as lapse dead reasons prints it."`
}

const largestPage = 1000 // the API's limit

// list is the command that lists tasks.
type list struct {
	remote
	paging
	Topic string `env:"-" placeholder:"NAME" help:"Only of this topic."`
	Group string `env:"-" placeholder:"NAME" help:"Only of this group."`
	State string `env:"-" placeholder:"STATE" help:"Only in this state: pending, retrying (pending, and an attempt was made), held (pending, its countdown is held), ready, delivering, dead or finished (kept because of the topic's keep_finished). Default: all but the dead and the finished."`
	Node  string `env:"-" placeholder:"NAME" help:"Only tasks that this node has, those that it has adopted included."`
	textFilter
	DueFrom instant `env:"-" placeholder:"TIME" help:"Only tasks whose next attempt is not before this time, RFC 3339. Not with the state dead."`
	DueTo   instant `env:"-" placeholder:"TIME" help:"Only tasks whose next attempt is before this time. Not with the state dead."`
	Wide    bool    `env:"-" help:"More columns, whole times, and 250 letters of errors."`
}

func (c *list) check(bad *faults) { c.paging.check(bad) }

func (c *list) call(ctx context.Context, s *session) error {
	query := client.Query{
		Topic: c.Topic, Group: c.Group, State: client.State(c.State), Node: c.Node,
		IDPrefix: c.IDPrefix, Error: c.Error, ErrorLike: c.ErrorLike, DueFrom: c.DueFrom.Time, DueTo: c.DueTo.Time,
	}
	if c.Wide {
		return c.pages(ctx, s, query, s.List, wideTaskTable)
	}
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
	query.Cursor, query.Brief = p.Cursor, !s.json
	printed := false
	for left := p.Limit; p.All || left > 0; {
		query.Limit = largestPage
		if !p.All {
			query.Limit = min(left, largestPage)
		}
		page, err := list(ctx, query)
		if err != nil {
			return err
		}
		if len(page.Tasks) == 0 && page.NextCursor == "" && !printed && p.Cursor == "" {
			if err := s.checkQuery(ctx, client.Query{Topic: query.Topic, Group: query.Group}); err != nil {
				return err
			}
		}
		// A filter leaves pages empty.
		if len(page.Tasks) > 0 || page.NextCursor == "" && !printed {
			if err := s.printList("tasks", func(w io.Writer) { human(w, page.Tasks, time.Now()) }); err != nil {
				return err
			}
			printed = true
		}
		left -= len(page.Tasks)
		if query.Cursor = page.NextCursor; query.Cursor == "" {
			return nil
		}
	}
	fmt.Fprintf(s.std.err, "there is more: --cursor %s, or --all\n", query.Cursor)
	return nil
}

// getTasks is the command that shows tasks.
type getTasks struct {
	remote
	IDs []string `arg:"" name:"id" help:"Ids of tasks; - reads them from standard input."`
}

func (c *getTasks) call(ctx context.Context, s *session) error {
	return each(c.IDs, func(id string) error {
		t, err := s.Get(ctx, id)
		if err != nil {
			return err
		}
		var topic *client.Topic
		if !s.json && t.FinishedAt == nil {
			topic, _ = s.Topic(ctx, t.Topic) // the task's own story is whole without it
		}
		return s.print(func(w io.Writer) { taskBlock(w, t, topic, time.Now()) })
	})
}
