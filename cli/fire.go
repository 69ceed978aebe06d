package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lapsehq/lapse/client"
)

// fire is the command that makes tasks due now.
type fire struct {
	remote
	IDs   []string `arg:"" optional:"" name:"id" help:"Ids of tasks; - reads them from standard input."`
	Group string   `env:"-" placeholder:"NAME" help:"Tasks of this group, in place of ids."`
	selection
}

// Run fires one after the other, or those that are selected.
func (c *fire) Run(ctx context.Context, std streams, bad *faults) error {
	q := c.query(c.Group)
	filtered := selects(q, c.IDs, bad)
	if !filtered {
		c.unused(bad)
	}
	s, err := c.connect(std, bad)
	if err != nil {
		return err
	}
	if filtered {
		return c.run(ctx, s, client.Act{Action: client.FireAction, Query: q}, "made due now")
	}
	return each(c.IDs, func(id string) error {
		t, err := patiently(ctx, s, func(ctx context.Context) (*client.Task, error) { return s.Fire(ctx, id) })
		if err != nil {
			return err
		}
		return s.print(func(w io.Writer) { fmt.Fprintf(w, "%s is due now\n", t.ID) })
	})
}

// hold is the command that holds countdowns.
type hold struct{ holding }

// Run holds one after the other, or those that are selected.
func (c *hold) Run(ctx context.Context, std streams, bad *faults) error {
	return c.each(ctx, std, bad, client.HoldAction, "held", (*client.Client).HoldTask)
}

// resume is the command that lets held countdowns go on.
type resume struct{ holding }

// Run resumes one after the other, or those that are selected.
func (c *resume) Run(ctx context.Context, std streams, bad *faults) error {
	return c.each(ctx, std, bad, client.ResumeAction, "resumed", (*client.Client).ResumeTask)
}

// holding are the flags of both.
type holding struct {
	remote
	IDs   []string `arg:"" optional:"" name:"id" help:"Ids of tasks; - reads them from standard input."`
	Group string   `env:"-" placeholder:"NAME" help:"Tasks of this group, in place of ids."`
	selection
}

func (c *holding) each(
	ctx context.Context, std streams, bad *faults, a client.Action, done string, one func(*client.Client, context.Context, string) (*client.Task, error),
) error {
	q := c.query(c.Group)
	filtered := selects(q, c.IDs, bad)
	if !filtered {
		c.unused(bad)
	}
	s, err := c.connect(std, bad)
	if err != nil {
		return err
	}
	if filtered {
		return c.run(ctx, s, client.Act{Action: a, Query: q}, done)
	}
	return each(c.IDs, func(id string) error {
		t, err := patiently(ctx, s, func(ctx context.Context) (*client.Task, error) { return one(s.Client, ctx, id) })
		if err != nil {
			return err
		}
		return s.print(func(w io.Writer) {
			if t.State == client.Held {
				fmt.Fprintf(w, "%s is held, with %s left\n", t.ID, roundedText(time.Duration(t.Remaining)))
			} else {
				fmt.Fprintf(w, "%s goes on, and is due %s\n", t.ID, instantText(t.DueAt, time.Now()))
			}
		})
	})
}
