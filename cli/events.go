package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

// events is the command that prints the events of tasks.
type events struct {
	remote
	Scope  string   `env:"-" default:"fleet" enum:"fleet,node" help:"Whose events: fleet, of all nodes that share the ledger, or node, of the server alone."`
	Topics []string `name:"topic" sep:"none" env:"-" placeholder:"NAME" help:"Only of this topic. May be given several times."`
	Kinds  []string `name:"kind" sep:"none" env:"-" placeholder:"KIND" help:"Only of this kind: scheduled, started, delivered, retried, dead, cancelled, skipped, rescued, or due, which has to be named. May be given several times."`
}

// call prints events, a line each, until it is interrupted, which is no failure.
func (c *events) call(ctx context.Context, s *session) error {
	filter := client.EventFilter{Topics: c.Topics, Scope: client.Scope(c.Scope)}
	for _, k := range c.Kinds {
		filter.Kinds = append(filter.Kinds, client.EventKind(k))
	}
	for _, topic := range c.Topics {
		if err := s.checkTopic(ctx, topic); err != nil {
			fmt.Fprintf(s.std.err, "lapse: waiting for the first event: %s\n", plainLines(err.Error()))
		}
	}
	all, err := s.Events(ctx, filter)
	if err != nil {
		return err
	}
	many := false // whether there are other nodes
	for e, err := range all {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		many = many || e.Kind == client.NodeCovered || e.Kind == client.NodeMissing
		line := eventLine(e, many)
		if c.JSON {
			line = string(plainJSON(e.Data))
		}
		if _, err := fmt.Fprintln(s.std.out, line); err != nil {
			return err
		}
	}
	return nil
}

// eventLine shows an event, with its node if there are many.
func eventLine(e *client.Event, many bool) string {
	node := plain(e.Node)
	switch {
	case e.Kind == client.EventsLost && many:
		return fmt.Sprintf("-- %d events of node %s were lost: this reader was too slow", e.Count, node)
	case e.Kind == client.EventsLost:
		return fmt.Sprintf("-- %d events were lost: this reader was too slow", e.Count)
	case e.Kind == client.NodeCovered && e.Gap:
		return fmt.Sprintf("-- node %s is covered; events of it may be missing before this", node)
	case e.Kind == client.NodeCovered:
		return fmt.Sprintf("-- node %s is covered", node)
	case e.Kind == client.NodeMissing:
		return fmt.Sprintf("-- node %s is missing: %s", node, plain(e.Error))
	case e.Kind == client.NodeLeft:
		return fmt.Sprintf("-- node %s has left", node)
	}
	var notes []string
	if many {
		notes = append(notes, "on "+node)
	}
	if e.Attempt > 0 {
		notes = append(notes, fmt.Sprint("attempt ", e.Attempt))
	}
	if e.Kind == client.EventStarted && e.Attempt == 1 || e.Kind == client.EventDue {
		notes = append(notes, roundedText(time.Duration(e.Lateness))+" late")
	}
	line := fmt.Sprintf("%s  %-9s  %s  %s  %s", e.At.Local().Format("2006-01-02 15:04:05.000"), plain(string(e.Kind)), plain(e.Topic), plain(e.ID), strings.Join(notes, ", "))
	if e.Error != "" {
		line += ": " + plain(e.Error)
	}
	return strings.TrimRight(line, " ")
}
