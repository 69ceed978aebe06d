package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

func TestRetriedUntilMaxAge(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		var attempts atomic.Int64
		if err := r.Handle("down", func(context.Context, *Delivery) error {
			attempts.Add(1)
			return errors.New("the receiver is down")
		}); err != nil {
			t.Fatal(err)
		}
		r.Must(Request{ID: "a", Topic: "down", Delay: time.Hour})
		time.Sleep(time.Hour + 23*time.Hour + 50*time.Minute)
		synctest.Wait()
		if c := r.Counts("down"); c.Died != 0 || attempts.Load() < 100 {
			t.Fatalf("after most of a day %d died, in %d attempts", c.Died, attempts.Load())
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if c := r.Counts("down"); c.Died != 1 {
			t.Errorf("after a day %d died", c.Died)
		}
		requeue(r, t, "down", "a")
		attempts.Store(0)
		time.Sleep(12 * time.Hour)
		synctest.Wait()
		if c := r.Counts("down"); c.Died != 1 || attempts.Load() < 50 {
			t.Errorf("half a day after it was requeued %d died, in %d attempts", c.Died-1, attempts.Load())
		}
	})
}

func requeue(r *rig.Rig, t *testing.T, topic, id string) {
	t.Helper()
	if _, err := r.Admin().Requeue(t.Context(), topic, Requeue{IDs: []string{id}}); err != nil {
		t.Fatal(err)
	}
}

// A task that is old when it is tried for the first time is not dead after one attempt.
func TestLateTaskHasItsAttempts(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("paused", TopicSettings{Paused: true})
		r.Must(Request{ID: "a", Topic: "paused"})
		time.Sleep(48 * time.Hour)
		var attempts atomic.Int64
		if err := r.Handle("paused", func(context.Context, *Delivery) error {
			attempts.Add(1)
			return errors.New("down")
		}); err != nil {
			t.Fatal(err)
		}
		if err := r.Admin().PauseTopic(t.Context(), "paused", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if c := r.Counts("paused"); c.Died != 1 || attempts.Load() != task.FairAttempts {
			t.Errorf("%d died after %d attempts, want %d", c.Died, attempts.Load(), task.FairAttempts)
		}
	})
}

func TestWhatEndsATask(t *testing.T) {
	for name, c := range map[string]struct {
		set      TopicSettings
		attempts int
		age      time.Duration
		fair     int
	}{
		"nothing set":        {TopicSettings{}, MaxRetryAttempts, 24 * time.Hour, 20},
		"attempts":           {TopicSettings{Retry: Retry{MaxAttempts: 5}}, 5, 0, 1},
		"age":                {TopicSettings{Retry: Retry{MaxAge: 5 * time.Minute}}, MaxRetryAttempts, 5 * time.Minute, 9},
		"both":               {TopicSettings{Retry: Retry{MaxAttempts: 5, MaxAge: time.Hour}}, 5, time.Hour, 20},
		"long pauses":        {TopicSettings{Retry: Retry{MinBackoff: 24 * time.Hour}}, MaxRetryAttempts, 24 * time.Hour, 2},
		"counts crashes":     {TopicSettings{CountCrashes: true}, 20, 0, 1},
		"crashes, unbounded": {TopicSettings{CountCrashes: true, Retry: Retry{MaxAttempts: MaxRetryAttempts}}, MaxRetryAttempts, 24 * time.Hour, 20},
	} {
		full := c.set.WithDefaults()
		if full.Retry.MaxAttempts != c.attempts || full.Retry.MaxAge != c.age || c.age != 0 && full.Retry.Fair() != c.fair {
			t.Errorf("%s: %d attempts, age %s, at least %d", name, full.Retry.MaxAttempts, full.Retry.MaxAge, full.Retry.Fair())
		}
		if again := c.set.Stored().WithDefaults(); again.Retry != full.Retry {
			t.Errorf("%s: stored and read again it is %+v, want %+v", name, again.Retry, full.Retry)
		}
	}
	if f := (TopicSettings{Retry: Retry{MaxAge: time.Millisecond}}).Faults(); len(f) != 1 {
		t.Errorf("an age of 1 ms has the faults %v", f)
	}
}

// A topic of which a thousand attempts fail has one line a minute.
func TestFailuresAreTold(t *testing.T) {
	rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("down", TopicSettings{Retry: Retry{MaxAttempts: 2, MinBackoff: time.Second, MaxBackoff: time.Second}})
		if err := r.Handle("down", func(context.Context, *Delivery) error { return errors.New("refused by the shop") }); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			r.Must(Request{Topic: "down"})
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		lines, failed, died := 0, 0, 0
		for line := range strings.Lines(r.Log.All()) {
			if _, counts, ok := strings.Cut(line, `msg="attempts have failed"`); ok {
				lines++
				var f, d int
				if _, err := fmt.Sscanf(counts, " node=local topic=down failed=%d died=%d last_error=\"refused by the shop\"", &f, &d); err != nil {
					t.Error(line, err)
				}
				failed, died = failed+f, died+d
			}
		}
		if lines == 0 || lines > 2 || failed != 100 || died != 50 {
			t.Errorf("%d lines, %d failed, %d died:\n%s", lines, failed, died, r.Log.All())
		}
	})
}

// Tasks that die without an attempt are told of as well.
func TestDeathsAreTold(t *testing.T) {
	rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		set, err := r.SetTopic(t.Context(), "x", TopicSettings{}, -1)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r.Must(Request{Topic: "x", Delay: time.Hour})
		}
		if killed, err := r.Admin().KillTopic(t.Context(), "x", set.Revision); err != nil || killed.Killed != 3 {
			t.Fatalf("KillTopic = %+v, %v", killed, err)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		want := `level=WARN msg="tasks have died" node=local topic=x failed=0 died=3 last_error="the topic was deleted"`
		if n := strings.Count(r.Log.All(), want); n != 1 {
			t.Errorf("%d lines have %s:\n%s", n, want, r.Log.All())
		}
	})
}
