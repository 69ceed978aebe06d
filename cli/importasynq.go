package cli

import (
	"context"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/internal/movein/asynqtasks"
)

// importAsynq is the command that makes tasks of what asynq has scheduled.
type importAsynq struct {
	importing
	From         string   `placeholder:"URL" default:"redis://127.0.0.1:6379" help:"Redis of asynq: a URL as lapse serve --redis takes it, also with a password and a database."`
	Topic        string   `env:"-" placeholder:"NAME" help:"Topic of all tasks. Default: the type of each."`
	Queue        []string `env:"-" placeholder:"NAME,..." help:"Only these queues. Default: all."`
	DeleteSource bool     `env:"-" help:"Delete each task in asynq once Lapse has accepted it."`
	WhileRunning bool     `env:"-" help:"Import although servers of asynq are running. What falls due meanwhile may be done by both."`
}

// importAsynqDetail says more than fits on a line.
const importAsynqDetail = "It reads the sets scheduled and retry of asynq's queues. Stop the servers of asynq before, and let them finish what is pending." +
	" It may be interrupted and repeated at any time. See docs/moving-from-asynq.md."

// Run imports.
func (c *importAsynq) Run(ctx context.Context, std streams, bad *faults) error {
	if c.Topic != "" {
		checkTopic(c.Topic, bad)
	}
	from := sourceRedis(c.From, bad)
	if from != nil {
		defer from.Close()
	}
	r, err := c.start(std, bad, "asynq")
	if err != nil {
		return err
	}
	redis.SetLogger(redisLog{slog.New(slog.DiscardHandler)}) // the error of the run has it
	return r.end(ctx, asynqtasks.Run(ctx, asynqtasks.Options{
		Redis: from, Writer: r.writer, Topic: c.Topic, Queues: c.Queue, WhileRunning: c.WhileRunning, DeleteSource: c.DeleteSource,
		Prepare: r.keepFinished, Size: r.progress.Size,
	}))
}
