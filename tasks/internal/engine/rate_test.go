package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// No more deliveries begin than the rate and the burst allow, and no fewer; handed out
// or pulled.
func TestRate(t *testing.T) {
	for name, pulled := range map[string]bool{"handler": false, "pull": true} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", tasks.TopicSettings{Rate: tasks.Rate{PerSecond: 10, Burst: 5}})
				done := make(chan struct{})
				ctx, stop := context.WithCancel(t.Context())
				if pulled {
					go func() {
						defer close(done)
						for {
							ds, err := r.Reserve(ctx, "x", 7, time.Minute, 0)
							if err != nil || ctx.Err() != nil {
								return
							}
							for _, d := range ds {
								r.Ack(d)
							}
						}
					}()
				} else {
					close(done)
					r.MustHandle("x", (&slowHandler{}).handler)
				}
				started := func() int { return int(r.Counts("x").Ready) }
				backlogOf(r, 200, "x")
				rig.Pass(time.Millisecond)
				for second := range 10 {
					if left := started(); left != 200-5-10*second {
						t.Errorf("after %d s %d are left", second, left)
					}
					rig.Pass(time.Second)
				}
				// A faster rate holds at once, although the topic rests.
				r.MustSetTopic("x", tasks.TopicSettings{Rate: tasks.Rate{PerSecond: 0.001}})
				rig.Pass(2 * time.Second)
				before := started()
				rig.Pass(time.Minute)
				if left := started(); left != before {
					t.Errorf("%d deliveries at a rate of one in 1000 s", before-left)
				}
				r.MustSetTopic("x", tasks.TopicSettings{})
				rig.Pass(3 * time.Second)
				if c := r.Counts("x"); c.Ready != 0 || c.Delivered != 200 {
					t.Errorf("without a bound: %+v", c)
				}
				if st := r.Stats(); st.MissedWakes != 0 {
					t.Errorf("%d missed wakes", st.MissedWakes)
				}
				r.CheckConsistency()
				stop()
				<-done
			})
		})
	}
}

// Settings that are set again do not fill the bucket.
func TestRateAndSettings(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		c := &slowHandler{}
		r.MustHandle("x", c.handler)
		r.MustSetTopic("x", tasks.TopicSettings{Rate: tasks.Rate{PerSecond: 1, Burst: 3}})
		backlogOf(r, 100, "x")
		for i := range 50 {
			r.MustSetTopic("x", tasks.TopicSettings{Rate: tasks.Rate{PerSecond: 1, Burst: 3}, Lease: time.Duration(i+1) * time.Second})
			rig.Pass(100 * time.Millisecond)
		}
		if begun := c.total.Load(); begun > 9 || begun < 6 {
			t.Errorf("%s began within 5 s at a rate of 1 and bursts of 3", fmt.Sprint(begun))
		}
	})
}

// A faster rate and a greater burst hold at once, also for a topic that rests.
func TestRateIsRaised(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		// begun sets the topic and tells how many deliveries begin from then on.
		begun := func(want int64, rate tasks.Rate, paused bool, within time.Duration) {
			t.Helper()
			before := r.Counts("x").Ready
			r.MustSetTopic("x", tasks.TopicSettings{Rate: rate, Paused: paused})
			rig.Pass(within)
			if n := before - r.Counts("x").Ready; n < want-1 || n > want+1 {
				t.Errorf("%d began within %v, want %d", n, within, want)
			}
		}
		r.MustSetTopic("x", tasks.TopicSettings{Paused: true})
		r.MustHandle("x", func(context.Context, *tasks.Delivery) error { return nil })
		backlogOf(r, 400, "x")
		begun(1, tasks.Rate{PerSecond: 0.001, Burst: 1}, false, 10*time.Second)
		begun(100, tasks.Rate{PerSecond: 100, Burst: 1}, false, time.Second)
		begun(0, tasks.Rate{PerSecond: 10, Burst: 50}, true, 10*time.Second)
		begun(50, tasks.Rate{PerSecond: 10, Burst: 50}, false, time.Millisecond)
		r.CheckConsistency()
	})
}
