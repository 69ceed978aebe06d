package delivertest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/delivertest"
)

// A puller is a loop that reserves tasks, and settles them by their receipts.
type puller struct {
	t        *testing.T
	receiver *delivertest.Receiver
	loops    *sync.WaitGroup
}

func TestPull(t *testing.T) {
	t.Parallel()
	delivertest.Run(t, func(t *testing.T, r *delivertest.Receiver) delivertest.Rig {
		p := puller{t, r, new(sync.WaitGroup)}
		t.Cleanup(p.loops.Wait)
		return p
	})
}

func (puller) Ways() []tasks.Way { return nil }

func (puller) Settings() tasks.TopicSettings { return tasks.TopicSettings{Kind: tasks.Pull} }

func (puller) Cannot() map[delivertest.Ability]string {
	return map[delivertest.Ability]string{
		delivertest.Bounded: "receivers that ask for tasks decide themselves how many they take",
	}
}

func (p puller) Serve(ctx context.Context, s *tasks.Scheduler, topic string) error {
	p.loops.Go(func() {
		for {
			ds, err := s.Reserve(ctx, topic, 100, time.Minute, 0)
			if err != nil {
				if !errors.Is(err, tasks.ErrClosed) {
					p.t.Errorf("Reserve: %v", err)
				}
				return
			}
			for i := range ds {
				p.loops.Go(func() { p.receive(ctx, s, &ds[i]) })
			}
			if len(ds) == 0 && ctx.Err() != nil {
				return
			}
		}
	})
	return nil
}

// receive settles one delivery. Without a settlement the delivery is left to its lease.
func (p puller) receive(ctx context.Context, s *tasks.Scheduler, d *tasks.Delivery) {
	answer := p.receiver.Receive(ctx, arrival(d))
	v := tasks.Verdict{Reason: answer.Why}
	switch answer.Say {
	case delivertest.Accept:
		v.Verb = tasks.Ack
	case delivertest.Fail:
		v.Verb = tasks.Release
	case delivertest.Wait:
		v.Verb, v.Delay = tasks.Release, &answer.Pause
	case delivertest.Bury:
		v.Verb = tasks.Bury
	default:
		return
	}
	// A refusal is judged by its consequences.
	_, _ = s.Settle(context.WithoutCancel(ctx), v, []string{d.Receipt()})
}
