package tasks_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
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
	over, dropped := make(chan struct{}), make(chan int)
	go func() {
		drops := 0
		defer func() { dropped <- drops }()
		for drops < 100 {
			select {
			case <-over:
				return
			default:
			}
			e.Mu.Lock()
			if _, whole := e.Store.Ordered(0); whole {
				e.Store.DropOrder(time.Now().Add(time.Hour))
				if drops++; drops%2 == 0 {
					e.Store.OrderSome(1, time.Now()) // another one has begun it anew
				}
			}
			e.Unlock()
			runtime.Gosched()
		}
	}()
	ids, q := make(map[string]bool), portable.Query{Pass: portable.InMemory}
	for {
		part, err := portable.Read(t.Context(), e, &q)
		if err != nil {
			t.Error(err)
			break
		}
		for _, item := range part.Items {
			ids[item.ID] = true
		}
		if part.Last == nil {
			break
		}
		q.From = *part.Last
	}
	close(over)
	drops := <-dropped
	if len(ids) != count {
		t.Errorf("%d of %d tasks are exported; the order was dropped %d times", len(ids), count, drops)
	}
	if drops == 0 {
		t.Error("the order was never dropped")
	}
}
