package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

// forecast is the command that counts the tasks that fall due, by time.
type forecast struct {
	remote
	figures
	Topic  string `env:"-" placeholder:"NAME" help:"Only of this topic."`
	Window span   `env:"-" placeholder:"1h" help:"How far to look ahead. Default: 1h."`
	Step   span   `env:"-" placeholder:"1m" help:"What to count together. Default: a 60th of the window."`
}

func (c *forecast) call(ctx context.Context, s *session) error {
	f, err := s.Forecast(ctx, client.Outlook{Topic: c.Topic, Window: c.Window.Duration, Step: c.Step.Duration, Scope: client.Scope(c.Scope)})
	if err == nil && c.Topic != "" && f.Ready+f.Delivering+f.Later+f.Held == 0 && slices.Max(append(f.Counts, 0)) == 0 {
		err = s.checkTopic(ctx, c.Topic)
	}
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) { forecastChart(w, f) })
}

// forecastChart draws the steps up to the last one in which something falls due, without a gap.
func forecastChart(w io.Writer, f *client.Forecast) {
	const width = 40
	var rows [][]string
	counts := f.Counts
	for len(counts) > 0 && counts[len(counts)-1] == 0 {
		counts = counts[:len(counts)-1]
	}
	for i, n := range counts {
		begins := f.From.Add(time.Duration(i) * time.Duration(f.Step))
		bar := strings.Repeat("#", int(n*width/slices.Max(counts)))
		if n > 0 && bar == "" {
			bar = "#"
		}
		if waits(f, begins) {
			bar += " waits"
		}
		rows = append(rows, []string{begins.Local().Format("01-02 15:04:05"), fmt.Sprint(n), bar})
	}
	fmt.Fprintf(w, "%d ready, %d delivering; next attempts by %s:\n", f.Ready, f.Delivering, roundedText(time.Duration(f.Step)))
	table(w, rows)
	ahead := time.Duration(len(f.Counts)) * time.Duration(f.Step)
	fmt.Fprintf(w, "%d later than %s from now\n", f.Later, roundedText(ahead))
	if f.Held > 0 {
		fmt.Fprintf(w, "%d held\n", f.Held)
	}
	if !f.Complete {
		fmt.Fprintln(w, "replay is not over: some are missing")
	}
	if f.Judgement.Text != "" {
		fmt.Fprintln(w, f.Judgement.Text)
	}
	warnOfMissing(w, &f.Reach)
}

// waits reports whether most tasks of a peak fall due in a step, and are known to wait.
func waits(f *client.Forecast, begins time.Time) bool {
	return f.Judgement.Limit && slices.ContainsFunc(f.Judgement.Peaks, func(p client.Peak) bool {
		return !p.At.Before(begins) && p.At.Before(begins.Add(time.Duration(f.Step)))
	})
}
