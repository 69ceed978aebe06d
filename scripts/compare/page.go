package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/lapsehq/lapse/cli/bench"
	"github.com/lapsehq/lapse/internal/pagetest"
)

// A comparison is everything that the page tells.
type comparison struct {
	when     time.Time
	command  string
	rounds   int
	machine  bench.Machine
	versions []string
	rankings []ranking
}

const intro = `# Lapse beside others

<!-- Written by make bench-compare. Do not edit. -->

Measured in one run on one machine, which clients, servers and Redis shared; rounds alternate between the
systems. A figure is the median of its rounds, and a ratio the median of the ratios within rounds. **The machine
may have had other work: compare ratios with another run, never figures.**

![tasks a second, and lateness](comparison.svg)

The systems do not promise the same:

- **Lapse** answers once a task is recorded (on disk: synced; in Redis: applied), and delivers until it is
  acknowledged and that is recorded. Deadlines are milliseconds. Here it waits for its ledger for 20 s (over HTTP) or a
  minute (embedded) and not for 2 s, so that a stall shows in the figures and does not end the run.
- **asynq** records in Redis, too, delivers until acknowledged, and does much else. Deadlines are whole seconds, and
  due tasks are looked for once a second at the most (every 5 s by default).
- **beanstalkd** keeps a log that is synced every 50 ms by default: what was accepted in the last moment before a power
  failure is lost. Delays are whole seconds. Two rows compare all of them with each write synced.
- **Redis expiry events** are not acknowledged and not kept: who does not listen at that moment never learns of the task. An
  event has a name and no payload. Keys expire when Redis finds them.
- **time.AfterFunc** records nothing.

What users of these systems ask for, by thread: [what-users-ask.md](what-users-ask.md).

`

// write writes the page.
func (c *comparison) write(w io.Writer) error {
	var b strings.Builder
	b.WriteString(intro)
	m := &c.machine
	fmt.Fprintf(&b, "%s, %d cores, %d MB, %s %s/%s, kernel %s, on %s, %d rounds. %s.\n\n```sh\n%s\n```\n",
		m.CPU, m.Cores, m.MemoryMB, m.Go, m.OS, m.Arch, m.Kernel, c.when.Format(time.DateOnly), c.rounds, strings.Join(c.versions, ", "), c.command)
	for i := range c.rankings {
		c.rankings[i].write(&b)
	}
	_, err := io.WriteString(w, pagetest.Wrap(b.String()))
	return err
}

func (k *ranking) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n", strings.ToUpper(k.title[:1])+k.title[1:])
	if k.note != "" {
		fmt.Fprintf(b, "%s\n\n", k.note)
	}
	b.WriteString("| | tasks/s | lateness p50, ms | p99 | max | early | lost | repeated |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for i := range k.outcomes {
		k.outcomes[i].write(b)
	}
	b.WriteString("\n")
	for _, r := range k.ratios {
		k.writeRatio(b, r)
	}
}

func (o *outcome) write(b *strings.Builder) {
	switch {
	case o.missing != "":
		fmt.Fprintf(b, "| %s | *%s is not installed* | | | | | | |\n", o.name, o.missing)
		return
	case len(o.rounds) == 0:
		fmt.Fprintf(b, "| %s | *failed: %s* | | | | | | |\n", o.name, cell(o.failed))
		return
	}
	f, name := o.faults(), o.name
	if o.failed != nil {
		name += fmt.Sprintf(" *(failed in round %d, and no more was measured: %s)*", len(o.rounds)+1, cell(o.failed))
	}
	fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %d | %d | %d |\n", name, thousands(o.median(speed)),
		millis(o.median(p50)), millis(o.median(p99)), millis(o.median(top)), f.Early, f.Lost, f.Repeated)
}

// cell is an error as a cell of a table holds it.
func cell(err error) string {
	return strings.NewReplacer("\n", " ", "|", "\\|").Replace(err.Error())
}

func (k *ranking) writeRatio(b *strings.Builder, r ratio) {
	value, met, ok := k.compare(r)
	what := "tasks/s"
	if k.lateness {
		what = "p99 lateness"
	}
	fmt.Fprintf(b, "- %s, %s to %s: ", what, r.of, r.to)
	if !ok {
		b.WriteString("not measured\n")
		return
	}
	fmt.Fprintf(b, "**%s**", factor(value))
	if r.bar != 0 {
		least, verdict := "at least", "met"
		if r.most {
			least = "at most"
		}
		if !met {
			verdict = "**missed**"
		}
		fmt.Fprintf(b, " (the bar is %s %s: %s)", least, factor(r.bar), verdict)
	}
	b.WriteString("\n")
}

// thousands prints a rate as people read it.
func thousands(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	if v < 10_000 {
		return fmt.Sprintf("%.1fk", v/1000)
	}
	return fmt.Sprintf("%.0fk", v/1000)
}

func millis(v float64) string {
	switch {
	case v == 0:
		return ""
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func factor(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}
