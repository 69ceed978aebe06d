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
}

// A reading is where the clocks stood.
type reading struct {
	lapse, redis, load time.Duration
	objects            uint64
	at                 time.Time
}

// Least has f do a path some times, and returns what the cheapest round has cost for each of its n
// tasks: what disturbs a round makes it dearer, never cheaper.
func (m *Meter) Least(path string, rounds int, f func(round int) (n int, err error)) (least Sample, err error) {
	for round := range rounds {
		began, err := m.read()
		if err != nil {
			return Sample{}, err
		}
		n, err := f(round)
		if err != nil {
			return Sample{}, fmt.Errorf("%s: %w", path, err)
		}
		s, err := m.since(began, path, n)
		if err != nil {
			return Sample{}, err
		}
		if round == 0 || s.Cost < least.Cost {
			least = s
		}
	}
	return least, nil
}

// read reads the clocks. Objects are counted first at the begin of a round, and last at its end, so
// that what counting costs is in no round.
func (m *Meter) read() (r reading, err error) {
	if r.objects, err = m.Objects(); err != nil {
		return r, err
	}
	err = m.clocks(&r)
	return r, err
}

func (m *Meter) clocks(r *reading) (err error) {
	r.at = time.Now()
	for _, c := range []struct {
		process int
		into    *time.Duration
	}{{m.Lapse, &r.lapse}, {m.Redis, &r.redis}, {m.Load, &r.load}} {
		if c.process == 0 {
			continue
		}
		if *c.into, err = ProcessorTime(c.process); err != nil {
			return fmt.Errorf("the processor time of process %d: %w", c.process, err)
		}
	}
	return nil
}

// since returns what n tasks have cost since a reading.
func (m *Meter) since(r reading, path string, n int) (Sample, error) {
	var now reading
	if err := m.clocks(&now); err != nil {
		return Sample{}, err
	}
	objects, err := m.Objects()
	each := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(n) }
	return Sample{
		Path: path, Cost: each(now.lapse - r.lapse), Redis: each(now.redis - r.redis), Load: each(now.load - r.load),
		Rate: float64(n) / now.at.Sub(r.at).Seconds(), Allocs: float64(objects-r.objects) / float64(n),
	}, err
}
