package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/lapsehq/lapse/client"
)

// cancel is the command that cancels tasks: some, those of a group, or those that flags select.
type cancel struct {
	remote
	IDs   []string `arg:"" optional:"" name:"id" help:"Ids of tasks; - reads them from standard input."`
	Group string   `env:"-" placeholder:"NAME" help:"Tasks of this group, in place of ids. Alone: all that are pending or ready, at once."`
	selection
}

func (c *cancel) check(bad *faults) { c.either(c.query(c.Group), c.IDs, bad) }

// call cancels as other verbs do, but a whole group at once.
func (c *cancel) call(ctx context.Context, s *session) error {
	q := c.query(c.Group)
	if c.Group == "" || q != (client.Query{Group: c.Group}) || c.acting != (acting{}) {
		return cancelTasks.do(ctx, s, &c.acting, q, c.IDs)
	}
	a := client.Act{Action: client.CancelAction, Query: q}
	if selected, err := c.sure(ctx, s, a, "cancelled, but for those that are being delivered"); err != nil || selected == 0 {
		return err
	}
	done, err := s.CancelGroup(ctx, c.Group)
	if err != nil {
		return err
	}
	err = s.print(func(w io.Writer) { groupCancelled(w, c.Group, done) })
	if err == nil && done.Cancelled+len(done.Delivering)+done.MoreDelivering == 0 {
		err = unknownGroup(c.Group)
	}
	return err
}

// groupCancelled names the tasks that were too late to cancel.
func groupCancelled(w io.Writer, group string, done *client.GroupCancelled) {
	fmt.Fprintf(w, "%s cancelled\n", counted(done.Cancelled, "task of the group "+group+" is", "tasks of the group "+group+" are"))
	if n := len(done.Delivering) + done.MoreDelivering; n > 0 {
		more := ""
		if done.MoreDelivering > 0 {
			more = fmt.Sprintf(" and %d more", done.MoreDelivering)
		}
		fmt.Fprintf(w, "%s: %s%s\n", counted(n, "is being delivered, and stays", "are being delivered, and stay"), plain(strings.Join(done.Delivering, " ")), more)
	}
}
