package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

type deadList struct {
	remote
	paging
	Topic string `arg:"" optional:"" help:"The topic. Default: all of them, those with most dead tasks first."`
	deadFilter
}

// deadFilter are the flags by which lists of dead tasks are filtered.
type deadFilter struct {
	textFilter
	Group    string  `env:"-" placeholder:"NAME" help:"Only tasks of this group."`
	Reason   string  `env:"-" placeholder:"REASON" help:"Only tasks with this reason: exhausted, buried or deleted."`
	DiedFrom instant `env:"-" placeholder:"TIME" help:"Only tasks that did not die before this time, RFC 3339."`
	DiedTo   instant `env:"-" placeholder:"TIME" help:"Only tasks that died before this time."`
}

func (c *deadFilter) query(topic string) client.Query {
	return client.Query{
		Topic: topic, Group: c.Group, IDPrefix: c.IDPrefix, Error: c.Error, ErrorLike: c.ErrorLike, Reason: client.Reason(c.Reason),
		DiedFrom: c.DiedFrom.Time, DiedTo: c.DiedTo.Time,
	}
}

func (c *deadList) check(bad *faults) {
	c.paging.check(bad)
	if c.Topic == "" && c.Cursor != "" {
		bad.add("cursor: is for the list of one topic: give the topic too")
	}
}

func (c *deadList) call(ctx context.Context, s *session) error {
	if c.Topic == "" {
		return c.topics(ctx, s, c.query(""))
	}
	return c.pages(ctx, s, c.query(c.Topic), s.ListDead, deadTable)
}

// topics lists the dead tasks of all topics, one topic after the other.
func (c *deadList) topics(ctx context.Context, s *session, query client.Query) error {
	left, listed := c.Limit, false
	for q := (client.TopicQuery{Sort: client.SortDead}); ; {
		p, err := s.aside.FindTopics(ctx, q)
		if err != nil {
			return err
		}
		for i := range p.Topics {
			t := &p.Topics[i]
			if t.Counts.Dead == 0 {
				return c.listed(ctx, s, listed, &p.Reach)
			}
			if left <= 0 && !c.All {
				fmt.Fprintln(s.std.err, "there is more: --limit, --all, or a topic")
				return nil
			}
			n, err := c.topic(ctx, s, query, t.Name, left)
			if err != nil {
				return err
			}
			left, listed = left-n, listed || n > 0
		}
		if q.Cursor = p.NextCursor; q.Cursor == "" {
			return c.listed(ctx, s, listed, &p.Reach)
		}
	}
}

// topic lists dead tasks of one topic under its name, and returns how many.
func (c *deadList) topic(ctx context.Context, s *session, query client.Query, topic string, most int) (n int, err error) {
	query.Topic, query.Brief = topic, !s.json
	for query.Cursor = ""; c.All || n < most; {
		query.Limit = largestPage
		if !c.All {
			query.Limit = min(most-n, largestPage)
		}
		page, err := s.ListDead(ctx, query)
		if err != nil {
			return n, err
		}
		if len(page.Tasks) > 0 {
			err := s.printList("tasks", func(w io.Writer) {
				if n == 0 {
					fmt.Fprintf(w, "%s\n", plain(topic))
				}
				deadTable(w, page.Tasks, time.Now())
			})
			if err != nil {
				return n, err
			}
		}
		n += len(page.Tasks)
		if query.Cursor = page.NextCursor; query.Cursor == "" {
			return n, nil
		}
	}
	fmt.Fprintf(s.std.err, "there is more of %s: --limit or --all, or lapse dead list %s --cursor %s\n", plain(topic), plain(topic), query.Cursor)
	return n, nil
}

// listed ends the list of all topics.
func (c *deadList) listed(ctx context.Context, s *session, any bool, reach *client.Reach) error {
	if !any && c.Group != "" && len(reach.Missing) == 0 {
		if err := s.checkGroup(ctx, c.Group); err != nil {
			return err
		}
	}
	if s.json {
		return nil
	}
	if !any {
		fmt.Fprintln(s.std.out, "no task is dead, or none that the flags select")
	}
	warnOfMissing(s.std.out, reach)
	return nil
}

