// Package measure has what the driver and the harness of pairs share: clocks of processes, and the
// figures of a path. It knows nothing of Lapse. What can fail: a process that has ended has no
// clock.
package measure

import (
	"fmt"
	"time"
)

// A Sample is what a path has cost in one run.
type Sample struct {
	Path string `json:"path"`
	// Cost is judged: microseconds of processor time of the process that has Lapse in it, a task.
	// Where a path measures memory, it is bytes a task.
	Cost float64 `json:"cost"`
	// Redis and Load are microseconds of processor time of these processes, a task.
	Redis float64 `json:"redis"`
	Load  float64 `json:"load"`
	// Rate is tasks a second.
	Rate float64 `json:"rate"`
	// Allocs is how many objects were made on the heap, a task.
	Allocs float64 `json:"allocs"`
}

// A Meter reads the clocks of the processes of a run. Lapse is the number of the process with Lapse
// in it. Redis and Load are 0 where there is no such process, or it is the same.
type Meter struct {
	Lapse, Redis, Load int
	Objects            func() (uint64, error) // objects that Lapse has made on the heap so far
	// Yield lets the other side of a pair do its round, and returns when that has ended.
	Yield func() error
}

// A Path is what is measured, in some rounds of n tasks.
type Path struct {
	Name   string
	Rounds int
	// Prepare is called before each round, and costs nothing. It may be nil.
	Prepare func() error
	// Round does one, and returns how many tasks it had.
	Round func(round int) (n int, err error)
}

// Measure returns what the tasks of a path have cost. The other side does a round before each: so
// what disturbs the machine for a while disturbs both. What Lapse and Redis do meanwhile, such as
// to collect the garbage of a round, is part of the cost.
func (m *Meter) Measure(p Path) (Sample, error) {
	s, err := m.rounds(p)
	if err != nil {
		return Sample{}, fmt.Errorf("%s: %w", p.Name, err)
	}
	return s, nil
}

func (m *Meter) rounds(p Path) (Sample, error) {
	var sum reading
	var rested reading // where the last round ended
	tasks := 0
	for round := range p.Rounds {
		if err := m.Yield(); err != nil {
			return Sample{}, err
		}
		if round > 0 {
			now, err := m.clocks()
			if err != nil {
				return Sample{}, err
			}
			sum.lapse += now.lapse - rested.lapse
			sum.redis += now.redis - rested.redis
		}
		if p.Prepare != nil {
			if err := p.Prepare(); err != nil {
				return Sample{}, err
			}
		}
		n, err := m.round(round, p.Round, &sum, &rested)
		if err != nil {
			return Sample{}, err
		}
		tasks += n
	}
	each := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(tasks) }
	return Sample{
		Path: p.Name, Cost: each(sum.lapse), Redis: each(sum.redis), Load: each(sum.load),
		Rate: float64(tasks) / sum.wall.Seconds(), Allocs: float64(sum.objects) / float64(tasks),
	}, nil
}

// round does one round, and adds what it has cost to sum. Objects are counted before the clocks are
// read, and again after that, so that what counting costs is in no round.
func (m *Meter) round(round int, do func(round int) (int, error), sum, ended *reading) (n int, err error) {
	objects, err := m.Objects()
	if err != nil {
		return 0, err
	}
	began, err := m.clocks()
	if err != nil {
		return 0, err
	}
	if n, err = do(round); err != nil {
		return 0, err
	}
	now, err := m.clocks()
	if err != nil {
		return 0, err
	}
	made, err := m.Objects()
	if err != nil {
		return 0, err
	}
	sum.lapse += now.lapse - began.lapse
	sum.redis += now.redis - began.redis
	sum.load += now.load - began.load
	sum.wall += now.at.Sub(began.at)
	sum.objects += made - objects
	*ended, err = m.clocks()
	return n, err
}

// A reading is where the clocks stood, or the sum of differences.
type reading struct {
	lapse, redis, load time.Duration
	wall               time.Duration
	objects            uint64
	at                 time.Time
}

func (m *Meter) clocks() (r reading, err error) {
	r.at = time.Now()
	for _, c := range []struct {
		process int
		into    *time.Duration
	}{{m.Lapse, &r.lapse}, {m.Redis, &r.redis}, {m.Load, &r.load}} {
		if c.process == 0 {
			continue
		}
		if *c.into, err = ProcessorTime(c.process); err != nil {
			return r, fmt.Errorf("the processor time of process %d: %w", c.process, err)
		}
	}
	return r, nil
}
