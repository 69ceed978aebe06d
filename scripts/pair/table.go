package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

// print writes one table. The error names the paths that are slower.
func (c *contest) print(out io.Writer) error {
	fmt.Fprintf(out, "\n%s beside %s. Cost: microseconds of processor time of Lapse a task, for pending bytes a task;\nmedians, and the median of the ratios with its 95 %% interval.\n\n", c.sides[new].name, c.sides[old].name)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "path\tcost\tbefore\tratio\tlow\thigh\tpairs\trate/s\tbefore\tallocs\tbefore\tRedis\tload\t")
	var slower []string
	for _, name := range c.order {
		p := c.found[name]
		ratios := p.ratios()
		low, high := interval(ratios)
		of := func(which int, f func(measure.Sample) float64) float64 {
			values := make([]float64, len(ratios))
			for i := range values {
				values[i] = f(p.samples[which][i])
			}
			return median(values)
		}
		cost := func(s measure.Sample) float64 { return s.Cost }
		rate := func(s measure.Sample) float64 { return s.Rate }
		allocs := func(s measure.Sample) float64 { return s.Allocs }
		mark := ""
		if p.slower(c.limit) {
			mark, slower = " slower", append(slower, name)
		}
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.3f\t%.3f\t%.3f\t%d\t%.0f\t%.0f\t%.1f\t%.1f\t%.2f\t%.2f\t%s\n", name,
			of(new, cost), of(old, cost), median(ratios), low, high, len(ratios), of(new, rate), of(old, rate), of(new, allocs), of(old, allocs),
			of(new, func(s measure.Sample) float64 { return s.Redis }), of(new, func(s measure.Sample) float64 { return s.Load }), mark)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(slower) > 0 {
		return fmt.Errorf("these cost more than %.2f of before: %v", c.limit, slower)
	}
	return nil
}
