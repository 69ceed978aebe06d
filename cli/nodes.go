package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

type nodesList struct{ remote }

func (c *nodesList) call(ctx context.Context, s *session) error {
	list, err := s.Nodes(ctx)
	if err != nil {
		return err
	}
	return s.printList("nodes", func(w io.Writer) { nodeTable(w, list) })
}

// nodeTable marks the node that was asked with a star.
func nodeTable(w io.Writer, list []client.Node) {
	rows := [][]string{{"NODE", "STATE", "SEEN", "SHARDS", "ADOPTED", "PENDING", "READY", "DELIVERING", "DEAD", "LATE P99 ≤", "ADDRESS", "VERSION"}}
	for i := range list {
		n := &list[i]
		name := n.Name
		if n.Self {
			name += " *"
		}
		row := []string{name, string(n.State), roundedText(time.Duration(n.HeartbeatAge)) + " ago",
			fmt.Sprintf("%d of %d", n.Shards.Held, n.Shards.Own), strconv.Itoa(n.Shards.Adopted)}
		if t := n.Status; t != nil {
			for _, count := range []int64{t.Pending, t.Ready, t.Delivering, t.Dead} {
				row = append(row, strconv.FormatInt(count, 10))
			}
			row = append(row, upTo(t.Lateness.P99))
		} else {
			row = append(row, "-", "-", "-", "-", "-")
		}
		rows = append(rows, append(row, n.Address, n.Version))
	}
	table(w, rows)
}

type nodesShow struct {
	remote
	Node string `arg:"" help:"Its name, as lapse nodes has it."`
}

func (c *nodesShow) call(ctx context.Context, s *session) error {
	n, err := s.Node(ctx, c.Node)
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) {
		nodeTable(w, []client.Node{*n})
		if len(n.MissingSpools) > 0 {
			fmt.Fprintf(w, "\nmissing spools, which may have tasks: %s\n", strings.Join(n.MissingSpools, ", "))
		}
		if len(n.Stored) == 0 {
			return
		}
		fmt.Fprintln(w)
		rows := [][]string{{"PENDING IDS (SET)", "THEIR RECORDS (HASH)", "TASKS", "AT NODE"}}
		for _, shard := range n.Stored {
			rows = append(rows, []string{shard.Pending, shard.Tasks, strconv.FormatInt(shard.Count, 10), shard.Owner})
		}
		table(w, rows)
	})
}

type nodesGiveUpSpools struct {
	remote
	Node string `arg:"" help:"Its name, as lapse nodes has it."`
}

func (c *nodesGiveUpSpools) call(ctx context.Context, s *session) error {
	if err := s.GiveUpSpools(ctx, c.Node); err != nil {
		return err
	}
	return s.print(func(w io.Writer) { fmt.Fprintf(w, "the missing spools of %s are given up\n", c.Node) })
}

type nodesDrain struct {
	remote
	Wait bool   `env:"-" help:"Return when it has ended, and not when it has begun. Ask another node than the one that ends."`
	Node string `arg:"" optional:"" help:"Its name. Default: the server that is asked."`
}

func (c *nodesDrain) call(ctx context.Context, s *session) error {
	var before client.Node
	if c.Wait || c.Node == "" {
		var err error
		if before, err = c.find(ctx, s); err != nil {
			return err
		}
		c.Node = before.Name
	}
	if err := s.DrainNode(ctx, c.Node); err != nil {
		return err
	}
	if !c.Wait {
		return s.print(func(w io.Writer) { fmt.Fprintf(w, "%s hands over what it holds, and ends\n", c.Node) })
	}
	if err := c.await(ctx, s, before); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.std.out, "%s has handed over what it held\n", c.Node)
	return err
}

// find returns the node as the server knows it, or the server itself if no name is given.
func (c *nodesDrain) find(ctx context.Context, s *session) (client.Node, error) {
	list, err := s.Nodes(ctx)
	if err != nil {
		return client.Node{}, err
	}
	i := slices.IndexFunc(list, func(n client.Node) bool { return n.Name == c.Node || c.Node == "" && n.Self })
	if i < 0 {
		return client.Node{}, fmt.Errorf("%w: %s", client.ErrNoNode, c.Node)
	}
	return list[i], nil
}

// drainPoll is how often to look whether a node has ended.
const drainPoll = 200 * time.Millisecond

// await waits until a node has ended, or runs again: a service manager may start it before the next
// look. A node that gives up is an error.
func (c *nodesDrain) await(ctx context.Context, s *session, before client.Node) error {
	failed := 0
	if before.Status != nil {
		failed = before.Status.DrainsFailed
	}
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		now, err := c.find(ctx, s)
		switch {
		case err != nil && before.Self:
			return fmt.Errorf("%s was asked about itself, and answers no more; lapse nodes at another one tells what became of it: %w", c.Node, err)
		case err != nil:
			return err
		case now.State == client.NodeReleased, now.Process != before.Process:
			return nil
		case now.Status != nil && now.Status.DrainsFailed > failed:
			return fmt.Errorf("%w: %s takes no new tasks, but could not hand over what it holds: %s", client.ErrUnavailable, c.Node, now.Status.DrainFault)
		case now.State == client.NodeSilent && now.Status == nil: // it counts as dead
			return fmt.Errorf("%w: %s sends no heartbeat any more; the others adopt what it still held", client.ErrUnavailable, c.Node)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &partial{context.Cause(ctx), c.Node + " goes on handing over; lapse nodes shows it"}
		}
	}
}
