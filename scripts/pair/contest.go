package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

// A contest is the runs of both sides.
type contest struct {
	sides     [2]side
	dir       string
	chosen    *regexp.Regexp
	pairs     int
	limit     float64
	scenarios []scenario
	order     []string // of the paths in found
	found     map[string]*path
}

// A path has the samples of one path, pair by pair.
type path struct {
	samples [2][]measure.Sample
}

// ratios returns the ratio of the judged cost in each pair.
func (p *path) ratios() []float64 {
	r := make([]float64, min(len(p.samples[new]), len(p.samples[old])))
	for i := range r {
		r[i] = p.samples[new][i].Cost / p.samples[old][i].Cost
	}
	return r
}

// slower reports whether a path costs more than the limit, and more than half of that for sure. Two
// builds of one commit differ by 10 % now and then, with an interval that begins just above 1.
func (p *path) slower(limit float64) bool {
	low, _ := interval(p.ratios())
	return median(p.ratios()) > limit && low > 1+(limit-1)/2
}

// A scenario measures some paths in one life of a process of Lapse.
type scenario struct {
	name  string
	paths []string
	run   func(ctx context.Context, l life) ([]measure.Sample, error)
}

// A life is one run of a scenario by one side.
type life struct {
	side
	dir    string // of its own
	chosen *regexp.Regexp
	yield  func() error // lets the other side run, up to its next call of this
}

// all are the scenarios of Lapse.
var all = []scenario{
	{"memory", []string{"pending/memory", "single/memory", "lone/memory", "batch/memory", "list/memory", "export/memory", "burst/memory"}, embedded("memory")},
	{"disk", []string{"single/disk", "lone/disk", "batch/disk", "list/disk", "export/disk", "restart/disk", "burst/disk"}, embedded("disk")},
	{"redis", []string{"single/redis", "lone/redis", "batch/redis", "export/redis", "restart/redis", "burst/redis"}, embedded("redis")},
	{"http", []string{"single/http", "batch/http", "pull/http", "webhook/http"}, overHTTP},
	{"port", []string{"set/p1", "get/p1", "set/p16", "get/p16", "events/port"}, overPort},
}

// again is how often a path is measured once more that looks slower. Of thirty paths of one commit
// each noisy one looks slower by accident in one of a hundred runs.
const again = 2

// run measures all chosen paths, and again those that look slower.
func (c *contest) run(ctx context.Context) error {
	for _, s := range c.scenarios {
		if err := c.play(ctx, s, c.chosen); err != nil {
			return err
		}
	}
	if len(c.found) == 0 {
		return fmt.Errorf("-paths: %q names no path that both have", c.chosen)
	}
	for range again {
		for _, s := range c.scenarios {
			if err := c.playSlower(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// playSlower measures again what looks slower.
func (c *contest) playSlower(ctx context.Context, s scenario) error {
	var names []string
	for _, name := range s.paths {
		// A path that is a little slower than it should be might be much slower.
		if p := c.found[name]; p != nil && median(p.ratios()) > 1+(c.limit-1)/2 {
			names = append(names, "^"+regexp.QuoteMeta(name)+"$")
		}
	}
	if len(names) == 0 {
		return nil
	}
	return c.play(ctx, s, regexp.MustCompile(strings.Join(names, "|")))
}

// play runs a scenario in pairs: both sides live at the same time, and do their rounds in turn. The
// side that begins changes from pair to pair. What the other commit does not run to its end is left
// out.
func (c *contest) play(ctx context.Context, s scenario, chosen *regexp.Regexp) error {
	if !slices.ContainsFunc(s.paths, chosen.MatchString) {
		return nil
	}
	began := time.Now()
	for i := range c.pairs {
		var got [2][]measure.Sample
		var errs [2]error
		baton := newBaton(i % 2)
		var group sync.WaitGroup
		both, stop := context.WithCancel(ctx)
		for which := range c.sides {
			group.Go(func() {
				defer baton.end(which)
				baton.await(which)
				l := life{side: c.sides[which], chosen: chosen, yield: func() error { baton.yield(which); return context.Cause(both) }}
				if got[which], errs[which] = c.once(both, s, l); errs[new] != nil && which == new {
					stop() // what the other side costs does not matter any more
				}
			})
		}
		group.Wait()
		stop()
		if err := cmp.Or(errs[new], context.Cause(ctx)); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := errs[old]; err != nil {
			fmt.Fprintf(os.Stderr, "%s: %s has %d of %d paths: %v\n", s.name, c.sides[old].name, len(got[old]), len(got[new]), err)
		}
		c.add(got)
		if len(got[old]) == 0 {
			break
		}
	}
	fmt.Fprintf(os.Stderr, "%s: %.0f s\n", s.name, time.Since(began).Seconds())
	return nil
}

// longest is how long a side may take from one yield to the next.
const longest = 2 * time.Minute

// once runs a scenario in a directory of its own.
func (c *contest) once(ctx context.Context, s scenario, l life) (samples []measure.Sample, err error) {
	if l.dir, err = os.MkdirTemp(c.dir, "run-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(l.dir)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alarm := time.AfterFunc(longest, func() { cancel(fmt.Errorf("a round has taken more than %v", longest)) })
	defer alarm.Stop()
	others := l.yield
	l.yield = func() error {
		alarm.Stop()
		defer alarm.Reset(longest)
		return others()
	}
	return s.run(ctx, l)
}

// add takes the samples of a pair. A path that only one side has is left out.
func (c *contest) add(got [2][]measure.Sample) {
	for _, sample := range got[new] {
		i := slices.IndexFunc(got[old], func(o measure.Sample) bool { return o.Path == sample.Path })
		if i < 0 {
			continue
		}
		p := c.found[sample.Path]
		if p == nil {
			p = &path{}
			c.found[sample.Path] = p
			c.order = append(c.order, sample.Path)
		}
		p.samples[new] = append(p.samples[new], sample)
		p.samples[old] = append(p.samples[old], got[old][i])
	}
}

// write writes all samples.
func (c *contest) write(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	// Error returns what Write has.
	_ = w.Write([]string{"path", "pair", "commit", "cost", "redis", "load", "rate", "allocs"})
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	for _, name := range c.order {
		p := c.found[name]
		for i := range p.ratios() {
			for which := range c.sides {
				s := p.samples[which][i]
				_ = w.Write([]string{name, strconv.Itoa(i + 1), c.sides[which].name, number(s.Cost), number(s.Redis), number(s.Load), number(s.Rate), number(s.Allocs)})
			}
		}
	}
	w.Flush()
	return w.Error()
}
