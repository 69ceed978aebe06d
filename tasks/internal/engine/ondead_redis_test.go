package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// On the disk and in Redis, each dead task has its follow-up, also after a restart. Targets and
// bounds of groups are in the records and in the settings.
func TestOnDeadOnEachLedger(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	dir, server := t.TempDir(), redistest.Start(t)
	for name, ledger := range map[string]func() (recovery.Ledger, error){
		"disk": func() (recovery.Ledger, error) { return diskledger.Open(dir, diskledger.Options{Log: quiet}) },
		"redis": func() (recovery.Ledger, error) {
			return redisledger.Open(redisledger.Options{URL: server.URL(), Node: "a", Log: quiet})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			// A pause of a machine under load is no outage: settlements are recorded.
			start := func() *tasks.Scheduler {
				l, err := ledger()
				rig.Want(t, "Open of the ledger", err, nil)
				s, err := tasks.Open(ctx, l, tasks.Config{Node: "a", Log: quiet, AnswerWithin: time.Minute})
				rig.Want(t, "Open", err, nil)
				return s
			}
			s := start()
			set := mourned("mourners")
			set.TaskDelivery, set.ConcurrencyPerGroup = true, 1000
			_, err := s.SetTopic(ctx, "x", set, -1)
			rig.Want(t, "SetTopic", err, nil)
			const count = 300
			reqs := make([]tasks.Request, count)
			for i := range reqs {
				reqs[i] = tasks.Request{ID: fmt.Sprintf("t%03d", i), Topic: "x", Group: "g", Target: &tasks.Target{Retry: tasks.Retry{MaxAttempts: 1 + i%2}}}
			}
			_, err = s.ScheduleBatch(ctx, reqs)
			rig.Want(t, "ScheduleBatch", err, nil)
			var ds []tasks.Delivery
			for len(ds) < count { // they are ready a moment after they were scheduled
				some, err := s.Reserve(ctx, "x", count-len(ds), tasks.MaxWait, 0)
				if rig.Want(t, "Reserve", err, nil); len(some) == 0 {
					t.Fatalf("%d are reserved", len(ds))
				}
				ds = append(ds, some...)
			}
			receipts := make([]string, count)
			for i := range ds {
				receipts[i] = ds[i].Receipt()
			}
			settled, err := s.Settle(ctx, tasks.Verdict{Verb: tasks.Release}, receipts)
			rig.Want(t, "Settle", err, nil)
			for _, a := range settled {
				if a.Err != nil || !a.Recorded {
					t.Fatalf("%+v", a)
				}
			}
			rig.Want(t, "Close", s.Close(context.Background()), nil)
			s = start()
			defer s.Close(context.Background())
			page, err := s.List(ctx, tasks.Query{Topic: "mourners", Limit: 1000})
			for err != nil || len(page.Tasks) < count/2 { // until it has replayed
				if ctx.Err() != nil {
					t.Fatal(len(page.Tasks), err)
				}
				page, err = s.List(ctx, tasks.Query{Topic: "mourners", Limit: 1000})
			}
			of := map[string]bool{}
			for _, next := range page.Tasks {
				of[next.Headers["lapse-dead-id"]] = true
				if next.Group != "g" || next.Target != nil {
					t.Errorf("%+v", next)
				}
			}
			if len(page.Tasks) != count/2 || len(of) != count/2 || of["t001"] || !of["t000"] {
				t.Errorf("%d follow-ups of %d tasks", len(page.Tasks), len(of))
			}
			if got, err := s.Get(ctx, "t001"); err != nil || got.Target == nil || got.Target.Retry.MaxAttempts != 2 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}
