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

// The five commands that settle deliveries.
type (
	ack struct {
		remote
		receipts
	}
	giveBack struct {
		remote
		receipts
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

// Run finishes deliveries.
func (c *ack) Run(ctx context.Context, std streams, bad *faults) error {
	return c.settle(&c.remote, std, bad, "acknowledged", func(s *session, list []string) (*client.Settlement, error) {
		return s.Ack(ctx, list...)
	})
}

// Run gives back deliveries that were not begun.
func (c *giveBack) Run(ctx context.Context, std streams, bad *faults) error {
	return c.settle(&c.remote, std, bad, "given back", func(s *session, list []string) (*client.Settlement, error) {
		return s.Return(ctx, list...)
	})
}

// Run ends deliveries without success.
func (c *release) Run(ctx context.Context, std streams, bad *faults) error {
	return c.settle(&c.remote, std, bad, "released", func(s *session, list []string) (*client.Settlement, error) {
		return s.Release(ctx, c.Delay.pointer(), c.Reason, list...)
	})
}

// Run begins leases anew.
func (c *extend) Run(ctx context.Context, std streams, bad *faults) error {
	return c.settle(&c.remote, std, bad, "extended", func(s *session, list []string) (*client.Settlement, error) {
		return s.Extend(ctx, c.Lease.Duration, list...)
	})
}

// Run gives deliveries up.
func (c *bury) Run(ctx context.Context, std streams, bad *faults) error {
	return c.settle(&c.remote, std, bad, "buried", func(s *session, list []string) (*client.Settlement, error) {
		return s.Bury(ctx, c.Reason, list...)
	})
}

const mostReceipts = 1000 // in a request: the API's limit

// settle settles all receipts, a request's worth at a time.
func (r *receipts) settle(to *remote, std streams, bad *faults, done string,
	call func(*session, []string) (*client.Settlement, error)) error {
	s, err := to.connect(std, bad)
	if err != nil {
		return err
	}
	all, err := expand(r.Receipts)
	if err != nil {
		return err
	}
	var refused []error
	for list := range slices.Chunk(all, mostReceipts) {
		answer, err := call(s, list)
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
