package cli

import (
	"context"
	"io"
	"time"
)

// getTasks is the command that shows tasks.
type getTasks struct {
	remote
	IDs []string `arg:"" name:"id" help:"Ids of tasks; - reads them from standard input."`
}

// Run shows one after the other.
func (c *getTasks) Run(ctx context.Context, std streams, bad *faults) error {
	s, err := c.connect(std, bad)
	if err != nil {
		return err
	}
	return each(c.IDs, func(id string) error {
		t, err := s.Get(ctx, id)
		if err != nil {
			return err
		}
		return s.print(func(w io.Writer) { taskBlock(w, t, time.Now()) })
	})
}
