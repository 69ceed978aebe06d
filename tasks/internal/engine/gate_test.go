package engine

import (
	"runtime"
	"sync"
	"testing"
)

// However many workers of a topic want the lock, the wheel does not wait for all of them.
func TestWheelPassesWorkers(t *testing.T) {
	const workers = 200
	var s Engine
	topic := &Topic{gate: new(gate)}
	var running sync.WaitGroup
	var order []bool // whether it was the wheel, guarded by Mu
	waiting := func(n int32) {
		for s.Life.waiting.Load() < n {
			runtime.Gosched()
		}
	}
	s.Mu.Lock()
	for range workers {
		running.Go(func() {
			s.lockForWorker(topic)
			order = append(order, false)
			s.Mu.Unlock()
		})
	}
	waiting(1)
	running.Go(func() {
		s.lockFirst()
		order = append(order, true)
		s.Mu.Unlock()
	})
	waiting(2)
	s.Mu.Unlock()
	running.Wait()
	for i, wheel := range order {
		if wheel && i > workers/2 {
			t.Errorf("the wheel was number %d of %d", i+1, len(order))
		}
	}
}
