package cluster_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/portable"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// An export misses no task when the order of memory is dropped while a page is read, or begins anew
// because another export has found too many entries in it.
func TestExportWhileOrderIsDropped(t *testing.T) {
	r := rig.New(t, Config{})
	const count = 3000
	for i := range count {
		r.Must(Request{ID: fmt.Sprint("task-", i), Topic: "x", Delay: time.Hour})
	}
	e := r.Engine()
	drops, over, ended := atomic.Int32{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for drops.Load() < 100 {
			select {
			case <-over:
				return
			default:
			}
			rig.Mutex(e).Lock()
			if _, whole := e.Store.Ordered(0); whole {
				e.Store.DropOrder(time.Now().Add(time.Hour))
				if drops.Add(1)%2 == 0 {
					e.Store.OrderSome(1, time.Now()) // another one has begun it anew
				}
			}
			rig.Mutex(e).Unlock()
			runtime.Gosched()
		}
	}()
	// An export may end before the goroutine has had the processor once.
	for first := true; first || drops.Load() == 0; first = false {
		if ids := idsIn(exported(t, e, portable.InMemory, time.Hour)); len(ids) != count {
			t.Errorf("%d of %d tasks are exported; the order was dropped %d times", len(ids), count, drops.Load())
		}
	}
	close(over)
	<-ended
}

// A part that ends by time has got on, and the next one begins behind it: each task is given once,
// also behind the end of a list or a label.
func TestExportWhosePartsEndByTime(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("kept", time.Hour)
		const count = 200
		for i := range count {
			r.Must(Request{ID: fmt.Sprint("task-", i), Topic: "x", Delay: time.Hour})
		}
		for i := range 3 {
			r.Finish(fmt.Sprint("finished-", i), "kept")
			r.Bury(fmt.Sprint("dead-", i%2), fmt.Sprint("dead-", i))
		}
		for pass, want := range map[portable.Pass]int{portable.InMemory: count, portable.Buried: 6} {
			given := exported(t, r.Engine(), pass, -time.Hour)
			if ids := idsIn(given); len(given) != want || len(ids) != want {
				t.Errorf("pass %d gives %d tasks, %d of %d", pass, len(given), len(ids), want)
			}
		}
	})
}

// exported returns the tasks of a pass as an export reads them, in parts that end after a time.
func exported(t *testing.T, e *engine.Engine, pass portable.Pass, after time.Duration) (given []portable.Item) {
	q := portable.Query{Pass: pass}
	for range rig.MostPages {
		part, _, err := portable.ReadUntil(t.Context(), e, &q, time.Now().Add(after))
		if err != nil {
			t.Fatal(err)
		}
		given = append(given, part.Items...)
		switch {
		case part.Last == nil:
			return given
		case part.Last.Compare(q.From) <= 0:
			t.Fatalf("a part from %+v ends at %+v", q.From, *part.Last)
		}
		q.From = *part.Last
	}
	t.Fatal("the export does not end")
	return nil
}

func idsIn(items []portable.Item) map[string]bool {
	ids := make(map[string]bool)
	for _, item := range items {
		ids[item.ID] = true
	}
	return ids
}
