package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/lapsehq/lapse/client"
)

// receipts are the arguments of the commands that settle deliveries.
type receipts struct {
	Receipts []string `arg:"" name:"receipt" help:"Receipts, as reserve has printed them; - reads them from standard input."`
}

// The five commands that settle deliveries: ack and return have no flags.
type (
	settle struct {
		remote
		receipts

		done string
		do   func(*client.Client, context.Context, ...string) (*client.Settlement, error)
	}
	release struct {
		remote
		receipts
		Delay  span   `env:"-" placeholder:"30m" help:"Time until the next attempt. Default: the topic's backoff."`
		Reason string `env:"-" placeholder:"TEXT" help:"Kept as the task's last error."`
	}
	extend struct {
		remote
		receipts
		Lease span `env:"-" placeholder:"2m" help:"From now. Default: the topic's lease."`
	}
	bury struct {
		remote
		receipts
		Reason string `env:"-" placeholder:"TEXT" help:"Kept as the task's last error."`
	}
)

func (c *settle) call(ctx context.Context, s *session) error {
	return c.settle(s, c.done, func(list []string) (*client.Settlement, error) { return c.do(s.Client, ctx, list...) })
}

func (c *release) call(ctx context.Context, s *session) error {
	return c.settle(s, "released", func(list []string) (*client.Settlement, error) {
		return s.Release(ctx, c.Delay.pointer(), c.Reason, list...)
	})
}

func (c *extend) call(ctx context.Context, s *session) error {
	return c.settle(s, "extended", func(list []string) (*client.Settlement, error) {
		return s.Extend(ctx, c.Lease.Duration, list...)
	})
}

func (c *bury) call(ctx context.Context, s *session) error {
	return c.settle(s, "buried", func(list []string) (*client.Settlement, error) { return s.Bury(ctx, c.Reason, list...) })
}

const mostReceipts = 1000 // in a request: the API's limit

// settle settles all receipts, a request's worth at a time.
func (r *receipts) settle(s *session, done string, call func(list []string) (*client.Settlement, error)) error {
	all, err := expand(r.Receipts)
	if err != nil {
		return err
	}
	var refused []error
	for list := range slices.Chunk(all, mostReceipts) {
		answer, err := call(list)
		if err != nil {
			return errors.Join(append(refused, err)...)
		}
		refused = append(refused, answer.Err())
		if err := s.print(func(w io.Writer) { printSettled(w, answer, done) }); err != nil {
			return err
		}
	}
	return errors.Join(refused...)
}

func printSettled(w io.Writer, a *client.Settlement, done string) {
	if a.Settled == 0 {
		return
	}
	things := "deliveries are"
	if a.Settled == 1 {
		things = "delivery is"
	}
	fmt.Fprintf(w, "%d %s %s", a.Settled, things, done)
	if a.LeaseUntil != nil {
		fmt.Fprintf(w, ": the lease ends %s", relative(*a.LeaseUntil, time.Now()))
	}
	if !a.Recorded {
		fmt.Fprint(w, "; the ledger has not confirmed it yet")
	}
	fmt.Fprintln(w)
}

// settled returns the refusals, if there is an answer at all.
func settled(s *client.Settlement) error {
	if s == nil {
		return nil
	}
	return s.Err()
}
