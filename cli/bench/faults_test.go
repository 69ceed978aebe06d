package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A liar is a system that breaks promises from the second round on: the first one is the rehearsal.
type liar struct {
	early, drop, repeat, admit bool
	batches                    bool

	got       func([]byte)
	group     sync.WaitGroup
	explained atomic.Int64
	left      atomic.Int64
}

func (s *liar) Schedule(_ context.Context, t Task) error {
	payload := append([]byte(nil), t.Payload...)
	round, number, _ := parsePayload(payload)
	lies := round > 0 && number%10 == 0
	if lies && s.drop {
		return nil
	}
	wait := time.Until(t.Due) + time.Millisecond
	if lies && s.early {
		wait = 0
	}
	s.left.Add(1)
	s.group.Add(1)
	time.AfterFunc(wait, func() {
		defer s.group.Done()
		s.got(payload)
		if lies && s.repeat {
			s.got(payload)
			if s.admit {
				s.explained.Add(1)
			}
		}
		s.left.Add(-1)
	})
	return nil
}

func (s *liar) ScheduleBatch(ctx context.Context, ts []Task) error {
	if !s.batches {
		return ErrNoBatch
	}
	for _, t := range ts {
		_ = s.Schedule(ctx, t)
	}
	return nil
}

func (s *liar) Receive(_ context.Context, got func([]byte)) error { s.got = got; return nil }

func (s *liar) Standing(context.Context) (Standing, error) {
	return Standing{Left: int(s.left.Load()), Explained: int(s.explained.Load())}, nil
}

func (s *liar) Close() error { s.group.Wait(); return nil }

// A broken promise is found by the tasks' numbers, whatever the system reports.
func TestFaults(t *testing.T) {
	for _, test := range []struct {
		name   string
		s      *liar
		want   Faults
		broken bool
	}{
		{"honest", &liar{}, Faults{}, false},
		{"honest, batches", &liar{batches: true}, Faults{}, false},
		{"early", &liar{early: true}, Faults{Early: 10}, true},
		{"lost", &liar{drop: true, batches: true}, Faults{Lost: 10}, true},
		{"repeated", &liar{repeat: true}, Faults{Repeated: 10}, true},
		{"repeated for a reason", &liar{repeat: true, admit: true}, Faults{Repeated: 10, Explained: 10}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := Load{Tasks: 100, Callers: 4, Batch: 10, Payload: 100, Rate: 1000, Duration: 100 * time.Millisecond, Patience: 2000 * time.Millisecond}
			r, err := Burst(t.Context(), test.s, l)
			if err != nil || r.Faults != test.want {
				t.Errorf("burst: %+v, want %+v: %v", r.Faults, test.want, err)
			}
			test.s.explained.Store(0)
			r, err = Steady(t.Context(), test.s, l)
			if err != nil || r.Faults != test.want {
				t.Errorf("steady: %+v, want %+v: %v", r.Faults, test.want, err)
			}
			report := Report{Results: []Result{r}}
			if errors.Is(report.Err(), ErrBroken) != test.broken {
				t.Errorf("the report: %v", report.Err())
			}
		})
	}
}

// slow takes longer for the first burst than the rehearsal has shown.
type slow struct {
	*liar
}

func (s *slow) Schedule(ctx context.Context, t Task) error {
	if round, number, _ := parsePayload(t.Payload); round == 1 && number == 0 {
		<-time.After(time.Until(t.Due) + 10*time.Millisecond)
	}
	return s.liar.Schedule(ctx, t)
}

// A burst that began before all tasks were scheduled is not measured. It is repeated, and the tasks
// of the first attempt are not lost.
func TestRefill(t *testing.T) {
	t.Parallel()
	s := &slow{liar: &liar{}}
	r, err := Burst(t.Context(), s, Load{Tasks: 50, Callers: 2, Batch: 10, Payload: 100, Patience: time.Second})
	if err != nil || r.Faults != (Faults{}) || r.Lateness.Count != 50 {
		t.Errorf("%+v: %v", r, err)
	}
	if late := r.Lateness.Max; late > 5000 {
		t.Errorf("the burst that was measured is the one that began too early: %v ms late", late)
	}
}

// A single schedule that the system forgets is lost.
func TestScheduleCountsWhatIsHeld(t *testing.T) {
	s := &forgetful{}
	r, err := Single(t.Context(), s, Load{Tasks: 100, Callers: 4, Payload: 100})
	if err != nil || r.Lost == 0 {
		t.Errorf("%+v: %v", r.Faults, err)
	}
	if _, err := Batch(t.Context(), &forgetful{}, Load{Tasks: 100, Batch: 10, Payload: 100}); !errors.Is(err, ErrNoBatch) {
		t.Error(err)
	}
}

type forgetful struct{ n atomic.Int64 }

func (s *forgetful) Schedule(context.Context, Task) error      { s.n.Add(1); return nil }
func (*forgetful) ScheduleBatch(context.Context, []Task) error { return ErrNoBatch }
func (*forgetful) Receive(context.Context, func([]byte)) error { return nil }
func (*forgetful) Close() error                                { return nil }
func (s *forgetful) Standing(context.Context) (Standing, error) {
	return Standing{Left: int(s.n.Load()) - 1}, nil
}
