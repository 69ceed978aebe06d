package past

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Part is what one process has in memory of a topic, or of all topics together. A time at which
// the process does not know what has happened in the topic is missing.
type Part struct {
	Name   string            `json:"name,omitzero"`
	Points []task.PastMinute `json:"points,omitzero"`
}

// Live returns what this process has in memory, the minute or hour under way included.
func (p *Past) Live(topic string, step time.Duration) Part {
	now := p.Clock().UTC()
	if topic == "" && step == time.Minute {
		return Part{Name: p.name, Points: p.Total().Minutes}
	}
	part := Part{Name: p.name}
	p.look(topic, func(total *task.History, counts *figures, known bool) {
		current := task.PastMinute{} // what was not entered yet
		switch {
		case topic == "":
			from := p.began.Truncate(time.Minute)
			for i := range total.Minutes {
				if m := &total.Minutes[i]; !m.At.Before(from) {
					current.Add(m)
				}
			}
		case known:
			earlier := p.before[topic]
			current = counts.since(&earlier)
		}
		current.At = now.Truncate(step)
		all := p.minutes
		if step == time.Hour {
			all = p.hours
		}
		for i := range all {
			if m, known := all[i].of(topic); known {
				part.Points = append(part.Points, m)
			}
		}
		if n := len(part.Points); n > 0 && part.Points[n-1].At.Equal(current.At) {
			part.Points[n-1].Add(&current)
		} else {
			part.Points = append(part.Points, current)
		}
	})
	return part
}

// look calls f, with p.mu locked, with the figures of a topic, or the minutes of all. None of them
// was entered since, unless that happened three times.
func (p *Past) look(topic string, f func(total *task.History, counts *figures, known bool)) {
	var total task.History
	var counts figures
	known := false
	for tries := 1; ; tries++ {
		p.mu.Lock()
		began := p.began
		p.mu.Unlock()
		var c task.Counts
		if topic == "" {
			total = p.Total()
		} else if c, known = p.Topic(topic); known {
			counts = figuresOf(&c)
		}
		p.mu.Lock()
		same := p.began.Equal(began) || tries == 3
		if same {
			f(&total, &counts, known)
		}
		p.mu.Unlock()
		if same {
			return
		}
	}
}

// of returns what a span has of a topic; false if that is not known.
func (s *span) of(topic string) (m task.PastMinute, known bool) {
	m = s.total
	if topic != "" {
		m = task.PastMinute{}
		t := s.topics[topic]
		if t == nil && s.cut {
			return m, false
		}
		if t != nil {
			m = *t
		}
	}
	m.At = s.at.UTC()
	return m, true
}

// A Sum adds up what several processes have counted.
type Sum struct {
	query  task.PastQuery
	counts map[int64]map[string]task.PastMinute // by Unix time and name
}

// NewSum returns one of nothing.
func NewSum(q task.PastQuery) *Sum {
	return &Sum{query: q, counts: make(map[int64]map[string]task.PastMinute)}
}

// enter enters a point, unless there is one of that process and time. A minute of a clock that is
// far ahead is left out: the query ends before it.
func (s *Sum) enter(name string, m *task.PastMinute) {
	if m.At.Before(s.query.From) || !m.At.Before(s.query.To) {
		return
	}
	of := s.counts[m.At.Unix()]
	if of == nil {
		of = make(map[string]task.PastMinute, 4)
		s.counts[m.At.Unix()] = of
	}
	if _, known := of[name]; !known {
		of[name] = *m
	}
}

// AddLive adds what a process has in memory. It comes before AddKept.
func (s *Sum) AddLive(p *Part) {
	for i := range p.Points {
		s.enter(p.Name, &p.Points[i])
	}
}

// Kept is what the ledger keeps of the time of a query. Callers that share it do not change it.
type Kept struct {
	points []keptPoint
	Marks  []task.Mark
	Err    error // of recovery.Archive; then there is a part of it
}

type keptPoint struct {
	name string
	task.PastMinute
}

// Kept reads what the ledger keeps of the time of a query, and its marks.
func (p *Past) Kept(ctx context.Context, q task.PastQuery) *Kept {
	k := &Kept{}
	add := func(r recovery.Row) bool {
		if m, cut, err := decode(r.Value); err == nil && (q.Topic == "" || r.Part != "" || !cut) {
			if m.At = r.At; r.Part != q.Topic {
				m = task.PastMinute{At: r.At} // nothing has happened in the topic
			}
			k.points = append(k.points, keptPoint{r.Name, m})
		}
		return true
	}
	if p.Archive != nil {
		series := recovery.MinuteRows
		if q.Step == time.Hour {
			series = recovery.HourRows
		}
		k.Err = p.Archive.Rows(ctx, series, q.Topic, q.From, q.To, add)
		if k.Err == nil && q.Topic != "" {
			k.Err = p.Archive.Rows(ctx, series, "", q.From, q.To, add)
		}
	}
	if k.Err == nil {
		k.Marks, k.Err = p.Marks(ctx, q.From, q.To, q.Topic)
	}
	return k
}

// AddKept adds what the ledger keeps.
func (s *Sum) AddKept(k *Kept) {
	for i := range k.points {
		s.enter(k.points[i].name, &k.points[i].PastMinute)
	}
}

// Points returns a point for each step from the first on of which something is known. Nodes is how
// many nodes it is of, 0 where nothing is known.
func (s *Sum) Points() (points []task.PastMinute) {
	for at := s.query.From.UTC().Truncate(s.query.Step); at.Before(s.query.To); at = at.Add(s.query.Step) {
		sum := task.PastMinute{At: at}
		nodes := make(map[string]bool, 4)
		for name, m := range s.counts[at.Unix()] {
			sum.Add(&m)
			nodes[nodeOf(name)] = true
		}
		if sum.Nodes = len(nodes); sum.Nodes > 0 || len(points) > 0 {
			points = append(points, sum)
		}
	}
	return points
}
