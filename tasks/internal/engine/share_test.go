package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// backlogOf schedules tasks that are due at once.
func backlogOf(r *rig.Rig, n int, topics ...string) {
	for _, topic := range topics {
		for i := range n {
			r.Must(tasks.Request{ID: fmt.Sprintf("%s-%d", topic, i), Topic: topic})
		}
	}
}

// Scarce places are shared by weight, whichever topic came first and however long his deliveries
// take; what one topic does not need, the others have.
func TestPlacesAreSharedByWeight(t *testing.T) {
	rig.Bubble(t, tasks.Config{MaxDeliveries: 40}, func(t *testing.T, r *rig.Rig) {
		running := map[string]*slowHandler{}
		for topic, weight := range map[string]int{"light": 1, "heavy": 3, "slow": 1} {
			c := &slowHandler{}
			running[topic] = c
			r.MustSetTopic(topic, tasks.TopicSettings{Weight: weight})
			r.MustHandle(topic, func(ctx context.Context, d *tasks.Delivery) error {
				if d.Topic == "slow" {
					c.running.Add(1)
					defer c.running.Add(-1)
					time.Sleep(20 * time.Second)
				}
				return c.handler(ctx, d)
			})
		}
		now := func() string {
			return fmt.Sprint(running["light"].running.Load(), running["heavy"].running.Load(), running["slow"].running.Load())
		}
		wantNow := func(text string) {
			t.Helper()
			if got := now(); got != text {
				t.Errorf("light, heavy, slow: %s, want %s", got, text)
			}
		}
		backlogOf(r, 2000, "light")
		rig.Pass(500 * time.Millisecond)
		wantNow("40 0 0")
		backlogOf(r, 2000, "heavy")
		rig.Pass(10 * time.Second)
		wantNow("10 30 0")
		backlogOf(r, 2000, "slow")
		rig.Pass(10 * time.Second)
		wantNow("8 24 8")
		if st := r.Stats(); st.Workers != 40 || st.Crowd != 3 {
			t.Errorf("%d workers, %d topics in the crowd", st.Workers, st.Crowd)
		}
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "heavy", true), nil)
		rig.Pass(25 * time.Second)
		wantNow("20 0 20")
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "light", true), nil)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "slow", true), nil)
		rig.Pass(time.Minute)
		wantNow("0 0 0")
		if st := r.Stats(); st.Workers != 0 || st.Crowd != 0 || st.MissedWakes != 0 {
			t.Errorf("afterwards %d workers, %d topics in the crowd, %d missed wakes", st.Workers, st.Crowd, st.MissedWakes)
		}
		r.CheckConsistency()
	})
}

// Even a single place goes round by weight, and a topic of little weight is not starved by
// many of great weight.
func TestNothingStarves(t *testing.T) {
	t.Parallel()
	for places, heavies := range map[int]int{1: 1, 2: 5} {
		rig.Bubble(t, tasks.Config{MaxDeliveries: places}, func(t *testing.T, r *rig.Rig) {
			topics := []string{"light"}
			r.MustSetTopic("light", tasks.TopicSettings{Weight: 1})
			for i := range heavies {
				topics = append(topics, fmt.Sprint("heavy", i))
				r.MustSetTopic(topics[i+1], tasks.TopicSettings{Weight: 3})
			}
			for _, topic := range topics {
				r.MustHandle(topic, (&slowHandler{}).handler)
			}
			backlogOf(r, 1000, topics...)
			const seconds = 320
			rig.Pass(seconds*time.Second + time.Second/2)
			total := 0
			for _, topic := range topics {
				done := int(r.Counts(topic).Delivered)
				fair := seconds * places * 3 / (3*heavies + 1)
				if topic == "light" {
					fair /= 3
				}
				if done < fair*9/10-2 || done > fair*11/10+2 {
					t.Errorf("%d places, %d heavy topics: %d deliveries of %s, fair are %d", places, heavies, done, topic, fair)
				}
				total += done
			}
			if total != seconds*places {
				t.Errorf("%d deliveries in %d seconds with %d places", total, seconds, places)
			}
			r.CheckConsistency()
		})
	}
}

// A topic that comes late does not make up for the time when it wanted nothing.
func TestLateComersWaitTheirTurn(t *testing.T) {
	rig.Bubble(t, tasks.Config{MaxDeliveries: 1}, func(t *testing.T, r *rig.Rig) {
		topics := []string{"a", "b", "late"}
		for _, topic := range topics {
			r.MustHandle(topic, (&slowHandler{}).handler)
		}
		backlogOf(r, 200, "a", "b")
		rig.Pass(100*time.Second + time.Second/2)
		backlogOf(r, 200, "late")
		before := map[string]int64{"a": r.Counts("a").Delivered, "b": r.Counts("b").Delivered}
		rig.Pass(30 * time.Second)
		for _, topic := range topics {
			if n := r.Counts(topic).Delivered - before[topic]; n < 9 || n > 11 {
				t.Errorf("%d deliveries of %s in 30 s beside two others", n, topic)
			}
		}
	})
}

// A contender that leaves because MaxInFlight keeps it waiting is not forgotten:
// the first receipt that makes room lets it go on.
func TestContendersAndMaxInFlight(t *testing.T) {
	rig.Bubble(t, tasks.Config{MaxDeliveries: 1, MaxInFlight: 2, SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		r.MustHandle("later", func(context.Context, *tasks.Delivery) error { return tasks.ErrLater })
		r.MustSetTopic("later", tasks.TopicSettings{Lease: time.Hour})
		r.MustHandle("busy", (&slowHandler{}).handler)
		// Its handler shows that the topic leaves deliveries open.
		r.Must(tasks.Request{ID: "first", Topic: "later"})
		rig.Pass(time.Millisecond)
		r.Must(tasks.Request{ID: "b", Topic: "busy"}) // has the only place, for a second
		rig.Pass(time.Millisecond)
		r.Must(tasks.Request{ID: "second", Topic: "later"}) // is a contender
		pulled := r.One("p", "pulled")                      // and then there is no room for it
		rig.Pass(2 * time.Second)
		if task := r.MustGet("second"); task.State != tasks.Ready {
			t.Fatalf("beside two open deliveries it is %v", task.State)
		}
		r.Ack(pulled)
		rig.Pass(time.Millisecond)
		if task := r.MustGet("second"); task.State != tasks.Delivering {
			t.Errorf("with room for one more it is %v", task.State)
		}
		r.CheckConsistency()
	})
}
