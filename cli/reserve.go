package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lapsehq/lapse/client"
)

// reserve is the command that takes tasks that are ready.
type reserve struct {
	remote
	Topic  string `arg:"" help:"The topic to receive from."`
	Max    int    `env:"-" default:"1" help:"At most so many tasks; with --exec, so many commands at once."`
	Wait   span   `env:"-" placeholder:"30s" help:"How long to wait for the first one, up to 60s. Default: not at all; with --follow, 30s."`
	Lease  span   `env:"-" placeholder:"2m" help:"How long the deliveries may stay unsettled, 1s to 24h. Default: as the topic has it; with --exec, 30s, and extended while the command runs."`
	Ack    bool   `env:"-" help:"Acknowledge the tasks once they are printed."`
	Exec   string `env:"-" placeholder:"COMMAND" help:"Run a shell command for each task, with the payload on standard input: exit code 0 acknowledges the task, any other releases it."`
	Follow bool   `env:"-" help:"Go on until interrupted."`
}

const (
	defaultWait  = 30 * time.Second
	defaultLease = 30 * time.Second
)

func (c *reserve) check(bad *faults) {
	switch {
	case c.Max < 0:
		bad.add("max: must be at least 1")
	case c.Exec != "" && (c.Ack || c.JSON):
		bad.add("exec: the command's exit code decides, and its output is what is printed: give neither --ack nor --json")
	}
	if c.Exec != "" && c.Lease.given && c.Lease.Duration < time.Second {
		bad.add("lease: must be at least 1s")
	}
}

// call takes tasks, and prints them or runs the command.
func (c *reserve) call(ctx context.Context, s *session) error {
	if c.Follow && !c.Wait.given {
		c.Wait.Duration = defaultWait
	}
	switch err := s.checkTopic(ctx, c.Topic); {
	case err == nil:
	case c.Follow: // a receiver may begin before the first task
		fmt.Fprintf(s.std.err, "lapse: waiting for the first task: %s\n", plainLines(err.Error()))
	default:
		return err
	}
	if c.Exec != "" {
		if !c.Lease.given {
			c.Lease.Duration = defaultLease
		}
		return newReceiver(s, c).run(ctx)
	}
	if !c.Follow {
		return c.once(ctx, s)
	}
	for {
		err := c.once(ctx, s)
		if ctx.Err() == nil && exitOf(err) == exitUnavailable {
			fmt.Fprintf(s.std.err, "lapse: %s\n", plainLines(explain(err))) // and again
			err = pause(ctx, time.Second)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
}

// once takes tasks, prints them, and acknowledges them if that is wanted.
func (c *reserve) once(ctx context.Context, s *session) error {
	asked := time.Now()
	list, err := s.Reserve(ctx, c.Topic, client.Reservation{Max: c.Max, Wait: c.Wait.Duration, Lease: c.Lease.Duration})
	if err != nil {
		return err
	}
	if len(list) == 0 {
		if !c.Follow {
			fmt.Fprintln(s.std.err, "nothing is ready")
			return nil
		}
		return waitAfterEmpty(ctx, asked, c.Wait.Duration)
	}
	if err := s.printList("tasks", func(w io.Writer) { deliveryTable(w, list, time.Now()) }); err != nil {
		return err
	}
	if !c.Ack {
		return nil
	}
	receipts := make([]string, len(list))
	for i := range list {
		receipts[i] = list[i].Receipt
	}
	done, err := s.Client.Ack(context.WithoutCancel(ctx), receipts...)
	return errors.Join(err, settled(done))
}

// waitAfterEmpty delays the next call to a server that answers without tasks and without waiting,
// as it does while it shuts down.
func waitAfterEmpty(ctx context.Context, asked time.Time, wait time.Duration) error {
	if time.Since(asked) >= wait/2 && wait > 0 {
		return nil
	}
	return pause(ctx, time.Second)
}

// pause waits for d. It returns the error of ctx if that ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func deliveryTable(w io.Writer, list []client.Delivery, now time.Time) {
	rows := [][]string{{"ID", "DUE", "ATTEMPT", "LEASE ENDS", "PAYLOAD", "RECEIPT"}}
	for i := range list {
		d := &list[i]
		rows = append(rows, []string{d.ID, relative(d.Due, now), fmt.Sprint(d.Attempt), relative(d.LeaseUntil, now),
			short(string(d.Payload), 40), d.Receipt})
	}
	table(w, rows)
}
