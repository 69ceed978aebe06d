package cli

import (
	"context"
	"io"
	"time"

	"github.com/lapsehq/lapse/client"
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
		var topic *client.Topic
		if !s.json && t.FinishedAt == nil {
			topic, _ = s.Topic(ctx, t.Topic) // the task's own story is whole without it
		}
		return s.print(func(w io.Writer) { taskBlock(w, t, topic, time.Now()) })
	})
}
