package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A topic whose tasks are overdue and not handed out is late, though no delivery was late yet.
func TestLatenessOfWhatWaits(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Paused: true})
		began := r.Clock.Now()
		for i := range 55 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Duration(i+1) * time.Second})
		}
		if c := r.Counts("x"); !c.ReadyOldest.IsZero() || c.Recent != (RecentLateness{}) {
			t.Errorf("before the first deadline: %+v", c)
		}
		rig.Pass(65 * time.Second)
		c := r.Counts("x")
		if want := began.Add(time.Second); !c.ReadyOldest.Equal(want) {
			t.Errorf("the oldest has been ready since %v; want %v", c.ReadyOldest, want)
		}
		// They are late by 10 to 64 s: one by 10, 15 up to 25, 35 up to 60, 4 more.
		if got := nonzero(c.Recent.Counts); got != "10s:1 25s:15 1m0s:35 2m0s:4" || c.Recent.Max != 64*time.Second {
			t.Errorf("recent: %s, max %v", got, c.Recent.Max)
		}
		if c.Lateness.Counts.Total() != 0 {
			t.Errorf("since the start: %v", nonzero(c.Lateness.Counts))
		}
		if total := r.Stats().Total; total.Recent != (RecentLateness{}) || !total.ReadyOldest.IsZero() {
			t.Errorf("the sum of all topics has that of a paused one: %+v", total)
		}
		// What is cancelled does not wait any more.
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t0"), nil)
		rig.Pass(time.Second)
		if got, want := r.Counts("x").ReadyOldest, began.Add(2*time.Second); !got.Equal(want) {
			t.Errorf("without the oldest: since %v; want %v", got, want)
		}
		r.MustSetTopic("x", TopicSettings{})
		for range 54 {
			r.Ack(pullAny(r, "x"))
		}
		c = r.Counts("x")
		if !c.ReadyOldest.IsZero() || c.Recent.Counts.Total() != 54 || c.Recent.Max != 64*time.Second {
			t.Errorf("delivered: oldest %v, recent %s, max %v", c.ReadyOldest, nonzero(c.Recent.Counts), c.Recent.Max)
		}
		if total := r.Stats().Total; total.Recent != c.Recent {
			t.Errorf("of all topics: %+v; want %+v", total.Recent, c.Recent)
		}
	})
}

// The first look after many ready tasks were cancelled finds the oldest one that is left.
func TestReadyOldestAfterCancels(t *testing.T) {
	t.Parallel()
	orders := map[string]struct {
		cancels int
		which   func(i int) int
	}{
		"the oldest first": {3000, func(i int) int { return i }},
		"in no order":      {3000, func(i int) int { return i * 7 % 3000 }},
		"the newest first": {1000, func(i int) int { return 999 - i }}, // see staleLooks
	}
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", TopicSettings{Paused: true})
				began := r.Clock.Now()
				for i := range order.cancels + 10 {
					r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Duration(i+1) * time.Second})
				}
				rig.Pass(time.Duration(order.cancels+10) * time.Second)
				for i := range order.cancels {
					rig.Want(t, "Cancel", r.Cancel(t.Context(), fmt.Sprint("t", order.which(i))), nil)
				}
				if got, want := r.Counts("x").ReadyOldest, began.Add(time.Duration(order.cancels+1)*time.Second); !got.Equal(want) {
					t.Errorf("ready since %v; want %v", got, want)
				}
			})
		})
	}
}

// pullWaiting reserves one task, whichever comes.
func pullAny(r *rig.Rig, topic string) Delivery {
	r.T.Helper()
	ds, err := r.Reserve(r.T.Context(), topic, 1, 0, 0)
	if rig.Want(r.T, "Reserve", err, nil); len(ds) != 1 {
		r.T.Fatalf("got %d tasks", len(ds))
	}
	return ds[0]
}

