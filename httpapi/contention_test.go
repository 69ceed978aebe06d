package httpapi

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Many callers count a topic's concurrency up at the same time, each from what it has read. No
// change is lost, none is made twice, and all tasks scheduled meanwhile are delivered once.
func TestTopicsAreChangedByMany(t *testing.T) {
	const writers, each = 6, 40
	r := newRig(t)
	var mu sync.Mutex
	delivered := map[string]int{}
	if err := r.scheduler.Handle("t", func(_ context.Context, d *tasks.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		delivered[d.ID]++
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.want(r.do("PUT", "/v1/topics/t", `{"concurrency":1}`), 200)

	stop := make(chan struct{})
	var load, changes sync.WaitGroup
	scheduled := 0
	load.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			scheduled++
			if a := r.do("POST", "/v1/tasks", fmt.Sprintf(`{"id":"task-%d","topic":"t"}`, scheduled)); a.status != 201 {
				t.Errorf("status %d: %s", a.status, a.body)
				return
			}
		}
	})
	// Each has a weight of its own: the same settings twice are one change.
	for i := range writers {
		changes.Go(func() {
			for done := 0; done < each; {
				now := r.do("GET", "/v1/topics/t", "")
				var n int
				if _, err := fmt.Sscanf(now.header.Get("ETag"), `"%d"`, &n); err != nil {
					t.Error(err)
					return
				}
				switch a := r.do("PUT", "/v1/topics/t", fmt.Sprintf(`{"concurrency":%d,"weight":%d}`, n+1, i+1), "If-Match: "+now.header.Get("ETag")); a.status {
				case 200:
					done++
				case 412: // another writer was faster
				default:
					t.Errorf("status %d: %s", a.status, a.body)
					return
				}
			}
		})
	}
	changes.Wait()
	close(stop)
	load.Wait()
	v := r.want(r.do("GET", "/v1/topics/t", ""), 200)
	if want := writers*each + 1; fmt.Sprint(v["concurrency"], v["revision"]) != fmt.Sprint(want, want) {
		t.Errorf("%d changes have made it %v, revision %v", want, v["concurrency"], v["revision"])
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for r.scheduler.Stats().Total.Delivered < int64(scheduled) {
		<-tick.C
	}
	mu.Lock()
	defer mu.Unlock()
	for id, n := range delivered {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	if len(delivered) != scheduled {
		t.Errorf("%d of %d tasks were delivered", len(delivered), scheduled)
	}
}
