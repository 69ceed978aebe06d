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
	Count   bool    `env:"-" help:"Only count them, by topic and state. The dead and the finished of all topics too, with that state."`
	Within  span    `env:"-" placeholder:"2s" help:"With --count: look for so long at most, 50ms to 10s."`
}

func (c *list) check(bad *faults) {
	c.paging.check(bad)
	if c.Within.given && !c.Count {
		bad.add("within: is for --count only")
	}
}

func (c *list) call(ctx context.Context, s *session) error {
	query := client.Query{
		Topic: c.Topic, Group: c.Group, State: client.State(c.State), Node: c.Node,
		IDPrefix: c.IDPrefix, Error: c.Error, ErrorLike: c.ErrorLike, DueFrom: c.DueFrom.Time, DueTo: c.DueTo.Time,
	}
	if c.Count {
		return c.count(ctx, s, query)
	}
	if c.Wide {
		return c.pages(ctx, s, query, s.List, wideTaskTable)
	}
	return c.pages(ctx, s, query, s.List, taskTable)
}

// count counts the tasks of the list.
func (c *list) count(ctx context.Context, s *session, query client.Query) error {
	counts, err := s.Count(ctx, query, c.Within.Duration)
	if err == nil && counts.Total.All() == 0 && counts.Complete {
		err = s.checkQuery(ctx, client.Query{Topic: query.Topic, Group: query.Group})
	}
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) { countTable(w, counts) })
}

func countTable(w io.Writer, c *client.TaskCounts) {
	rows := [][]string{{"TOPIC", "TASKS", ""}}
	for i := range c.Topics {
		t := &c.Topics[i]
		rows = append(rows, []string{t.Topic, fmt.Sprint(t.All()), t.StateCounts.String()})
	}
	if len(c.Topics) > 1 {
		table(w, rows)
	}
	atLeast := ""
	if !c.Complete {
		atLeast = "at least "
	}
	fmt.Fprintf(w, "%s%s: %s\n", atLeast, counted(c.Total.All(), "task", "tasks"), &c.Total)
	if c.LeftOut > 0 {
		fmt.Fprintf(w, "%s of other topics among them\n", counted(c.LeftOut, "task", "tasks"))
	}
	if !c.Complete && c.LookedAt < c.Of {
		fmt.Fprintf(w, "Not complete: about %d of %s were looked at. --within gives it more time.\n", c.LookedAt, counted(c.Of, "task", "tasks"))
	}
	warnOfMissing(w, &c.Reach)
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
		var topic *client.TopicInfo
		if !s.json && t.FinishedAt == nil {
			topic, _ = s.Topic(ctx, t.Topic) // the task's own story is whole without it
		}
		return s.print(func(w io.Writer) { taskBlock(w, t, topic, time.Now()) })
	})
}
