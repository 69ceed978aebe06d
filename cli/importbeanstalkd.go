package cli

import (
	"context"
	"net"

	"github.com/lapsehq/lapse/cli/internal/movein/beanstalkjobs"
)

// importBeanstalkd is the command that moves the jobs of a beanstalkd.
type importBeanstalkd struct {
	importing
	From  string   `env:"-" placeholder:"HOST:PORT" default:"127.0.0.1:11300" help:"The beanstalkd."`
	Topic string   `env:"-" placeholder:"NAME" help:"Topic of all tasks. Default: the name of the tube."`
	Tube  []string `env:"-" placeholder:"NAME,..." help:"Only these tubes. Default: all."`
	Name  string   `env:"-" placeholder:"NAME" help:"Name of the beanstalkd in the ids of its tasks. Give the same when it is imported again at another address. Default: its address."`
}

// importBeanstalkdDetail says more than fits on a line.
const importBeanstalkdDetail = "A job is deleted in beanstalkd once Lapse has accepted its task. Jobs that are buried, or that a worker has reserved, stay." +
	" It may be interrupted and repeated at any time. See docs/moving-from-beanstalkd.md."

// Run imports.
func (c *importBeanstalkd) Run(ctx context.Context, std streams, bad *faults) error {
	if c.Topic != "" {
		checkTopic(c.Topic, bad)
	}
	if _, _, err := net.SplitHostPort(c.From); err != nil {
		bad.add("from: must be HOST:PORT")
	}
	if c.Name == "" {
		c.Name = c.From
	}
	r, err := c.start(std, bad, "beanstalkd")
	if err != nil {
		return err
	}
	return r.end(ctx, beanstalkjobs.Run(ctx, beanstalkjobs.Options{
		Addr: c.From, Name: c.Name, Writer: r.writer, Topic: c.Topic, Tubes: c.Tube, Prepare: r.keepFinished, Size: r.progress.Size,
	}))
}
