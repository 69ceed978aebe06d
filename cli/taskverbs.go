package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lapsehq/lapse/client"
)

// A taskVerb is what a command does with tasks that are not dead.
type taskVerb struct {
	action client.Action // with those that flags select
	done   string        // what has become of them then
	// one does it with one task, and returns what has become of that.
	one func(ctx context.Context, s *session, id string) (done string, err error)
}

var (
	cancelTasks = taskVerb{client.CancelAction, "cancelled", func(ctx context.Context, s *session, id string) (string, error) {
		return "is cancelled", s.Cancel(ctx, id)
	}}
	fireTasks = taskVerb{client.FireAction, "made due now", func(ctx context.Context, s *session, id string) (string, error) {
		_, err := s.Fire(ctx, id)
		return "is due now", err
	}}
	holdTasks = taskVerb{client.HoldAction, "held", func(ctx context.Context, s *session, id string) (string, error) {
		return countdown(s.Hold(ctx, id))
	}}
	resumeTasks = taskVerb{client.ResumeAction, "resumed", func(ctx context.Context, s *session, id string) (string, error) {
		return countdown(s.Resume(ctx, id))
	}}
)

// countdown says how the countdown of a task stands.
func countdown(t *client.Task, err error) (string, error) {
	switch {
	case err != nil:
		return "", err
	case t.State == client.Held:
		return "is held, with " + roundedText(time.Duration(t.Remaining)) + " left", nil
	}
	return "goes on, and is due " + instantText(t.Due, time.Now()), nil
}

// do acts on the tasks of the ids, one after the other. Without ids it acts on those that are
// selected.
func (v *taskVerb) do(ctx context.Context, s *session, flags *acting, q client.Query, ids []string) error {
	if len(ids) == 0 {
		return flags.run(ctx, s, client.Act{Action: v.action, Query: q}, v.done)
	}
	return each(ids, func(id string) error {
		done, err := patiently(ctx, s, func(ctx context.Context) (string, error) { return v.one(ctx, s, id) })
		if err != nil {
			return err
		}
		return s.print(func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", id, done) })
	})
}

// withTasks is a command that does one thing with tasks: some, or those that flags select.
type withTasks struct {
	remote
	IDs   []string `arg:"" optional:"" name:"id" help:"Ids of tasks; - reads them from standard input."`
	Group string   `env:"-" placeholder:"NAME" help:"Tasks of this group, in place of ids."`
	selection

	verb *taskVerb
}

func (c *withTasks) check(bad *faults) { c.either(c.query(c.Group), c.IDs, bad) }

func (c *withTasks) call(ctx context.Context, s *session) error {
	return c.verb.do(ctx, s, &c.acting, c.query(c.Group), c.IDs)
}
