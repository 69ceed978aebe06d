package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger"
)

// patience with a system that delivers nothing: longer than any poll or retry that
// would still be an answer.
const patience = 30 * time.Second

// restBefore is the pause before a burst, for collections and the ledger's own files to settle.
const restBefore = 2 * time.Second

// A step is one workload on one system.
type step struct {
	what   string
	ledger string
	system string
	run    func(ctx context.Context) (Result, error)
}

// Run measures what the options select, in sequence. The report holds the measured figures, also
// when there is an error: the options are wrong, a system failed, or ctx ended. By then everything
// that Run made is removed.
func Run(ctx context.Context, o Options) (*Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	r := &Report{Format: format, Started: began.UTC().Truncate(time.Second), Version: o.Version, Machine: ThisMachine(), Results: []Result{}}
	if err := o.facts(ctx, r); err != nil {
		return r, err
	}
	for _, s := range o.steps() {
		fmt.Fprintf(o.Progress, "%s %s: %s\n", s.system, s.ledger, s.what)
		result, err := s.run(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("interrupted: %w", err)
			}
			r.Seconds = time.Since(began).Seconds()
			return r, fmt.Errorf("%s %s: %s: %w", s.system, s.ledger, s.what, err)
		}
		result.System, result.Ledger = s.system, s.ledger
		r.add(result)
	}
	r.Whole, r.Seconds = true, time.Since(began).Seconds()
	return r, nil
}

// facts asks Redis and the server for their versions.
func (o *Options) facts(ctx context.Context, r *Report) error {
	if o.Server != "" {
		s, err := OpenServer(ctx, o.Server, o.Token)
		if err != nil {
			return fmt.Errorf("the server: %w", err)
		}
		r.Server = serverVersion(ctx, s)
		return s.Close()
	}
	if !slices.Contains(o.Ledgers, "redis") {
		return nil
	}
	p, err := Redis(o.Redis).make()
	if err != nil {
		return err
	}
	ledger, err := p.open()
	if err != nil {
		return err
	}
	_, err = ledger.Adopt(ctx)
	if health := ledger.(*redisledger.Ledger).Health(); err == nil {
		r.Redis = health.Version
		for _, w := range health.Warnings {
			fmt.Fprintln(o.Progress, "redis:", w)
		}
	}
	return errors.Join(err, ledger.Close(), p.remove())
}

// steps are everything that is to be measured, in order.
func (o *Options) steps() []step {
	if o.Server != "" {
		return o.stepsOn("http", "server", func(ctx context.Context) (System, error) { return OpenServer(ctx, o.Server, o.Token) })
	}
	known := map[string]Ledger{"memory": Memory(), "disk": Disk(o.Dir), "redis": Redis(o.Redis)}
	var all []step
	for _, name := range Ledgers {
		if !slices.Contains(o.Ledgers, name) {
			continue
		}
		ledger := known[name]
		if o.HTTP {
			all = append(all, o.stepsOn("http", name, ledger.HTTP)...)
		} else {
			all = append(all, o.stepsOn("embedded", name, ledger.Embedded)...)
		}
		all = append(all, o.stepsInside(ledger)...)
	}
	return all
}

func (o *Options) load(tasks int) Load {
	return Load{
		Tasks: tasks, Callers: o.Callers, Batch: o.Batch, Payload: o.Payload,
		Duration: o.Duration, Rest: o.rest, Patience: patience,
	}
}

// sizes are how many tasks a workload has.
func (o *Options) sizes(def ...int) []int {
	if o.Tasks != 0 {
		return []int{o.Tasks}
	}
	return def
}

// stepsOn are the workloads that drive a System, each on a new one.
func (o *Options) stepsOn(system, ledger string, open func(context.Context) (System, error)) (all []step) {
	add := func(what string, l Load, workload func(context.Context, System, Load) (Result, error)) {
		all = append(all, step{what, ledger, system, func(ctx context.Context) (Result, error) {
			s, err := open(ctx)
			if err != nil {
				return Result{}, err
			}
			return workload(ctx, s, l)
		}})
	}
	for _, w := range Workloads {
		if !slices.Contains(o.Workloads, w) {
			continue
		}
		switch w {
		case "single":
			for _, n := range o.sizes(100_000) {
				add(fmt.Sprintf("%d tasks singly, by %d callers", n, o.Callers), o.load(n), Single)
			}
		case "batch":
			for _, n := range o.sizes(500_000) {
				add(fmt.Sprintf("%d tasks, %d a request", n, o.Batch), o.load(n), Batch)
			}
		case "burst":
			for _, n := range o.sizes(100_000, 1_000_000) {
				add(fmt.Sprintf("%d tasks due at one instant", n), o.load(n), Burst)
			}
		case "steady":
			for _, rate := range o.Rates {
				l := o.load(0)
				l.Rate = rate
				add(fmt.Sprintf("%d tasks due in each second for %v", rate, o.Duration), l, Steady)
			}
		}
	}
	return all
}

// stepsInside are the workloads that look into this process.
func (o *Options) stepsInside(ledger Ledger) (all []step) {
	add := func(what string, tasks int, workload func(context.Context, Ledger, Load) (Result, error)) {
		all = append(all, step{what, ledger.Name, "embedded", func(ctx context.Context) (Result, error) {
			return workload(ctx, ledger, o.load(tasks))
		}})
	}
	for _, n := range o.sizes(1_000_000) {
		if slices.Contains(o.Workloads, "memory") {
			add(fmt.Sprintf("%d tasks wait", n), n, memory)
		}
		if slices.Contains(o.Workloads, "restart") && ledger.Name != "memory" {
			add(fmt.Sprintf("a restart with %d tasks", n), n, restart)
		}
	}
	return all
}
