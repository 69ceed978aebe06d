package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

// wave is the command that says how far the tasks are that were due in a span.
type wave struct {
	remote
	figures
	When  when   `arg:"" placeholder:"00:00" help:"A minute (00:00), a span (00:00-00:30), a day (2026-11-30), or a minute of a day (2026-11-30T00:00), all of local time; or an RFC 3339 time."`
	Topic string `env:"-" placeholder:"NAME" help:"Only of this topic."`
}

func (c *wave) call(ctx context.Context, s *session) error {
	w, err := s.Wave(ctx, client.WaveQuery{From: c.When.from, To: c.When.to, Topic: c.Topic, Scope: client.Scope(c.Scope)})
	if err != nil {
		return err
	}
	return s.print(func(out io.Writer) { waveBlock(out, w) })
}

// when is a span of local time on the command line.
type when struct{ from, to time.Time }

// UnmarshalText reads it.
func (w *when) UnmarshalText(text []byte) (err error) {
	w.from, w.to, err = spanOf(string(text), time.Now())
	return err
}

// spanOf reads a span of local time. A time without a day is the one that is next to now.
func spanOf(text string, now time.Time) (from, to time.Time, err error) {
	begin, end, isSpan := strings.Cut(text, "-")
	if isSpan && len(begin) == len("00:00") {
		if from, err = nextTo(begin, now); err == nil {
			to, err = time.ParseInLocation("15:04", end, now.Location())
		}
		if err == nil {
			to = time.Date(from.Year(), from.Month(), from.Day(), to.Hour(), to.Minute(), 0, 0, now.Location())
			if !to.After(from) {
				to = to.AddDate(0, 0, 1)
			}
			return from, to, nil
		}
	}
	if from, err = nextTo(text, now); err == nil {
		return from, from.Add(time.Minute), nil
	}
	if from, err = time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return from, from.AddDate(0, 0, 1), nil
	}
	for _, form := range []string{"2006-01-02T15:04", "2006-01-02 15:04", time.RFC3339} {
		if from, err = time.ParseInLocation(form, text, now.Location()); err == nil {
			return from, from.Add(time.Minute), nil
		}
	}
	return from, to, errors.New("must be 00:00, 00:00-00:30, 2026-11-30, 2026-11-30T00:00 or an RFC 3339 time")
}

// nextTo returns the time of day that is next to now.
func nextTo(text string, now time.Time) (time.Time, error) {
	clock, err := time.ParseInLocation("15:04", text, now.Location())
	if err != nil {
		return clock, err
	}
	var best time.Time
	for day := -1; day <= 1; day++ {
		at := time.Date(now.Year(), now.Month(), now.Day()+day, clock.Hour(), clock.Minute(), 0, 0, now.Location())
		if best.IsZero() || at.Sub(now).Abs() < best.Sub(now).Abs() {
			best = at
		}
	}
	return best, nil
}

// waveBlock shows a wave, in local time.
func waveBlock(out io.Writer, w *client.Wave) {
	const minute = "2006-01-02 15:04"
	fmt.Fprintf(out, "due from %s to %s (%s): %s\n", w.From.Local().Format(minute), w.To.Local().Format(minute), w.From.Local().Format("MST -0700"), waveText(w))
	rows := [][]string{{"TOPIC", "DUE", "WAITING", "DELIVERING", "RETRYING", "HELD", "DELIVERED", "DEAD", "CANCELLED", "SKIPPED"}}
	row := func(name string, c *client.WaveCounts) {
		cells := []string{name}
		for _, n := range []int64{c.Due, c.Waiting, c.Delivering, c.Retrying, c.Held, c.Delivered, c.Dead, c.Cancelled, c.Skipped} {
			cells = append(cells, strconv.FormatInt(n, 10))
		}
		rows = append(rows, cells)
	}
	for i := range w.Topics {
		row(w.Topics[i].Name, &w.Topics[i].WaveCounts)
	}
	if w.Beyond > 0 {
		row(fmt.Sprintf("(%d others)", w.Beyond), &w.Others)
	}
	if len(w.Topics) != 1 || w.Beyond > 0 {
		row("(all)", &w.Total)
	}
	table(out, rows)
	if w.Since.After(w.From) {
		fmt.Fprintf(out, "what has ended is counted from %s on\n", timeText(w.Since))
	}
	warnOfMissing(out, &w.Reach)
}

// waveText says in a few words how far a wave is.
func waveText(w *client.Wave) string {
	c := &w.Total
	switch {
	case c.Due == 0:
		return "nothing"
	case c.ThroughAt != nil && w.Complete:
		return "through since " + c.ThroughAt.Local().Format("15:04:05")
	}
	text := fmt.Sprintf("%d of %d have ended (%.1f %%)", c.Delivered+c.Dead+c.Cancelled+c.Skipped, c.Due, 100*c.Progress)
	if c.EndsAt != nil {
		text += fmt.Sprintf("; at %.1f/s through at %s", c.Rate, c.EndsAt.Local().Format("15:04:05"))
	}
	return text
}
