package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lapsehq/lapse/client"
)

// reschedule is the command that moves a deadline, or those of many tasks.
type reschedule struct {
	remote
	ID      string  `arg:"" optional:"" name:"id" help:"Id of the task."`
	Delay   span    `env:"-" placeholder:"30m" help:"The new deadline, from now, also in days: 7d, 1d12h."`
	DueAt   instant `env:"-" placeholder:"TIME" help:"The new deadline itself, RFC 3339. Not with --delay."`
	Shift   span    `env:"-" placeholder:"-30m" help:"Moves the deadlines of selected tasks by so much, also back: 1d, --shift=-30m."`
	Payload string  `env:"-" placeholder:"JSON" help:"The new payload; - reads standard input, @FILE a file. Default: as it is."`
	Group   string  `env:"-" placeholder:"NAME" help:"Tasks of this group, in place of an id."`
	selection
}

func (c *reschedule) check(bad *faults) {
	var ids []string
	if c.ID != "" {
		ids = []string{c.ID}
	}
	q := c.query(c.Group)
	c.either(q, ids, bad)
	many := q != client.Query{}
	if many && c.Shift.given && c.Shift.Duration == 0 {
		bad.add("shift: must not be zero")
	}
	switch {
	case many:
		if c.Shift.given == !c.DueAt.IsZero() || c.Delay.given || c.Payload != "" {
			bad.add("shift: must be given, or --due-at, and nothing else, for tasks that are selected by flags")
		}
	case c.Shift.given:
		bad.add("shift: is for tasks that are selected by flags")
	case c.Delay.given && !c.DueAt.IsZero():
		bad.add("delay: must not be given together with --due-at")
	case !c.Delay.given && c.DueAt.IsZero() && c.Payload == "":
		bad.add("delay: must be given, or --due-at, or --payload")
	}
}

func (c *reschedule) call(ctx context.Context, s *session) (err error) {
	if c.ID == "" {
		return c.run(ctx, s, client.Act{Action: client.MoveAction, Due: c.DueAt.Time, Shift: c.Shift.Duration, Query: c.query(c.Group)}, "moved")
	}
	m := client.Move{Delay: c.Delay.pointer(), Due: c.DueAt.Time}
	if c.Payload != "" {
		if m.Payload, err = input("payload", c.Payload); err != nil {
			return err
		}
	}
	t, err := patiently(ctx, s, func(ctx context.Context) (*client.Task, error) { return s.Reschedule(ctx, c.ID, m) })
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) { fmt.Fprintf(w, "%s is due %s\n", t.ID, instantText(t.Due, time.Now())) })
}
