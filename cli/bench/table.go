package bench

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
)

// Print writes the report for people: a table for each kind of result, and the
// lateness as bars.
func (r *Report) Print(w io.Writer) {
	m := &r.Machine
	fmt.Fprintf(w, "lapse %s on %s/%s, %d cores", r.Version, m.OS, m.Arch, m.Cores)
	if r.Redis != "" {
		fmt.Fprintf(w, ", Redis %s", r.Redis)
	}
	if r.Server != "" {
		fmt.Fprintf(w, ", server %s", r.Server)
	}
	fmt.Fprintln(w)

	r.table(w, "\nscheduling\tsystem\tledger\ttasks\tcallers\ta request\ttasks/s\tanswer p50\tp99\tmax\tlost\t",
		func(x *Result) bool { return x.Answers != nil },
		func(x *Result) []any {
			a := x.Answers
			return []any{x.Workload, x.System, x.Ledger, x.Tasks, x.Callers, x.Batch, rate(x.TasksPerSecond),
				millis(a.P50), millis(a.P99), millis(a.Max), x.Lost}
		})
	r.table(w, "\ndelivery\tsystem\tledger\ttasks\tdue/s\thandled/s\tlate p50\tp99\tmax\tfilled/s\tearly\tlost\trepeated\texplained\t",
		func(x *Result) bool { return x.Workload == "burst" || x.Workload == "steady" },
		func(x *Result) []any {
			d := x.Lateness
			if d == nil {
				d = &Distribution{}
			}
			due := "at once"
			if x.Rate > 0 {
				due = strconv.Itoa(x.Rate)
			}
			return []any{x.Workload, x.System, x.Ledger, x.Tasks, due, rate(x.TasksPerSecond),
				millis(d.P50), millis(d.P99), millis(d.Max), rate(x.FilledPerSecond), x.Early, x.Lost, x.Repeated, x.Explained}
		})
	r.table(w, "\nwaiting\tsystem\tledger\ttasks\tB/task\tresident MB\tidle CPU\tGC CPU\tone GC\tfilled/s\tlost\t",
		func(x *Result) bool { return x.Memory != nil },
		func(x *Result) []any {
			idle := "?"
			if x.Memory.IdleCPU != nil {
				idle = fmt.Sprintf("%.2f %%", *x.Memory.IdleCPU)
			}
			return []any{x.Workload, x.System, x.Ledger, x.Tasks, rate(x.Memory.BytesPerTask), rate(x.Memory.ResidentMB),
				idle, fmt.Sprintf("%.2f %%", x.Memory.GCCPU), millis(x.Memory.GCMillis), rate(x.FilledPerSecond), x.Lost}
		})
	r.table(w, "\nrestart\tsystem\tledger\ttasks\tready\tfirst overdue\tall overdue\tfilled/s\tearly\tlost\trepeated\texplained\t",
		func(x *Result) bool { return x.Restart != nil },
		func(x *Result) []any {
			f := x.Restart
			return []any{x.Workload, x.System, x.Ledger, x.Tasks, millis(f.Ready), millis(f.FirstOverdue), millis(f.AllOverdue),
				rate(x.FilledPerSecond), x.Early, x.Lost, x.Repeated, x.Explained}
		})
	for i := range r.Results {
		if x := &r.Results[i]; x.Lateness != nil {
			fmt.Fprintf(w, "\nlateness, %s, %s %s, %d tasks", x.Workload, x.System, x.Ledger, x.Tasks)
			if x.Rate > 0 {
				fmt.Fprintf(w, ", %d/s", x.Rate)
			}
			fmt.Fprintln(w)
			x.Lateness.draw(w)
		}
	}
	if !r.Whole {
		fmt.Fprintln(w, "\nThe run did not come to its end.")
	}
}

// table prints one kind of results, or nothing if there are none.
func (r *Report) table(w io.Writer, head string, of func(*Result) bool, cells func(*Result) []any) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	some := false
	for i := range r.Results {
		x := &r.Results[i]
		if !of(x) {
			continue
		}
		if !some {
			fmt.Fprintln(t, head)
			some = true
		}
		for _, c := range cells(x) {
			fmt.Fprintf(t, "%v\t", c)
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // an error of w has been returned before
}

// rate prints three significant digits, and fewer decimals for large rates.
func rate(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v/1000, 'f', 1, 64) + "k"
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func millis(ms float64) string {
	if ms >= 10_000 {
		return strconv.FormatFloat(ms/1000, 'f', 1, 64) + " s"
	}
	return strconv.FormatFloat(ms, 'f', 2, 64) + " ms"
}
