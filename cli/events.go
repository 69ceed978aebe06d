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
	Topics []string `name:"topic" sep:"none" env:"-" placeholder:"NAME" help:"Only of this topic. May be given several times."`
	Kinds  []string `name:"kind" sep:"none" env:"-" placeholder:"KIND" help:"Only of this kind: scheduled, started, delivered, retried, dead, cancelled, skipped or rescued. May be given several times."`
}

// Run prints events, a line each, until it is interrupted, which is no failure.
func (c *events) Run(ctx context.Context, std streams, bad *faults) error {
	s, err := c.connect(std, bad)
	if err != nil {
		return err
	}
	filter := client.EventFilter{Topics: c.Topics}
	for _, k := range c.Kinds {
		filter.Kinds = append(filter.Kinds, client.EventKind(k))
	}
	all, err := s.Events(ctx, filter)
	if err != nil {
		return err
	}
	for e, err := range all {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		line := eventLine(e)
		if c.JSON {
			line = string(plainJSON(e.Data))
		}
		if _, err := fmt.Fprintln(std.out, line); err != nil {
			return err
		}
	}
	return nil
}

func eventLine(e *client.Event) string {
	if e.Kind == client.EventsLost {
		return fmt.Sprintf("-- %d events were lost: this reader was too slow", e.Count)
	}
	var notes []string
	if e.Attempt > 0 {
		notes = append(notes, fmt.Sprint("attempt ", e.Attempt))
	}
	if e.Kind == client.EventStarted && e.Attempt == 1 {
		notes = append(notes, roundedText(time.Duration(e.Lateness))+" late")
	}
	line := fmt.Sprintf("%s  %-9s  %s  %s  %s", e.At.Local().Format("2006-01-02 15:04:05.000"), plain(string(e.Kind)), plain(e.Topic), plain(e.ID), strings.Join(notes, ", "))
	if e.Error != "" {
		line += ": " + plain(e.Error)
	}
	return strings.TrimRight(line, " ")
}