// nonzero lists the buckets that have counted something.
func nonzero(b Buckets) string {
	var parts []string
	for i, n := range b {
		switch {
		case n == 0:
		case i == len(LatenessBounds):
			parts = append(parts, fmt.Sprint("above:", n))
		default:
			parts = append(parts, fmt.Sprint(LatenessBounds[i], ":", n))
		}
	}
	return strings.Join(parts, " ")
}

// What was late a while ago is not late now. It is forgotten after RecentTime, at most a minute
// later.
func TestLatenessIsRecent(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		type first struct {
			at   time.Duration
			late time.Duration
		}
		var all []first
		began := time.Now()
		rng := rand.New(rand.NewPCG(1, 2))
		for range 400 {
			rig.Pass(time.Duration(rng.Int64N(int64(10 * time.Second))).Truncate(time.Millisecond))
			r.MustSetTopic("x", TopicSettings{Paused: true})
			r.Must(Request{Topic: "x"})
			late := time.Duration(rng.Int64N(int64(3 * time.Second))).Truncate(time.Millisecond)
			rig.Pass(late)
			r.MustSetTopic("x", TopicSettings{})
			r.Ack(pullAny(r, "x"))
			now := time.Since(began)
			all = append(all, first{now, late})
			var sure, possible int64
			for _, f := range all {
				if now-f.at < RecentTime {
					sure++
				}
				if now-f.at <= RecentTime+time.Minute {
					possible++
				}
			}
			if c := r.Counts("x"); c.Recent.Counts.Total() < sure || c.Recent.Counts.Total() > possible {
				t.Fatalf("%d are recent; want %d to %d", c.Recent.Counts.Total(), sure, possible)
			}
		}
		if c := r.Counts("x"); c.Lateness.Counts.Total() != 400 {
			t.Error("since the start some are missing")
		}
		rig.Pass(RecentTime + time.Minute)
		if c := r.Counts("x"); c.Recent != (RecentLateness{}) {
			t.Errorf("after a pause: %+v", c.Recent)
		}
	})
}

// A topic shows how many receivers wait at this node.
func TestReceiversThatWait(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		got := make(chan int)
		for range 3 {
			go func() {
				ds, _ := r.Reserve(t.Context(), "x", 1, 10*time.Second, 0)
				got <- len(ds)
			}()
		}
		rig.Pass(time.Second)
		if c := r.Counts("x"); c.Receivers != 3 {
			t.Errorf("%d wait", c.Receivers)
		}
		r.Must(Request{Topic: "x"})
		if n := <-got; n != 1 || r.Counts("x").Receivers != 2 {
			t.Errorf("a receiver got %d, %d wait", n, r.Counts("x").Receivers)
		}
		<-got
		<-got
		if c := r.Counts("x"); c.Receivers != 0 {
			t.Errorf("in the end %d wait", c.Receivers)
		}
	})
}

// A topic shows why its last failed attempt failed, in few bytes.
func TestLastErrorOfATopic(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		reason := "the bank does not answer"
		r.MustHandle("x", func(context.Context, *Delivery) error { return errors.New(reason) })
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MinBackoff: time.Hour}})
		if x, err := r.Topic("x"); err != nil || x.LastError != "" || !x.LastFailed.IsZero() {
			t.Errorf("at first %q, %v, %v", x.LastError, x.LastFailed, err)
		}
		for _, cut := range []string{"", strings.Repeat("ö", MaxTopicError)} {
			reason += cut
			at := r.Clock.Now()
			r.Must(Request{Topic: "x"})
			rig.Pass(time.Second)
			x, err := r.Topic("x")
			rig.Want(t, "Topic", err, nil)
			if !strings.HasPrefix(reason, x.LastError) || len(x.LastError) > MaxTopicError || len(x.LastError) < min(len(reason), MaxTopicError-1) {
				t.Errorf("the last error is %q", x.LastError)
			}
			if x.LastFailed.Before(at.Truncate(time.Millisecond)) || x.LastFailed.After(at.Add(time.Second)) {
				t.Errorf("failed at %v; want %v", x.LastFailed, at)
			}
		}
	})
}
