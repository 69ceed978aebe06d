package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A forecast is what counting a list gives.
func TestForecastAgainstList(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		for i := range 400 {
			r.Must(tasks.Request{ID: fmt.Sprint("t", i), Topic: []string{"x", "y", "z"}[rng.IntN(3)], Delay: time.Duration(rng.IntN(60_000)) * time.Millisecond})
		}
		rig.Pass(20 * time.Second)
		_, err := r.Reserve(t.Context(), "x", 10, 0, time.Hour)
		rig.Want(t, "Reserve", err, nil)
		for _, topic := range []string{"", "x", "none"} {
			for _, o := range []tasks.Outlook{
				{Window: time.Hour, Step: time.Minute},
				{Window: 30 * time.Second, Step: time.Second},
				{Window: 10 * time.Second, Step: 3 * time.Second},
				{Window: time.Second, Step: time.Millisecond},
				{Window: time.Second, Step: time.Second},
				{Window: tasks.MaxAhead, Step: tasks.MaxAhead},
				{Window: 1999 * time.Millisecond, Step: 1999 * time.Microsecond},
			} {
				o.Topic = topic
				got, err := r.Admin().Forecast(t.Context(), o)
				rig.Want(t, "Forecast", err, nil)
				wanted := tasks.Forecast{From: got.From, Step: got.Step, Counts: make([]int64, len(got.Counts)), Complete: true, Judgement: got.Judgement}
				for _, task := range r.Pages(tasks.Query{Topic: topic, Limit: 1000}) {
					k := task.Next.Sub(got.From) / got.Step
					switch {
					case task.State == tasks.Delivering:
						wanted.Delivering++
					case task.State == tasks.Ready:
						wanted.Ready++
					case int(k) < len(wanted.Counts):
						wanted.Counts[k]++
					default:
						wanted.Later++
					}
				}
				if diff := cmp.Diff(wanted, got); diff != "" {
					t.Errorf("%+v: %s", o, diff)
				}
				covered := time.Duration(len(got.Counts)) * got.Step
				if got.Step < o.Step || got.Step >= o.Step+time.Millisecond || covered < o.Window || covered >= o.Window+got.Step || len(got.Counts) > tasks.MaxForecastSteps {
					t.Errorf("%+v: %d steps of %v", o, len(got.Counts), got.Step)
				}
			}
		}
	})
}

func TestForecastRefuses(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		for _, o := range []tasks.Outlook{
			{},
			{Window: time.Hour},
			{Window: time.Hour, Step: -time.Second},
			{Window: time.Second - 1, Step: time.Millisecond},
			{Window: tasks.MaxAhead + 1, Step: time.Hour},
			{Window: time.Hour, Step: time.Hour + 1},
			{Window: time.Hour, Step: time.Second},
			{Window: time.Hour, Step: time.Minute, Topic: "a b"},
		} {
			_, err := r.Admin().Forecast(t.Context(), o)
			rig.Want(t, fmt.Sprintf("%+v", o), err, tasks.ErrInvalid)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		o := tasks.Outlook{Window: time.Hour, Step: time.Minute}
		_, err := r.Admin().Forecast(gone, o)
		rig.Want(t, "Forecast", err, context.Canceled)
		rig.Want(t, "Close", r.Close(t.Context()), nil)
		_, err = r.Admin().Forecast(t.Context(), o)
		rig.Want(t, "Forecast", err, tasks.ErrClosed)
	})
}

// A retry counts when it comes, not when the task was due; what replay has not read
// is missing, which is told.
func TestForecastOfRetriesAndDuringReplay(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(90 * time.Second)}, r.One("t", "x"))
		o := tasks.Outlook{Window: 10 * time.Minute, Step: time.Minute}
		f, err := r.Admin().Forecast(t.Context(), o)
		if rig.Want(t, "Forecast", err, nil); f.Counts[1] != 1 || !f.Complete {
			t.Errorf("a retry in 90 s: %+v", f)
		}
		r.Shut()
		r.Faulty = ledgertest.Wrap(r.Mem)
		_, release := r.Faulty.Hold(ledgertest.Scan)
		r.Scheduler, err = tasks.Open(t.Context(), r.Faulty, r.Cfg)
		rig.Want(t, "Open", err, nil)
		f, err = r.Admin().Forecast(t.Context(), o)
		if rig.Want(t, "Forecast", err, nil); f.Counts[1] != 0 || f.Complete {
			t.Errorf("during replay: %+v", f)
		}
		release()
	})
}