func deadTable(w io.Writer, list []client.Task, now time.Time) {
	rows := [][]string{{"ID", "DIED", "REASON", "ATTEMPTS", "WAS DUE", "LAST ERROR"}}
	for i := range list {
		t := &list[i]
		died := ""
		if t.DiedAt != nil {
			died = relative(*t.DiedAt, now)
		}
		rows = append(rows, []string{t.ID, died, string(t.Reason), fmt.Sprint(t.Attempt), relative(t.Due, now), short(t.LastError, 80)})
	}
	table(w, rows)
}

// deadReasons is the command that counts dead tasks by reason.
type deadReasons struct {
	remote
	figures
	Topic string `arg:"" optional:"" help:"The topic. Default: all of them."`
	deadFilter
	Limit int `env:"-" default:"50" help:"At most so many reasons, those of most tasks first. 50 at most."`
}

func (c *deadReasons) check(bad *faults) {
	if c.Limit < 1 || c.Limit > 50 {
		bad.add("limit: must be from 1 to 50")
	}
}

func (c *deadReasons) call(ctx context.Context, s *session) error {
	q := c.query(c.Topic)
	q.Limit = c.Limit
	r, err := s.DeadReasons(ctx, q, client.Scope(c.Scope))
	if err == nil && len(r.Reasons) == 0 {
		err = s.checkQuery(ctx, client.Query{Topic: c.Topic, Group: c.Group})
	}
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) { reasonTable(w, r, c.Topic == "", time.Now()) })
}

func reasonTable(w io.Writer, r *client.DeadReasons, ofAll bool, now time.Time) {
	rows := [][]string{{"TASKS", "TOPIC", "REASON", "FIRST DIED", "LAST DIED", "ERROR"}}
	for i := range r.Reasons {
		one := &r.Reasons[i]
		rows = append(rows, []string{
			fmt.Sprint(one.Count), one.Topic, string(one.Reason), relative(one.FirstDiedAt, now), relative(one.LastDiedAt, now), short(one.Error, 120),
		})
	}
	for i := range rows {
		if !ofAll {
			rows[i] = slices.Delete(rows[i], 1, 2)
		}
	}
	if len(r.Reasons) == 0 {
		fmt.Fprintln(w, "no task is dead, or none that the flags select")
	} else {
		table(w, rows)
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(w, "and %s for other reasons\n", counted(r.LeftOut, "task", "tasks"))
	}
	if !r.Complete && len(r.Missing) == 0 {
		fmt.Fprintf(w, "Not complete: %d of %s were looked at, the longest dead first. --died-from leads to later ones.\n", r.LookedAt, counted(r.Dead, "dead task", "dead tasks"))
	}
	warnOfMissing(w, &r.Reach)
}

// choice names dead tasks of a topic: some, or all.
type choice struct {
	Topic string   `arg:"" help:"The topic."`
	IDs   []string `arg:"" optional:"" name:"id" help:"Ids of dead tasks; - reads them from standard input."`
	All   bool     `env:"-" help:"All dead tasks of the topic."`
	deadSelection

	ids []string // IDs, with those of standard input
}

// selected is what the flags select, and whether they do.
func (c *choice) selected() (client.Query, bool) {
	q := c.query()
	given := q != client.Query{} || c.All && c.acting != acting{}
	q.Topic = c.Topic
	return q, given
}

// check notes what is wrong, and reads ids: there is at least one, unless all are selected, or some
// by flags.
func (c *choice) check(bad *faults) {
	filters := c.query() != client.Query{}
	given := 0
	for _, is := range []bool{filters, c.All, len(c.IDs) > 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		bad.add("id: give ids, or --all, or flags that select dead tasks such as --reason, and only one of these")
	}
	if !filters && !c.All {
		c.unused(bad)
	}
	var err error
	if c.ids, err = expand(c.IDs); err != nil {
		bad.include(err)
	} else if len(c.IDs) > 0 && len(c.ids) == 0 {
		bad.add("id: standard input holds none")
	}
}

// act does what a says with the tasks that flags select, call by call. With those that ids or --all
// name, once does it.
func (c *choice) act(ctx context.Context, s *session, a client.Act, done string, once func() error) error {
	var filtered bool
	if a.Query, filtered = c.selected(); filtered {
		return c.run(ctx, s, a, done)
	}
	if c.All {
		if selected, err := c.sure(ctx, s, a, done); err != nil || selected == 0 {
			return err
		}
	}
	return once()
}

