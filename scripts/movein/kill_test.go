//go:build fault

package movein

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/beanstalkd/go-beanstalk"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// once checks that each of the deliveries is the only one, and that each of so many things has
// one, unless it was too late for that.
func once(t *testing.T, got map[string]int, things int, id func(i int) string, tooLate func(i int) bool) {
	t.Helper()
	lost, twice := 0, 0
	for i := range things {
		switch n := got[id(i)]; {
		case n == 0 && !tooLate(i):
			lost++
		case n > 1:
			twice++
		}
		delete(got, id(i))
	}
	if lost > 0 || twice > 0 || len(got) > 0 {
		t.Errorf("of %d: %d lost, %d delivered twice, %d others delivered", things, lost, twice, len(got))
	}
}

// An import of keys is killed at random, while what it has imported is delivered.
func TestKilledRedis(t *testing.T) {
	keys := number(t, "LAPSE_TASKS", 100_000)
	l, source := serve(t), redistest.Start(t)
	began := time.Now()
	deadline := func(i int) time.Duration { return 15*time.Second + time.Duration(i)*10*time.Second/time.Duration(keys) }
	fill(t, source.Client(), "order", 0, keys, deadline)
	r := l.receive(t, "order.expired")
	args := []string{"redis", "--from", source.URL(), "--match", "order:*", "--topic", "order.expired"}
	kills := l.killed(t, 300*time.Millisecond, args...)
	done := time.Since(began)
	for time.Since(began) < 26*time.Second { // of what is there already, and is delivered meanwhile
		kills += l.killed(t, 300*time.Millisecond, args...)
	}
	wait(t, "end of all tasks", func() bool { return time.Since(began) > 26*time.Second && l.left(t, "order.expired") == 0 })
	once(t, r.end(), keys, func(i int) string { return fmt.Sprint("order:", i) }, func(i int) bool {
		return done > deadline(i) // it has expired in Redis before it was imported
	})
	t.Logf("%d keys, %d kills, imported after %s", keys, kills, done.Round(time.Millisecond))
}

// An import of jobs is killed at random. What is ready is delivered at once.
func TestKilledBeanstalkd(t *testing.T) {
	const ready, delayed = 20_000, 1000
	l, addr := serve(t), beanstalkd(t)
	conn, err := beanstalk.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := range ready + delayed {
		// Some tubes, as their connections are imported side by side.
		tube, delay := beanstalk.NewTube(conn, fmt.Sprint("tube", i%3)), time.Duration(0)
		if i >= ready {
			delay = 10*time.Minute + time.Duration(i)*time.Second
		}
		if _, err := tube.Put([]byte(strconv.Itoa(i)), 0, delay, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	r := l.receive(t, "jobs")
	kills := l.killed(t, 100*time.Millisecond, "beanstalkd", "--from", addr, "--topic", "jobs")
	wait(t, "end of what was ready", func() bool { return l.left(t, "jobs") == delayed })
	jobs := map[string]int{}
	for task, err := range l.All(t.Context(), client.Query{Topic: "jobs"}) {
		if err != nil {
			t.Fatal(err)
		}
		jobs[string(task.Payload)]++
	}
	got := r.end()
	for id, n := range got {
		if n > 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	if len(got) != ready {
		t.Errorf("%d were delivered, want %d", len(got), ready)
	}
	once(t, jobs, ready+delayed, strconv.Itoa, func(i int) bool { return i < ready })
	stats, err := conn.Stats()
	if err != nil || stats["current-jobs-ready"] != "0" || stats["current-jobs-delayed"] != "0" {
		t.Errorf("left in beanstalkd: %v, %v", stats, err)
	}
	t.Logf("%d jobs, %d kills", ready+delayed, kills)
}
