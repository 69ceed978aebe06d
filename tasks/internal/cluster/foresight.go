package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/past"
	"github.com/lapsehq/lapse/tasks/task"
)

const (
	// judgeAgain is for how long a rate that was shown is used again, and the judgement of the day
	// to come.
	judgeAgain = time.Minute
	// judgedFor is how long the last judgement of that day stands if a further one fails.
	judgedFor = 5 * time.Minute
)

// FleetForecast is tasks.Admin.FleetForecast.
func (s *Cluster) FleetForecast(ctx context.Context, o task.Outlook) (task.Forecast, task.Reach, error) {
	var reach task.Reach
	f, err := s.judged(ctx, o, true, func(o task.Outlook) (f task.Forecast, err error) {
		f, reach, err = s.fleetForecast(ctx, o)
		return f, err
	})
	return f, reach, err
}

// NodeForecast is tasks.Admin.Forecast.
func (s *Cluster) NodeForecast(ctx context.Context, o task.Outlook) (task.Forecast, error) {
	return s.judged(ctx, o, false, func(o task.Outlook) (task.Forecast, error) {
		return s.engine.Forecast(ctx, o, s.engine.Now())
	})
}

// judged makes a forecast in finer steps than were asked for, and judges it. Errors: those of the
// forecast; why ctx has ended.
func (s *Cluster) judged(ctx context.Context, o task.Outlook, fleet bool, forecast func(task.Outlook) (task.Forecast, error)) (task.Forecast, error) {
	if err := o.Faults().Err(); err != nil {
		return task.Forecast{}, err
	}
	finer, each := o.Fine()
	f, err := forecast(finer)
	if err != nil {
		return f, err
	}
	rate, err := s.shownRate(ctx, o.Topic, fleet)
	if err != nil {
		return task.Forecast{}, err
	}
	f.Judgement = f.Judge(rate)
	f.Coarse(each)
	return f, nil
}

// shownRate returns what receivers have shown of a topic, or of all that the caller may see: of all
// nodes, as the ledger and the nodes that answer know, or as this node does. It reads the past
// about once a minute. Errors: why ctx has ended.
func (s *Cluster) shownRate(ctx context.Context, topic string, fleet bool) (task.ShownRate, error) {
	if topic == "" && len(task.PatternsOf(ctx)) > 0 {
		return task.ShownRate{}, nil // the past does not tell of some topics together
	}
	key := "node " + topic
	if fleet {
		key = "fleet " + topic
	}
	rate, err := s.Figures.shown.do(ctx, key, func() any { return s.readShown(topic, fleet) })
	if err != nil {
		return task.ShownRate{}, err
	}
	return rate.(shownRate).ShownRate, nil
}

type shownRate struct{ task.ShownRate }

func (shownRate) usedFor() time.Duration { return judgeAgain }

// readShown reads the past for it, for as long as it takes to gather figures twice at most. What it
// has not read by then does not count.
func (s *Cluster) readShown(topic string, fleet bool) shownRate {
	ctx, cancel := context.WithTimeout(s.engine.Life.Context, 2*GatherWithin)
	defer cancel()
	now := s.engine.Config.Clock()
	q := task.PastQuery{Topic: topic, Step: time.Minute, From: now.Add(-task.ShownWithin).Truncate(time.Minute), To: now}
	var parts []past.Part
	if fleet {
		parts, _, _ = s.pastParts(ctx, q)
	}
	_, sum := s.liveOf(q, parts)
	if fleet || s.Fleet == nil {
		sum.AddKept(s.Past.Kept(ctx, q)) // what is in memory remains
	}
	return shownRate{task.ShownBy(sum.Points())}
}

// ahead has the judgement of the day to come, for diagnoses.
type ahead struct {
	mu    sync.Mutex // guards everything below
	at    time.Time  // when it was asked for last
	made  time.Time  // when it was made; zero: never
	peaks []task.Peak
}

// Ahead returns the peaks of the next day that will wait, if receivers have shown that they give no
// more. Waits of up to 90 s are not seen. It waits for nothing: it has the peaks judged anew once a
// minute, in the background, and returns what is known by then.
func (s *Cluster) Ahead(now time.Time) []task.Peak {
	a := &s.Figures.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.at).Abs() >= judgeAgain && s.engine.Life.Go(s.lookAhead) {
		a.at = now
	}
	if now.Sub(a.made).Abs() >= judgedFor {
		return nil
	}
	return a.peaks
}

func (s *Cluster) lookAhead() {
	day := task.Outlook{Window: 24 * time.Hour, Step: time.Hour}
	f, _, err := s.FleetForecast(s.engine.Life.Context, day)
	if err != nil {
		return
	}
	var peaks []task.Peak
	if f.Judgement.Rate.Limit {
		peaks = f.Judgement.Peaks
	}
	a := &s.Figures.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made, a.peaks = s.engine.Config.Clock(), peaks
}
