package cli

import (
	"context"
	"fmt"
	"io"

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
		t, err := s.Fire(ctx, id)
		if err != nil {
			return err
		}
		return s.print(func(w io.Writer) { fmt.Fprintf(w, "%s is due now\n", t.ID) })
	})
}
