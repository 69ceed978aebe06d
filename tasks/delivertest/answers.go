package delivertest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// testSuccess: tasks of all sorts arrive once, on time and unchanged.
func testSuccess(f *fixture) {
	f.start(nil)
	payloads := [][]byte{
		nil,
		[]byte(`{"order":42}`),
		[]byte(" \r\n\t{\"order\" : 42}\n"),
		[]byte(`"naïve ☃ 𝄞"`),
		[]byte("\x00\x01\xff\xfe no text at all \x7f"),
		[]byte("*3\r\n$3\r\nDEL\r\n"),
		bytes.Repeat([]byte("x"), 64<<10),
	}
	var reqs []tasks.Request
	for i := range 60 {
		r := tasks.Request{
			ID: fmt.Sprintf("Order.%d:of@shop_1-x", i), Topic: subject, Payload: payloads[i%len(payloads)],
			Due: now().Add(time.Duration(i%5) * 150 * time.Millisecond),
		}
		if i%5 == 0 {
			r.Due = now().Add(-time.Hour)
		}
		if i%3 == 0 {
			r.Headers = map[string]string{
				"tenant": "eu", "trace": strings.Repeat("0af7", 8),
				"traceparent": "00-" + strings.Repeat("0af7", 8) + "-00f067aa0ba902b7-01", "tracestate": "vendor=1",
			}
		}
		reqs = append(reqs, r)
	}
	f.ask(reqs...)
	f.finish()
	if c := f.counts(); c.Delivered != 60 || c.Failed != 0 {
		f.Errorf("%d of 60 tasks were delivered, %d attempts failed", c.Delivered, c.Failed)
	}
}

// testFailure: a task whose attempts fail is tried again after a pause that grows, and delivered
// when that is possible.
func testFailure(f *fixture) {
	f.start(func(set *tasks.TopicSettings) {
		set.Retry = tasks.Retry{MinBackoff: time.Hour, MaxBackoff: 3 * time.Hour}
	})
	f.fault(Refuse)
	id := f.schedule(0, "failing", 1)[0]
	f.hurry(id)
	for n, most := range []time.Duration{2 * time.Hour, 3 * time.Hour, 3 * time.Hour} {
		failed := f.failed(id, n+1)
		task := f.get(id)
		pause := task.Next.Sub(failed)
		if task.State != tasks.Pending || task.Attempt != n+1 || task.LastError == "" ||
			pause < time.Hour-slack || pause > most+slack {
			f.Fatalf("after failure %d it is %v with attempt %d and the error %q, and waits %v", n+1, task.State, task.Attempt, task.LastError, pause)
		}
		if n == 2 {
			f.fault(None)
		}
		f.fire(id)
	}
	f.finish()
}

// testExhausted: the last attempt that fails makes a task dead. A dead task that is requeued has
// all its attempts again.
func testExhausted(f *fixture) {
	f.start(func(set *tasks.TopicSettings) { set.Retry.MaxAttempts = 3 })
	f.fault(Refuse)
	f.schedule(0, "hopeless", 30)
	f.finish()
	if c := f.counts(); c.Dead != 30 || c.Died != 30 || c.Failed != 90 || c.Delivered != 0 {
		f.Fatalf("30 tasks that fail three times: %+v", c)
	}
	f.fault(None)
	f.history.begin()
	if done, err := f.s.Admin().Requeue(f.Context(), subject, tasks.Requeue{}); err != nil || done.Requeued != 30 {
		f.Fatalf("Requeue = %+v, %v", done, err)
	}
	f.finish()
	if c := f.counts(); c.Dead != 0 || c.Delivered != 30 {
		f.Errorf("after they were requeued: %+v", c)
	}
}

// testKilled: a receiver can make any attempt the last one.
func testKilled(f *fixture) {
	f.needs(Kill)
	f.start(nil)
	f.receiver.play(func(_ Arrival, n int) Answer {
		if n < 2 {
			return Answer{Say: Fail, Why: "once more"}
		}
		return Answer{Say: Bury, Why: "gone for good"}
	})
	ids := f.schedule(0, "killed", 10)
	f.finish()
	for _, id := range ids {
		if t := f.get(id); t == nil || t.State != tasks.Dead || t.Attempt != 2 {
			f.Errorf("%s was buried by its second attempt: %+v", id, t)
		}
	}
}

// testPaused: a receiver that names a time is called then, not before.
func testPaused(f *fixture) {
	f.needs(Pause)
	f.start(nil)
	f.receiver.play(func(_ Arrival, n int) Answer {
		switch n {
		case 1:
			return Answer{Say: Wait, Pause: time.Hour}
		case 2:
			return Answer{Say: Wait, Pause: time.Second}
		}
		return Answer{Say: Accept}
	})
	id := f.schedule(0, "paused", 1)[0]
	f.hurry(id)
	failed := f.failed(id, 1)
	if pause := f.get(id).Next.Sub(failed); pause < time.Hour-slack || pause > time.Hour+slack {
		f.Fatalf("asked to wait for an hour, it waits %v", pause)
	}
	f.fire(id)
	f.finish()
	f.history.each(func(_ string, st *story) {
		if a := st.arrivals; len(a) == 3 && a[2].At.Sub(a[1].answered) < time.Second-slack {
			f.Errorf("asked to wait for a second, it came after %v", a[2].At.Sub(a[1].answered))
		}
	})
}

// failed waits until the n-th attempt of a task has failed, and returns when that was.
func (f *fixture) failed(id string, n int) (at time.Time) {
	f.Helper()
	f.wait(fmt.Sprintf("attempt %d of %s has failed", n, id), func() bool {
		f.history.mu.Lock()
		defer f.history.mu.Unlock()
		count, last := f.history.story(id).count(tasks.EventRetried)
		at = last.At
		return count == n
	})
	return at
}

// hurry records that the test cuts a task's pauses short.
func (f *fixture) hurry(id string) {
	f.history.mu.Lock()
	defer f.history.mu.Unlock()
	f.history.story(id).hurried = true
}

func (f *fixture) fire(id string) {
	f.Helper()
	if _, err := f.s.Fire(f.Context(), id); err != nil {
		f.Fatalf("Fire(%s): %v", id, err)
	}
}
