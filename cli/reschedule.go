package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lapsehq/lapse/client"
)

// reschedule is the command that moves a deadline.
type reschedule struct {
	remote
	ID      string  `arg:"" name:"id" help:"Id of the task."`
	Delay   span    `env:"-" placeholder:"30m" help:"The new deadline, from now, also in days: 7d, 1d12h."`
	DueAt   instant `env:"-" placeholder:"TIME" help:"The new deadline itself, RFC 3339. Not with --delay."`
	Payload string  `env:"-" placeholder:"JSON" help:"The new payload; - reads standard input, @FILE a file. Default: as it is."`
}

// Run moves.
func (c *reschedule) Run(ctx context.Context, std streams, bad *faults) error {
	switch {
	case c.Delay.given && !c.DueAt.IsZero():
		bad.add("delay: must not be given together with --due-at")
	case !c.Delay.given && c.DueAt.IsZero() && c.Payload == "":
		bad.add("delay: must be given, or --due-at, or --payload")
	}
	s, err := c.connect(std, bad)
	if err != nil {
		return err
	}
	m := client.Move{Delay: c.Delay.pointer(), DueAt: c.DueAt.Time}
	if c.Payload != "" {
		if m.Payload, err = input("payload", c.Payload); err != nil {
			return err
		}
	}
	t, err := s.Change(ctx, c.ID, m)
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) { fmt.Fprintf(w, "%s is due %s\n", t.ID, instantText(t.DueAt, time.Now())) })
}
