package cli

import (
	"context"
	"fmt"
	"io"
)

// cancel is the command that cancels tasks.
type cancel struct {
	remote
	IDs []string `arg:"" name:"id" help:"Ids of tasks; - reads them from standard input."`
}

// Run cancels one after the other.
func (c *cancel) Run(ctx context.Context, std streams, bad *faults) error {
	s, err := c.connect(std, bad)
	if err != nil {
		return err
	}
	return each(c.IDs, func(id string) error {
		if err := s.Cancel(ctx, id); err != nil {
			return err
		}
		return s.tell(func(w io.Writer) { fmt.Fprintf(w, "%s is cancelled\n", id) })
	})
}
