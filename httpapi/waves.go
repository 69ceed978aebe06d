package httpapi

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Wave reports what became of the tasks that were due in a span.
type Wave struct {
	Reach
	From     string      `json:"from" format:"date-time" doc:"Where the wave begins, a whole minute."`
	To       string      `json:"to" format:"date-time" doc:"Before which it ends, a whole minute."`
	At       string      `json:"at" format:"date-time" doc:"When this was counted."`
	Since    string      `json:"since" format:"date-time" doc:"From when on what has ended is known: from the first start of the nodes that answer, as far as the ledger knows it, a day ago at the earliest. While the ledger cannot be read it is the latest of their present starts. What ended before is missing."`
	Total    WaveCounts  `json:"total" doc:"All topics together."`
	Topics   []WaveTopic `json:"topics" nullable:"false" doc:"At most 100, those with the most tasks first."`
	Others   WaveCounts  `json:"others" doc:"Further topics together."`
	Beyond   int         `json:"beyond" doc:"How many further topics there are, at least."`
	Complete bool        `json:"complete" doc:"false while a node that was asked replays, or if one is missing: what it has is not counted; or if what the ledger keeps was not read. false as well if some topics were asked for, and ends that were counted for others may be of these."`
}

// WaveTopic is the part of a wave that is of one topic.
type WaveTopic struct {
	Name string `json:"name"`
	WaveCounts
}

// WaveCounts count the tasks of a wave by their fate.
type WaveCounts struct {
	Due        int64   `json:"due" doc:"All that were due, or are: the sum of the following."`
	Waiting    int64   `json:"waiting" doc:"For their time, or for a receiver; no attempt has failed."`
	Delivering int64   `json:"delivering" doc:"At whatever attempt."`
	Retrying   int64   `json:"retrying" doc:"An attempt has failed, and another one follows."`
	Held       int64   `json:"held"`
	Delivered  int64   `json:"delivered"`
	Dead       int64   `json:"dead" doc:"Died, and neither requeued nor deleted by a caller."`
	Cancelled  int64   `json:"cancelled" doc:"Or deleted once they were dead."`
	Skipped    int64   `json:"skipped"`
	Progress   float64 `json:"progress" doc:"The part of all that has ended, 0 to 1; 1 if there are none."`
	Rate       float64 `json:"rate" doc:"Tasks a second that were delivered in the last 5 minutes, or since the first of these, of whatever wave."`
	OldestAt   string  `json:"oldest_at,omitempty" format:"date-time" doc:"The earliest deadline of those that have not ended and are not held. Left out if there is none."`
	ThroughAt  string  `json:"through_at,omitempty" format:"date-time" doc:"When the last one has ended, within a period of the sweep. Left out while one has not, and if none did."`
	EndsAt     string  `json:"ends_at,omitempty" format:"date-time" doc:"When the last one is expected to end at that rate; held ones do not count. Left out if there is none, or no rate."`
}

type wavesInput struct {
	ScopeInput
	From  string `query:"from" required:"true" maxLength:"64" format:"date-time" doc:"The deadline of the first tasks; rounded down to a minute."`
	To    string `query:"to" maxLength:"64" format:"date-time" doc:"The deadline before which the wave ends, at most 25 hours after from; rounded up to a minute. Default: a minute after from."`
	Topic string `query:"topic" maxLength:"128" doc:"Only tasks of this topic."`
}

// waves answers GET /v1/waves.
func (s *Server) waves(ctx context.Context, in *wavesInput) (*reply[Wave], error) {
	q := tasks.WaveQuery{Topic: in.Topic}
	if err := instants([]bound{{"from", in.From, &q.From}, {"to", in.To, &q.To}}); err != nil {
		return nil, err
	}
	if in.To == "" {
		q.To = q.From.Truncate(time.Minute).Add(time.Minute)
	}
	w, reach, err := s.wavesOf(ctx, in, q)
	if err != nil {
		return nil, err
	}
	a := Wave{
		Reach: reach, From: formatInstant(w.From), To: formatInstant(w.To), At: formatInstant(w.At), Since: formatInstant(w.Since),
		Topics: make([]WaveTopic, 0, len(w.Topics)), Others: wireWave(&w, &w.Others), Beyond: w.Beyond, Complete: w.Complete,
	}
	total := w.Total()
	a.Total = wireWave(&w, &total)
	for i := range w.Topics {
		a.Topics = append(a.Topics, WaveTopic{w.Topics[i].Name, wireWave(&w, &w.Topics[i].WaveCounts)})
	}
	return &reply[Wave]{a}, nil
}

func (s *Server) wavesOf(ctx context.Context, in *wavesInput, q tasks.WaveQuery) (tasks.Wave, Reach, error) {
	if in.ofNode() {
		w, err := s.scheduler.Waves(ctx, q)
		return w, s.ownReach(), err
	}
	w, reach, err := s.scheduler.FleetWaves(ctx, q)
	return w, wireReach(&reach), err
}

func wireWave(w *tasks.Wave, c *tasks.WaveCounts) WaveCounts {
	o := w.Outlook(c)
	return WaveCounts{
		Due: o.Due, Waiting: c.Waiting, Delivering: c.Delivering, Retrying: c.Retrying, Held: c.Held,
		Delivered: c.Delivered, Dead: c.Dead, Cancelled: c.Cancelled, Skipped: c.Skipped,
		Progress: o.Progress, Rate: c.Rate(), OldestAt: formatInstant(c.Oldest), ThroughAt: formatInstant(o.Through), EndsAt: formatInstant(o.Ends),
	}
}
