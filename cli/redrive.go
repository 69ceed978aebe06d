package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

// deadRedrive is the command that brings dead tasks back slowly.
type deadRedrive struct {
	remote
	asking
	Topic string `arg:"" optional:"" help:"The topic. Default: all of them."`
	deadFilter
	Rate   int  `env:"-" default:"100" help:"So many a second at most, 1 to 1000."`
	Try    int  `env:"-" default:"10" help:"Bring so many of each topic back first. Where all of them fail again, the others stay dead. 1 to 100."`
	NoTry  bool `env:"-" help:"Try none of them first."`
	Within span `env:"-" placeholder:"1m" help:"How long the first ones of a topic have to be delivered."`
}

func (c *deadRedrive) check(bad *faults) {
	if c.Rate < 1 || c.Rate > 1000 {
		bad.add("rate: must be from 1 to 1000")
	}
	if c.Try < 1 || c.Try > 100 {
		bad.add("try: must be from 1 to 100")
	}
	if c.Within.given && c.Within.Duration < time.Second {
		bad.add("within: must be at least 1s")
	}
}

func (c *deadRedrive) call(ctx context.Context, s *session) error {
	q := c.query(c.Topic)
	if c.asks(s) {
		of := q
		of.State = client.Dead
		counts, err := s.aside.Count(ctx, of, 0)
		if err != nil {
			return err
		}
		if err := c.ask(s, fmt.Sprintf("%s will be requeued, %d a second", counted(counts.Total.Dead, "dead task", "dead tasks"), c.Rate)); err != nil {
			return err
		}
	}
	if c.NoTry {
		c.Try = 0
	}
	all, err := s.aside.Redrive(ctx, client.Redrive{Query: q, Rate: c.Rate, Try: c.Try, TryWithin: c.Within.Duration, Progress: func(t client.RedrivenTopic) {
		if isTerminal(s.std.err) && !s.json && !t.Over && t.Stopped == "" {
			fmt.Fprintf(s.std.err, "%s: %d of %d\n", plain(t.Topic), t.Requeued, t.Of)
		}
	}})
	if s.json {
		if failed := json.NewEncoder(s.std.out).Encode(map[string]any{"topics": append([]client.RedrivenTopic{}, all...)}); failed != nil {
			return failed
		}
	}
	var stopped []string
	for i := range all {
		t := &all[i]
		line := fmt.Sprintf("%s: %d of %d requeued", plain(t.Topic), t.Requeued, t.Of)
		if t.Stopped != "" {
			stopped = append(stopped, t.Topic)
			line += "; stopped: " + plain(t.Stopped)
		}
		if !s.json {
			fmt.Fprintln(s.std.out, line)
		}
	}
	if len(all) == 0 && err == nil {
		if err = s.checkQuery(ctx, client.Query{Topic: c.Topic, Group: c.Group}); err == nil && !s.json {
			fmt.Fprintln(s.std.out, "no task is dead, or none that the flags select")
		}
	}
	if err == nil && len(stopped) > 0 {
		err = errors.New("not all were requeued: " + strings.Join(stopped, ", "))
	}
	return err
}
