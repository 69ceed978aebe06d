package main

import (
	"fmt"
	"slices"
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

// What stands between these comments of the page is written here. The rest is not.
const (
	begin = "<!-- Written by make bench-compare, up to the next comment. Do not edit. -->\n"
	end   = "<!-- The end of what make bench-compare writes. -->\n"
)

const intro = `
Measured in one run on one machine, which clients, servers and Redis shared; rounds alternate between the
systems. A figure is the median of its rounds, and a ratio, below each table, the median of the ratios of the
tasks a second within rounds, with its bar. Faults are tasks that were early, lost or repeated. **The machine
may have had other work: compare ratios with another run, never figures.**

![tasks a second, and lateness](../docs/comparison.svg)

`

// into puts the figures into the page that was, in the place of those that it had. A page without
// that place becomes nothing but them.
func (c *comparison) into(page string) string {
	var figures strings.Builder
	c.write(&figures)
	before, rest, begun := strings.Cut(page, begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		before, after = "", ""
	}
	return before + begin + figures.String() + "\n" + end + after
}

// write writes what was measured.
func (c *comparison) write(w *strings.Builder) {
	var b strings.Builder
	b.WriteString(intro)
	m := &c.machine
	fmt.Fprintf(&b, "%s, %d cores, %d MB, %s %s/%s, kernel %s, on %s, %d rounds. %s.\n\n```sh\n%s\n```\n",
		m.CPU, m.Cores, m.MemoryMB, m.Go, m.OS, m.Arch, m.Kernel, c.when.Format(time.DateOnly), c.rounds, strings.Join(c.versions, ", "), c.command)
	for i := range c.rankings {
		c.rankings[i].write(&b)
	}
	w.WriteString(pagetest.Wrap(b.String()))
}

func (k *ranking) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s\n\n", strings.ToUpper(k.title[:1])+k.title[1:])
	if k.note != "" {
		fmt.Fprintf(b, "%s\n\n", k.note)
	}
	late := slices.ContainsFunc(k.outcomes, func(o outcome) bool { return len(o.rounds) > 0 && o.median(top) != 0 })
	if late {
		b.WriteString("| | tasks/s | lateness p50, ms | p99 | max | faults |\n| --- | ---: | ---: | ---: | ---: | ---: |\n")
	} else {
		b.WriteString("| | tasks/s | faults |\n| --- | ---: | ---: |\n")
	}
	for i := range k.outcomes {
		k.outcomes[i].write(b, late)
	}
	b.WriteString("\n")
	for _, r := range k.ratios {
		k.writeRatio(b, r)
	}
}

// write writes a row, with the three columns of the lateness where the table has them.
func (o *outcome) write(b *strings.Builder, late bool) {
	blank := ""
	if late {
		blank = " | | |"
	}
	switch {
	case o.missing != "":
		fmt.Fprintf(b, "| %s | *%s is not installed* | |%s\n", o.name, o.missing, blank)
		return
	case len(o.rounds) == 0:
		fmt.Fprintf(b, "| %s | *failed: %s* | |%s\n", o.name, cell(o.failed), blank)
		return
	}
	f, name := o.faults(), o.name
	if o.failed != nil {
		name += fmt.Sprintf(" *(failed in round %d, and no more was measured: %s)*", len(o.rounds)+1, cell(o.failed))
	}
	fmt.Fprintf(b, "| %s | %s |", name, thousands(o.median(speed)))
	if late {
		fmt.Fprintf(b, " %s | %s | %s |", millis(o.median(p50)), millis(o.median(p99)), millis(o.median(top)))
	}
	faults := "0"
	if f.Early+f.Lost+f.Repeated > 0 {
		faults = fmt.Sprintf("%d early, %d lost, %d repeated", f.Early, f.Lost, f.Repeated)
	}
	fmt.Fprintf(b, " %s |\n", faults)
}

// cell is an error as a cell of a table holds it.
func cell(err error) string {
	return strings.NewReplacer("\n", " ", "|", "\\|").Replace(err.Error())
}

func (k *ranking) writeRatio(b *strings.Builder, r ratio) {
	value, met, ok := k.compare(r)
	what := ""
	if k.lateness {
		what = "p99 lateness, "
	}
	fmt.Fprintf(b, "- %s%s to %s: ", what, r.of, r.to)
	if !ok {
		b.WriteString("not measured\n")
		return
	}
	fmt.Fprintf(b, "**%s**", factor(value))
	if r.bar != 0 {
		least, verdict := "at least", ""
		if r.most {
			least = "at most"
		}
		if !met {
			verdict = ": **missed**"
		}
		fmt.Fprintf(b, " (%s %s%s)", least, factor(r.bar), verdict)
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
