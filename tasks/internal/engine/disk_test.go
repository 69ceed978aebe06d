package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/diskledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// The same life on the embedded ledger, through a few restarts.
func TestOnDisk(t *testing.T) {
	dir := t.TempDir()
	open := func() *Scheduler {
		ledger, err := diskledger.Open(dir, diskledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), ledger, Config{AnswerWithin: time.Minute, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		<-rig.Engine(s).Reading.Replayed
		return s
	}
	s := open()
	var requests []Request
	for i := range 300 {
		requests = append(requests, Request{ID: fmt.Sprint("t", i), Topic: "x", Payload: []byte(`{}`)})
	}
	requests = append(requests, Request{ID: "cancelled", Topic: "x", Delay: time.Hour}, Request{ID: "later", Topic: "x", Delay: time.Hour})
	results, err := s.ScheduleBatch(t.Context(), requests)
	rig.Want(t, "ScheduleBatch", err, nil)
	for _, res := range results {
		rig.Want(t, res.ID, res.Err, nil)
	}
	rig.Want(t, "Cancel", s.Cancel(t.Context(), "cancelled"), nil)
	_, err = s.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Hour}, 0)
	rig.Want(t, "SetTopic", err, nil)

	take := func(n int) (receipts []string) {
		t.Helper()
		for len(receipts) < n { // the wheel hands over what is due piece by piece
			ds, err := s.Reserve(t.Context(), "x", n-len(receipts), time.Minute, 0)
			if err != nil || len(ds) == 0 {
				t.Fatalf("reserved %d of %d, %v", len(receipts), n, err)
			}
			for _, d := range ds {
				receipts = append(receipts, d.Receipt())
			}
		}
		return receipts
	}
	settle := func(verb Verb, receipts []string) {
		t.Helper()
		answers, err := s.Settle(t.Context(), Verdict{Verb: verb}, receipts)
		rig.Want(t, "Settle", err, nil)
		for _, a := range answers {
			if a.Err != nil || !a.Recorded {
				t.Fatalf("settled: %+v", a)
			}
		}
	}
	settle(Ack, take(100))
	settle(Bury, take(50))
	away := take(50) // their receipts count after the restart
	for range 3 {
		rig.Want(t, "Close", s.Close(context.Background()), nil)
		s = open()
	}
	settle(Ack, away)
	settle(Ack, take(100))
	if topic, err := s.Topic("x"); err != nil || topic.Settings.Lease != time.Hour || topic.Counts.Dead != 50 || topic.Counts.Pending != 1 || topic.Counts.Ready != 0 {
		t.Errorf("in the end %+v, %v", topic, err)
	}
	page, err := s.Admin().DeadTasks(t.Context(), "x", 0, "")
	if err != nil || len(page.Tasks) != 50 || page.Tasks[7].Reason != Buried || !s.Stats().Total.DeadOldest.Equal(page.Tasks[0].Died) {
		t.Errorf("the dead: %+v, %v", page, err)
	}
	q, err := s.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{page.Tasks[7].ID, "nobody"}, Delay: time.Hour})
	if err != nil || q.Requeued != 1 || len(q.Unknown) != 1 {
		t.Errorf("requeued %+v, %v", q, err)
	}
	n, err := s.Admin().DeleteDead(t.Context(), "x", nil)
	if err != nil || n != 49 {
		t.Errorf("DeleteDead = %d, %v", n, err)
	}
	_, err = s.Get(t.Context(), "cancelled")
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("Get of the cancelled one = %v", err)
	}
	rig.Want(t, "Close", s.Close(context.Background()), nil)
}
