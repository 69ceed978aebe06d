package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"

	"github.com/lapsehq/lapse/cli/bench"
)

// An outcome is the result of an entrant in a row.
type outcome struct {
	name    string
	lapse   bool
	missing string         // the program that is not installed; nothing was measured then
	rounds  []bench.Result // in order
	failed  error          // why there are no more rounds
}

// A ranking is a row that was run.
type ranking struct {
	row
	outcomes []outcome
}

// run lets all entrants run, round by round, in alternating order: the first one of a round is the
// last one of the next. An entrant that fails is left out from then on.
func (r row) run(ctx context.Context, rounds int, progress io.Writer) ranking {
	all := make([]outcome, len(r.entrants))
	order := make([]int, len(r.entrants))
	for i, e := range r.entrants {
		order[i] = i
		all[i] = outcome{name: e.name, lapse: e.lapse}
		if _, err := exec.LookPath(e.needs); e.needs != "" && err != nil {
			all[i].missing = e.needs
		}
	}
	for round := range rounds {
		for _, i := range order {
			o := &all[i]
			if o.missing != "" || o.failed != nil || ctx.Err() != nil {
				continue
			}
			result, err := r.entrants[i].run(ctx, r.load)
			if err != nil {
				o.failed = err
				fmt.Fprintf(progress, "%s %d/%d %s: %v\n", r.key, round+1, rounds, o.name, err)
				continue
			}
			o.rounds = append(o.rounds, result)
			fmt.Fprintf(progress, "%s %d/%d %s: %s\n", r.key, round+1, rounds, o.name, summary(result))
		}
		slices.Reverse(order)
	}
	return ranking{r, all}
}

func summary(r bench.Result) string {
	text := fmt.Sprintf("%.0f tasks/s", r.TasksPerSecond)
	if d := r.Lateness; d != nil {
		text += fmt.Sprintf(", late p50 %.2f p99 %.2f max %.2f ms", d.P50, d.P99, d.Max)
	}
	if r.Broken() {
		text += fmt.Sprintf(", %d early %d lost %d repeated", r.Early, r.Lost, r.Repeated)
	}
	return text
}

// median returns that of a figure over the rounds, 0 if there were none.
func (o *outcome) median(figure func(*bench.Result) float64) float64 {
	all := make([]float64, len(o.rounds))
	for i := range o.rounds {
		all[i] = figure(&o.rounds[i])
	}
	return median(all)
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	if k := len(all) / 2; len(all)%2 == 1 {
		return all[k]
	} else {
		return (all[k-1] + all[k]) / 2
	}
}

// speed returns a figure of a result, for median.
func speed(r *bench.Result) float64 { return r.TasksPerSecond }

func late(of func(*bench.Distribution) float64) func(*bench.Result) float64 {
	return func(r *bench.Result) float64 {
		if r.Lateness == nil {
			return 0
		}
		return of(r.Lateness)
	}
}

var (
	p50 = late(func(d *bench.Distribution) float64 { return d.P50 })
	p99 = late(func(d *bench.Distribution) float64 { return d.P99 })
	top = late(func(d *bench.Distribution) float64 { return d.Max })
)

// faults adds up those of all rounds.
func (o *outcome) faults() (f bench.Faults) {
	for i := range o.rounds {
		x := &o.rounds[i].Faults
		f.Early, f.Lost, f.Repeated, f.Explained = f.Early+x.Early, f.Lost+x.Lost, f.Repeated+x.Repeated, f.Explained+x.Explained
	}
	return f
}

// compare returns the median of a ratio's rounds, in tasks/s or in p99. It reports
// false if one of the two was not measured.
func (k *ranking) compare(r ratio) (value float64, met, ok bool) {
	of, to := k.outcome(r.of), k.outcome(r.to)
	if of == nil || to == nil {
		return 0, false, false
	}
	figure := speed
	if k.lateness {
		figure = p99
	}
	var all []float64
	for i := range min(len(of.rounds), len(to.rounds)) {
		if d := figure(&to.rounds[i]); d > 0 {
			all = append(all, figure(&of.rounds[i])/d)
		}
	}
	value = median(all)
	met = value >= r.bar
	if r.most {
		met = value <= r.bar
	}
	return value, met, len(all) > 0
}

func (k *ranking) outcome(name string) *outcome {
	for i := range k.outcomes {
		if k.outcomes[i].name == name {
			return &k.outcomes[i]
		}
	}
	return nil
}
