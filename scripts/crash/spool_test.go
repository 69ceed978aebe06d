//go:build fault

package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// TestSpool takes Redis away from a server that has a spool, killed or stopped. Tasks that are
// scheduled meanwhile are answered 202 and delivered in time. Then the server is killed too. Once
// Redis and the server are back, the spooled tasks are delivered, each once.
func TestSpool(t *testing.T) {
	t.Parallel()
	for how, away := range map[string]func(s *server) (back func()){
		"Killed":  func(s *server) func() { s.redis.Kill(); return s.redis.Start },
		"Stopped": func(s *server) func() { s.redis.Pause(); return s.redis.Resume },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := onRedis(t)
			s.flags = []string{"--spool", filepath.Join(t.TempDir(), "spool"), "--failover-after", "1500ms"}
			r := s.start()
			r.ready(t)
			sp := &spooling{t: t, history: NewHistory()}
			sp.schedule(r, 200, 5*time.Second) // Redis has these
			back := away(s)
			out := time.Now()
			every(t, 50*time.Millisecond, 10*time.Second, func() bool { return sp.probe(r) })
			t.Logf("the spool took over after %v", time.Since(out).Round(time.Millisecond))

			sp.schedule(r, 300, time.Second)    // delivered in the outage
			sp.schedule(r, 300, 25*time.Second) // after it
			sp.batch(r, 1000, 2*time.Second)    // in it
			sp.batch(r, 1000, 26*time.Second)   // after it
			if sp.spooled < 2000 {
				t.Errorf("of 2,600 tasks, %d were spooled", sp.spooled)
			}
			body := []byte(`{"id":"chosen","topic":"` + topic + `","delay":"1h"}`)
			if status, _, err := r.call(http.MethodPost, "/v1/tasks", body, nil); err != nil || status != http.StatusServiceUnavailable {
				t.Errorf("a task with a chosen id: %d, %v, want 503", status, err)
			}

			stop := sp.pull(s, 2)
			due := time.Now().Add(5 * time.Second)
			every(t, 50*time.Millisecond, 15*time.Second, func() bool { return sp.acknowledged(due) >= 1500 })
			t.Logf("%d were delivered and acknowledged without Redis", sp.acknowledged(due))
			stop()
			s.kill()
			back()
			s.start().ready(t)
			stop = sp.pull(s, 2)
			drained(t, s, sp.history, time.Minute)
			stop()

			var stats struct{ Spool struct{ Tasks, Moved int } }
			if status, _, err := s.latest().call(http.MethodGet, "/v1/stats", nil, &stats); outcome(status, err) != Done || stats.Spool.Tasks != 0 {
				t.Errorf("stats: %d, %v, %+v", status, err, stats)
			}
			v := Judge(sp.history)
			t.Logf("%d spooled; after the restart %d were moved to Redis: %v", sp.spooled, stats.Spool.Moved, v)
			if len(v.Faults) > 0 {
				t.Errorf("%d promises were broken", len(v.Faults))
			}
		})
	}
}

// spooling is a load of tasks that leave their ids to the server.
type spooling struct {
	t       *testing.T
	history *History
	last    int // number of the last task
	spooled int // so many were answered 202, or listed as spooled
}

func (sp *spooling) next(due time.Time) (n int, body string) {
	sp.last++
	return sp.last, fmt.Sprintf(`{"topic":%q,"due_at":%q,"payload":{"n":%d}}`, topic, rig.Wire(due), sp.last)
}

// probe schedules a task that is due in an hour, in another topic, and reports whether it was
// spooled.
func (sp *spooling) probe(r *run) bool {
	status, _, err := r.call(http.MethodPost, "/v1/tasks", []byte(`{"topic":"other","delay":"1h"}`), nil)
	return err == nil && status == http.StatusAccepted
}

// schedule schedules tasks one by one, all due after a while.
func (sp *spooling) schedule(r *run, n int, after time.Duration) {
	sp.t.Helper()
	due := time.Now().Add(after).Truncate(time.Millisecond)
	for range n {
		number, body := sp.next(due)
		var answer struct{ Durability string }
		status, span, err := r.call(http.MethodPost, "/v1/tasks", []byte(body), &answer)
		if outcome(status, err) != Done || (status == http.StatusAccepted) != (answer.Durability == "spooled") {
			sp.t.Fatalf("task %d: %d, %v, %+v", number, status, err, answer)
		}
		if status == http.StatusAccepted {
			sp.spooled++
		}
		sp.history.Change(number, Change{Span: span, Kind: Create, Outcome: Done, Due: due})
	}
}

// batch schedules all of them at once.
func (sp *spooling) batch(r *run, n int, after time.Duration) {
	sp.t.Helper()
	due := time.Now().Add(after).Truncate(time.Millisecond)
	body, first := []byte{'['}, sp.last+1
	for i := range n {
		_, one := sp.next(due)
		body = append(body, ","[:min(i, 1)]+one...)
	}
	var answer struct{ IDs, Spooled []string }
	status, span, err := r.call(http.MethodPost, "/v1/tasks/batch", append(body, ']'), &answer)
	if outcome(status, err) != Done || len(answer.IDs) != n {
		sp.t.Fatalf("a batch: %d, %v, %d ids", status, err, len(answer.IDs))
	}
	sp.spooled += len(answer.Spooled)
	for i := range n {
		sp.history.Change(first+i, Change{Span: span, Kind: Create, Outcome: Done, Due: due})
	}
}

// pull starts receivers, which acknowledge every task.
func (sp *spooling) pull(s *server, n int) (stop func()) {
	ctx, cancel := context.WithCancel(sp.t.Context())
	var all sync.WaitGroup
	for i := range n {
		w := &receiver{t: sp.t, rng: rand.New(rand.NewPCG(3, uint64(i))), server: s, history: sp.history, careful: true}
		all.Go(func() { w.work(ctx) })
	}
	return func() { cancel(); all.Wait() }
}

// acknowledged counts the tasks due before then that were delivered and acknowledged.
func (sp *spooling) acknowledged(due time.Time) (n int) {
	sp.history.mu.Lock()
	defer sp.history.mu.Unlock()
	for _, task := range sp.history.tasks {
		for _, d := range task.Deliveries {
			if d.Due.Before(due) && d.find(Ack, Done) != nil {
				n++
				break
			}
		}
	}
	return n
}
