package engine

import (
	"runtime"
	"sync"
	"testing"
)

// However many workers of a topic want the lock, the wheel waits for it beside one of them.
func TestWheelPassesWorkers(t *testing.T) {
	const workers = 200
	var s Engine
	topic := &Topic{gate: new(gate)}
	var running sync.WaitGroup
	most := int32(0) // that have waited at the same time, guarded by mu
	look := func() { most = max(most, s.Life.waiting.Load()) }
	s.mu.Lock()
	for range workers {
		running.Go(func() {
			s.lockForWorker(topic)
			look()
			s.mu.Unlock()
		})
	}
	running.Go(func() {
		s.lockFirst()
		look()
		s.mu.Unlock()
	})
	for s.Life.waiting.Load() < 2 {
		runtime.Gosched()
	}
	for range workers { // each may come as far as it gets
		runtime.Gosched()
	}
	look()
	s.mu.Unlock()
	running.Wait()
	if most != 2 {
		t.Errorf("%d have waited for the lock, want the wheel and one worker", most)
	}
}
