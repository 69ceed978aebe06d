package httpapi

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/internal/timespan"
	"github.com/lapsehq/lapse/tasks"
)

// Forecast reports how many tasks fall due when.
type Forecast struct {
	Reach
	From       string   `json:"from" format:"date-time" doc:"Where the first step begins: now."`
	Step       duration `json:"step" doc:"Length of each step."`
	Counts     []int64  `json:"counts" nullable:"false" doc:"By step: tasks whose next attempt falls into it."`
	Ready      int64    `json:"ready" doc:"Tasks that are due and wait for their receiver."`
	Delivering int64    `json:"delivering" doc:"Tasks that are being delivered."`
	Later      int64    `json:"later" doc:"Tasks whose next attempt is after the last step."`
	Held       int64    `json:"held" doc:"Tasks whose countdown is held: they do not fall due."`
	Complete   bool     `json:"complete" doc:"false while a node that was asked replays, or if one is missing: what it has or has not read yet is not counted."`

	Judgement Judgement `json:"judgement" doc:"Whether all of it will be delivered in time."`
}

// Judgement says whether what falls due will be delivered in time.
type Judgement struct {
	Text      string   `json:"text" doc:"All of it in one sentence, with times in UTC. Without a rate it says so."`
	Rate      float64  `json:"rate" doc:"Tasks a second in the best minute that is known of the last 25 hours, of the topic if one was asked for. 0: no rate has been shown yet, and nothing is judged; or the token is for some topics, and none of them was asked for."`
	RateAt    string   `json:"rate_at,omitempty" format:"date-time" doc:"When that minute began."`
	Limit     bool     `json:"limit" doc:"About as much was delivered while most tasks had waited for a minute or longer, so receivers gave no more. false: they may be able to do more than that rate."`
	Precision duration `json:"precision" doc:"Waits that are not longer are not seen."`
	Peaks     []Peak   `json:"peaks" nullable:"false" doc:"Times in which more falls due than is delivered, so that tasks wait; the earliest first, at most the 10 that wait longest."`
	More      int      `json:"more" doc:"How many further peaks wait."`
}

// Peak is a time in which more falls due than is delivered.
type Peak struct {
	At        string   `json:"at" format:"date-time" doc:"When most of its tasks fall due."`
	Tasks     int64    `json:"tasks" doc:"That fall due until it is through."`
	ThroughAt string   `json:"through_at" format:"date-time" doc:"When all of them will be delivered."`
	WaitP99   duration `json:"wait_p99" doc:"99 of 100 wait no longer."`
	Spread    duration `json:"spread,omitempty" doc:"With a spread of the topic that is as long, none would wait. Left out if no spread is: the peak begins with tasks that wait already, or a day is too short."`
	Beyond    bool     `json:"beyond" doc:"It lasts beyond the last step. What falls due after that is not in it: through_at is the earliest time."`
	Text      string   `json:"text" doc:"What becomes of it, without when."`
}

func wireJudgement(j *tasks.Foresight) Judgement {
	w := Judgement{Text: j.Text, Rate: j.Rate.PerSecond(), RateAt: formatInstant(j.Rate.At), Limit: j.Rate.Limit, Precision: duration(j.Precision), Peaks: []Peak{}, More: j.More}
	for i := range j.Peaks {
		p := &j.Peaks[i]
		w.Peaks = append(w.Peaks, Peak{formatInstant(p.At), p.Tasks, formatInstant(p.Through), duration(p.Wait), duration(p.Spread), p.Beyond, p.Text()})
	}
	return w
}

type forecastInput struct {
	ScopeInput
	Topic  string `query:"topic" maxLength:"128" doc:"Only tasks of this topic."`
	Window string `query:"window" maxLength:"64" doc:"How far to look ahead, 1s to 3660d. Default 1h."`
	Step   string `query:"step" maxLength:"64" doc:"Length of a step; 1 to 1,000 make up the window. Default: a 60th of the window."`
}

const (
	usualWindow = time.Hour
	usualSteps  = 60
)

// forecast answers GET /v1/forecast.
func (s *Server) forecast(ctx context.Context, in *forecastInput) (*reply[Forecast], error) {
	o := tasks.Outlook{Topic: in.Topic, Window: usualWindow}
	var faults []tasks.FieldError
	read := func(field, text string, to *time.Duration) {
		d, err := parseSpan(text)
		if err != nil {
			faults = append(faults, tasks.FieldError{Field: field, Problem: err.Error()})
		}
		*to = d
	}
	if in.Window != "" {
		read("window", in.Window, &o.Window)
	}
	o.Step = o.Window / usualSteps
	if in.Step != "" {
		read("step", in.Step, &o.Step)
	}
	if faults != nil {
		return nil, invalidFields(faults)
	}
	f, reach, err := s.forecastOf(ctx, in, o)
	if err != nil {
		return nil, err
	}
	return &reply[Forecast]{Forecast{
		Reach: reach,
		From:  formatInstant(f.From), Step: duration(f.Step), Counts: f.Counts,
		Ready: f.Ready, Delivering: f.Delivering, Later: f.Later, Held: f.Held, Complete: f.Complete,
		Judgement: wireJudgement(&f.Judgement),
	}}, nil
}

func (s *Server) forecastOf(ctx context.Context, in *forecastInput, o tasks.Outlook) (tasks.Forecast, Reach, error) {
	if in.ofNode() {
		f, err := s.scheduler.Forecast(ctx, o)
		return f, s.ownReach(), err
	}
	f, reach, err := s.scheduler.FleetForecast(ctx, o)
	return f, wireReach(&reach), err
}

// parseSpan reads a duration in a query, in either of the two forms that bodies have.
func parseSpan(text string) (time.Duration, error) {
	d, ok := timespan.Parse(text)
	if len(text) > 0 && isDigit(text[len(text)-1]) {
		d, ok = timespan.ParseMillis(text)
	}
	if !ok {
		return 0, errDuration
	}
	return d, nil
}
