package tasks_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// backlogOf schedules tasks that are due at once.
func backlogOf(r *rig, n int, topics ...string) {
	for _, topic := range topics {
		for i := range n {
			r.must(tasks.Request{ID: fmt.Sprintf("%s-%d", topic, i), Topic: topic})
		}
	}
}

// Scarce places are shared by weight, whichever topic came first and however long his deliveries
// take; what one topic does not need, the others have.
func TestPlacesAreSharedByWeight(t *testing.T) {
	bubble(t, tasks.Config{MaxDeliveries: 40}, func(t *testing.T, r *rig) {
		running := map[string]*slowHandler{}
		for topic, weight := range map[string]int{"light": 1, "heavy": 3, "slow": 1} {
			c := &slowHandler{}
			running[topic] = c
			r.topic(topic, tasks.TopicSettings{Weight: weight})
			r.handle(topic, func(ctx context.Context, d *tasks.Delivery) error {
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
		pass(500 * time.Millisecond)
		wantNow("40 0 0")
		backlogOf(r, 2000, "heavy")
		pass(10 * time.Second)
		wantNow("10 30 0")
		backlogOf(r, 2000, "slow")
		pass(10 * time.Second)
		wantNow("8 24 8")
		if st := r.Stats(); st.Workers != 40 || st.Crowd != 3 {
			t.Errorf("%d workers, %d topics in the crowd", st.Workers, st.Crowd)
		}
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "heavy", true), nil)
		pass(25 * time.Second)
		wantNow("20 0 20")
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "light", true), nil)
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "slow", true), nil)
		pass(time.Minute)
		wantNow("0 0 0")
		if st := r.Stats(); st.Workers != 0 || st.Crowd != 0 || st.MissedWakes != 0 {
			t.Errorf("afterwards %d workers, %d topics in the crowd, %d missed wakes", st.Workers, st.Crowd, st.MissedWakes)
		}
		r.checkConsistency()
	})
}

// Even a single place goes round by weight, and a topic of little weight is not starved by
// many of great weight.
func TestNothingStarves(t *testing.T) {
	for places, heavies := range map[int]int{1: 1, 2: 5} {
		bubble(t, tasks.Config{MaxDeliveries: places}, func(t *testing.T, r *rig) {
			topics := []string{"light"}
			r.topic("light", tasks.TopicSettings{Weight: 1})
			for i := range heavies {
				topics = append(topics, fmt.Sprint("heavy", i))
				r.topic(topics[i+1], tasks.TopicSettings{Weight: 3})
			}
			for _, topic := range topics {
				r.handle(topic, (&slowHandler{}).handler)
			}
			backlogOf(r, 1000, topics...)
			const seconds = 320
			pass(seconds*time.Second + time.Second/2)
			total := 0
			for _, topic := range topics {
				done := int(r.counts(topic).Delivered)
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
			r.checkConsistency()
		})
	}
}

// A topic that comes late does not make up for the time when it wanted nothing.
func TestLateComersWaitTheirTurn(t *testing.T) {
	bubble(t, tasks.Config{MaxDeliveries: 1}, func(t *testing.T, r *rig) {
		topics := []string{"a", "b", "late"}
		for _, topic := range topics {
			r.handle(topic, (&slowHandler{}).handler)
		}
		backlogOf(r, 200, "a", "b")
		pass(100*time.Second + time.Second/2)
		backlogOf(r, 200, "late")
		before := map[string]int64{"a": r.counts("a").Delivered, "b": r.counts("b").Delivered}
		pass(30 * time.Second)
		for _, topic := range topics {
			if n := r.counts(topic).Delivered - before[topic]; n < 9 || n > 11 {
				t.Errorf("%d deliveries of %s in 30 s beside two others", n, topic)
			}
		}
	})
}

// A contender that leaves because MaxInFlight keeps it waiting is not forgotten:
// the first receipt that makes room lets it go on.
func TestContendersAndMaxInFlight(t *testing.T) {
	bubble(t, tasks.Config{MaxDeliveries: 1, MaxInFlight: 2, SweepEvery: time.Minute}, func(t *testing.T, r *rig) {
		r.handle("later", func(context.Context, *tasks.Delivery) error { return tasks.ErrLater })
		r.topic("later", tasks.TopicSettings{Lease: time.Hour})
		r.handle("busy", (&slowHandler{}).handler)
		// Its handler shows that the topic leaves deliveries open.
		r.must(tasks.Request{ID: "first", Topic: "later"})
		pass(time.Millisecond)
		r.must(tasks.Request{ID: "b", Topic: "busy"}) // has the only place, for a second
		pass(time.Millisecond)
		r.must(tasks.Request{ID: "second", Topic: "later"}) // is a contender
		pulled := r.one("p", "pulled")                      // and then there is no room for it
		pass(2 * time.Second)
		if task := r.get("second"); task.State != tasks.Ready {
			t.Fatalf("beside two open deliveries it is %v", task.State)
		}
		r.ack(pulled)
		pass(time.Millisecond)
		if task := r.get("second"); task.State != tasks.Delivering {
			t.Errorf("with room for one more it is %v", task.State)
		}
		r.checkConsistency()
	})
}
