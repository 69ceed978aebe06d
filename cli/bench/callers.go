package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// share lets callers work through 0 to n-1, in pieces of up to size. The first
// error ends it.
func share(ctx context.Context, n, size, callers int, work func(ctx context.Context, caller, from, to int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for ctx.Err() == nil {
				to := int(next.Add(int64(size)))
				from := to - size
				if from >= n {
					return
				}
				if err := work(ctx, caller, from, min(to, n)); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// A maker makes the tasks of one round in buffers that it uses again. Each caller
// has its own.
type maker struct {
	tasks []Task
	buf   []byte
}

// batch makes the tasks from..to-1 of a round. They are valid until the next call.
func (m *maker) batch(round, from, to, size int, due func(i int) time.Time) []Task {
	m.tasks, m.buf = m.tasks[:0], m.buf[:0]
	for i := from; i < to; i++ {
		m.buf = appendPayload(m.buf, round, i, size)
	}
	for i := range to - from {
		m.tasks = append(m.tasks, Task{Due: due(from + i), Payload: m.buf[i*size : (i+1)*size : (i+1)*size]})
	}
	return m.tasks
}