type deadRequeue struct {
	remote
	choice
	Delay span    `env:"-" placeholder:"30m" help:"Time until they are due, also in days: 7d, 1d12h. Of tasks that flags select: from the time at which the command begins. Default: now."`
	DueAt instant `env:"-" placeholder:"TIME" help:"Their new deadline itself, RFC 3339. Not with --delay."`

	Payload  string            `env:"-" placeholder:"JSON" help:"The payload that the task has from now on: any JSON; - reads standard input, @FILE a file. For one id."`
	Header   map[string]string `env:"-" placeholder:"NAME=VALUE" mapsep:"none" help:"All headers that the task has from now on. May be given several times. For one id."`
	Delivery string            `env:"-" placeholder:"JSON" help:"What is other for the task than for its topic from now on; {} for nothing. For one id."`
}

// mends reports whether the task gets other content.
func (c *deadRequeue) mends() bool { return c.Payload != "" || c.Header != nil || c.Delivery != "" }

func (c *deadRequeue) check(bad *faults) {
	c.choice.check(bad)
	if c.mends() && len(c.ids) != 1 {
		bad.add("id: give one with --payload, --header or --delivery")
	}
	if c.Delivery != "" && json.Unmarshal([]byte(c.Delivery), new(client.Target)) != nil {
		bad.add("delivery: must be a JSON object")
	}
	if c.Delay.given && !c.DueAt.IsZero() {
		bad.add("delay: must not be given together with --due-at")
	}
	if _, filtered := c.selected(); filtered && c.Delay.given {
		if c.Delay.Duration < 0 {
			bad.add("delay: must not be negative")
		}
		if c.Cursor != "" {
			bad.add("delay: must not be given together with --cursor: give the --due-at that the earlier command has printed")
		}
	}
}

func (c *deadRequeue) call(ctx context.Context, s *session) error {
	a := client.Act{Action: client.RequeueAction, Due: c.DueAt.Time}
	if _, filtered := c.selected(); filtered && c.Delay.given { // its calls have one deadline
		a.Due = time.Now().Add(c.Delay.Duration).UTC().Truncate(time.Millisecond)
	}
	return c.act(ctx, s, a, "requeued", func() error {
		r := client.Requeue{IDs: c.ids, All: c.All, Delay: c.Delay.Duration, Due: c.DueAt.Time, Headers: c.Header}
		if c.Payload != "" {
			var err error
			if r.Payload, err = input("payload", c.Payload); err != nil {
				return err
			}
		}
		if c.Delivery != "" {
			r.Target = new(client.Target)
			_ = json.Unmarshal([]byte(c.Delivery), r.Target) // check has read it
		}
		done, err := s.RequeueDead(ctx, c.Topic, r)
		if err == nil && done.Requeued == 0 {
			err = s.checkTopic(ctx, c.Topic)
		}
		if err != nil {
			return err
		}
		err = s.print(func(w io.Writer) {
			fmt.Fprintf(w, "%s requeued\n", counted(done.Requeued, "dead task of "+c.Topic+" is", "dead tasks of "+c.Topic+" are"))
		})
		if len(done.Unknown) > 0 && err == nil {
			err = fmt.Errorf("%w: %s", client.ErrNotDead, strings.Join(done.Unknown, " "))
		}
		return err
	})
}

type deadDelete struct {
	remote
	choice
}

func (c *deadDelete) check(bad *faults) { c.choice.check(bad) }

func (c *deadDelete) call(ctx context.Context, s *session) error {
	return c.act(ctx, s, client.Act{Action: client.DeleteAction}, "deleted", func() error {
		err := s.checkTopic(ctx, c.Topic)
		if err != nil {
			return err
		}
		which := "these dead tasks"
		if c.All {
			which = "the dead tasks"
			err = s.DeleteAllDead(ctx, c.Topic)
		} else {
			err = s.DeleteDead(ctx, c.Topic, c.ids...)
		}
		if err != nil {
			return err
		}
		return s.print(func(w io.Writer) { fmt.Fprintf(w, "%s of %s are deleted\n", which, c.Topic) })
	})
}
