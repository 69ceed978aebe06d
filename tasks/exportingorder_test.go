package tasks_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/portable"
)

// An export misses no task when the order of memory is dropped while a page is read, or begins anew
// because another export has found too many entries in it.
func TestExportWhileOrderIsDropped(t *testing.T) {
	r := newRig(t, Config{})
	const count = 3000
	for i := range count {
		r.must(Request{ID: fmt.Sprint("task-", i), Topic: "x", Delay: time.Hour})
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
			e.Mu.Lock()
			if _, whole := e.Store.Ordered(0); whole {
				e.Store.DropOrder(time.Now().Add(time.Hour))
				if drops.Add(1)%2 == 0 {
					e.Store.OrderSome(1, time.Now()) // another one has begun it anew
				}
			}
			e.Unlock()
			runtime.Gosched()
		}
	}()
	// An export may end before the goroutine has had the processor once.
	for first := true; first || drops.Load() == 0; first = false {
		if ids := exported(t, e); len(ids) != count {
			t.Errorf("%d of %d tasks are exported; the order was dropped %d times", len(ids), count, drops.Load())
		}
	}
	close(over)
	<-ended
}

// exported returns the ids of the tasks in memory, as an export reads them.
func exported(t *testing.T, e *engine.Engine) map[string]bool {
	ids, q := make(map[string]bool), portable.Query{Pass: portable.InMemory}
	for {
		part, err := portable.Read(t.Context(), e, &q)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range part.Items {
			ids[item.ID] = true
		}
		if part.Last == nil {
			return ids
		}
		q.From = *part.Last
	}
}
