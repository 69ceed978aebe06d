package engine

import (
	"sync"
	"sync/atomic"
)

// A worker takes the lock once a task, and during a backlog there are a thousand of them. If all
// waited for it, the wheel, and the worker of another topic, would wait for a thousand tasks each
// time. So one worker of a topic at a time waits for the lock. A worker that finds it free takes
// it at once, which is cheapest, unless the wheel or a worker of another topic waits.

// A gate is where the workers of a topic wait for their turn to wait for Engine.mu.
type gate struct {
	sync.Mutex
	waits atomic.Bool // one of them waits for Engine.mu
}

// lockForWorker locks mu for a worker of a topic.
func (s *Engine) lockForWorker(t *Topic) {
	others := s.Life.waiting.Load()
	if t.gate.waits.Load() {
		others--
	}
	if others <= 0 && s.mu.TryLock() {
		return
	}
	t.gate.Lock()
	t.gate.waits.Store(true)
	s.lockFirst()
	t.gate.waits.Store(false)
	t.gate.Unlock()
}

// lockFirst locks mu. Meanwhile no worker passes by.
func (s *Engine) lockFirst() {
	s.Life.waiting.Add(1)
	s.mu.Lock()
	s.Life.waiting.Add(-1)
}
