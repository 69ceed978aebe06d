package cli

import (
	"context"
	"fmt"
	"io"
)

// fire is the command that makes tasks due now.
type fire struct {
	remote
	IDs []string `arg:"" name:"id" help:"Ids of tasks; - reads them from standard input."`
}

// Run fires one after the other.
func (c *fire) Run(ctx context.Context, std streams, bad *faults) error {
	s, err := c.connect(std, bad)
	if err != nil {
		return err
	}
	return each(c.IDs, func(id string) error {
		t, err := s.Fire(ctx, id)
		if err != nil {
			return err
		}
		return s.print(func(w io.Writer) { fmt.Fprintf(w, "%s is due now\n", t.ID) })
	})
}
