//go:build fault

package crash

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// TestMainJob does the main job of Lapse at full size. LAPSE_TASKS tasks (50,000 unless set) are
// scheduled over HTTP, half of them for one instant, half spread over 30 s. The server is killed
// three times: while it accepts, when it has accepted all, and while it delivers. Every task is
// delivered in the end.
func TestMainJob(t *testing.T) {
	t.Parallel()
	onBoth(t, mainJob)
}

func mainJob(t *testing.T, s *server) {
	n := 50_000
	if text := os.Getenv("LAPSE_TASKS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1000 {
			t.Fatalf("LAPSE_TASKS must be a number from 1000: %q", text)
		}
	}
	const senders, receivers = 4, 4
	j := &job{t: t, server: s, began: time.Now(), state: make([]fate, n)}
	j.nextBatch.Store(-1)

	// Accept; the first crash comes half-way.
	r := j.server.start()
	r.ready(t)
	var working sync.WaitGroup
	began := time.Now()
	for range senders {
		working.Go(j.send)
	}
	every(t, time.Millisecond, 10*time.Minute, func() bool { return int(j.accepted.Load()) >= n/2 })
	half := time.Since(began)
	rate := float64(j.accepted.Load()) / half.Seconds()
	j.server.kill()
	restarted := time.Now()
	r = j.server.start()
	r.ready(t)
	t.Logf("accepted at %.0f tasks/s over HTTP until the first crash; ready again %s after it, with %d pending",
		rate, time.Since(restarted).Round(time.Millisecond), j.accepted.Load())
	working.Wait()
	t.Logf("all %d accepted, %d of them answered twice; %d MB resident", n, j.repeated.Load(), r.resident(t))

	// All pending, some overdue: the second crash.
	j.server.kill()
	restarted = time.Now()
	r = j.server.start()
	pulling, stopPulling := context.WithCancel(t.Context())
	defer stopPulling()
	for range receivers {
		working.Go(func() { j.pull(pulling) })
	}
	r.ready(t)
	ready := time.Since(restarted)
	every(t, time.Millisecond, time.Minute, func() bool { return j.first.Load() != 0 })
	t.Logf("ready %s after the start with %d pending; the first overdue task was received after %s; %d MB resident",
		ready.Round(time.Millisecond), n, time.Unix(0, j.first.Load()).Sub(restarted).Round(time.Millisecond), r.resident(t))

	// Half of them delivered: the third crash.
	every(t, time.Millisecond, 10*time.Minute, func() bool { return int(j.finished.Load()) >= n/2 })
	j.server.kill()
	restarted = time.Now()
	r = j.server.start()
	r.ready(t)
	ready = time.Since(restarted)
	// The clock starts at the last deadline if that is still to come.
	from := time.Now()
	if last := j.due(0); from.Before(last) {
		from = last
	}
	before := j.finished.Load()
	every(t, 10*time.Millisecond, 10*time.Minute, func() bool { return int(j.finished.Load()) >= n })
	drained := time.Since(from)
	// An acknowledgement that was not recorded may have to be repeated, after the lease of 60 s.
	var left []pulled
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); <-time.After(100 * time.Millisecond) {
		var list struct{ Tasks []pulled }
		status, _, err := r.call(http.MethodGet, "/v1/tasks", nil, &list)
		if left = list.Tasks; outcome(status, err) == Done && len(left) == 0 {
			break
		}
	}
	stopPulling()
	working.Wait()
	if len(left) > 0 {
		t.Errorf("the server still lists %d tasks, the first is %+v", len(left), left[0])
	}
	t.Logf("ready %s after the third crash; the last %d pulled and acknowledged over HTTP in %s",
		ready.Round(time.Millisecond), int64(n)-before, drained.Round(time.Millisecond))

	t.Logf("busiest second: %d acknowledged; delivered again %d, early %d, without a reason %d, lost 0",
		j.busiest(), j.again, j.early, j.wrong)
	if j.early+j.wrong > 0 {
		t.Error("promises were broken")
	}
}

// A job is the state of TestMainJob.
type job struct {
	t      *testing.T
	server *server
	began  time.Time

	nextBatch atomic.Int64
	accepted  atomic.Int64
	repeated  atomic.Int64
	finished  atomic.Int64 // acknowledged, or perhaps: the ack was not answered
	first     atomic.Int64 // Unix nanoseconds of the first delivery

	mu                  sync.Mutex // guards what follows
	state               []fate
	again, early, wrong int
	seconds             [3600]int // acknowledged, by second since the start
}

// A fate is the outcome of a task.
type fate struct {
	run uint8   // in which it was delivered last
	ack Outcome // of its acknowledgement: Done once it is recorded
}

const batchSize = 5000

// due: every other task falls due at one instant, the rest over 30 s, the first
// of them before they are scheduled.
func (j *job) due(i int) time.Time {
	after := 20 * time.Second
	if i%2 == 1 {
		after = time.Duration(i%30_000-1000) * time.Millisecond
	}
	return j.began.Add(after).Truncate(time.Millisecond)
}

// send schedules one batch after the other. A batch without an answer, or answered in part with
// 503, as on a busy machine, is sent again; the ids make that safe.
func (j *job) send() {
	var body bytes.Buffer
	r := j.server.after(j.t.Context(), 0)
	for r != nil {
		from := int(j.nextBatch.Add(1)) * batchSize
		to := min(from+batchSize, len(j.state))
		if from >= to {
			return
		}
		body.Reset()
		for i := from; i < to; i++ {
			fmt.Fprintf(&body, "%c{\"id\":\"job-%d\",\"topic\":%q,\"due_at\":%q,\"payload\":{\"n\":%d,\"text\":\"a payload of some size, as they are\"}}",
				"[,"[min(i-from, 1)], i, topic, rig.Wire(j.due(i)), i)
		}
		body.WriteByte(']')
		for again := false; ; again = true {
			var answer struct {
				Accepted int
				Errors   []struct{ Problem struct{ Status int } }
			}
			status, _, err := r.call(http.MethodPost, "/v1/tasks/batch", body.Bytes(), &answer)
			for _, e := range answer.Errors {
				if e.Problem.Status != http.StatusServiceUnavailable {
					j.t.Errorf("a task of a batch was answered %d", e.Problem.Status)
					return
				}
			}
			if got := outcome(status, err); got == Done && len(answer.Errors) == 0 {
				if answer.Accepted != to-from {
					j.t.Errorf("a batch of %d: %d accepted", to-from, answer.Accepted)
				}
				j.accepted.Add(int64(to - from))
				if again {
					j.repeated.Add(int64(to - from))
				}
				break
			} else if got == Refused {
				j.t.Errorf("a batch was answered %d", status)
				return
			}
			if r = j.server.again(j.t.Context(), r); r == nil {
				return
			}
		}
	}
}

// pull reserves and acknowledges until it is stopped.
func (j *job) pull(ctx context.Context) {
	r := j.server.after(ctx, j.server.latest().n-1)
	for r != nil && ctx.Err() == nil {
		var answer struct{ Tasks []pulled }
		status, span, err := r.call(http.MethodPost, "/v1/topics/"+topic+"/reserve", []byte(`{"max":1000,"wait":"1s","lease":"60s"}`), &answer)
		if outcome(status, err) == Done && len(answer.Tasks) > 0 {
			j.deliver(answer.Tasks, span)
			err = j.ack(r, uint8(span.Run), answer.Tasks)
		}
		if err != nil {
			r = j.server.again(ctx, r)
		} else if status >= 300 && status != http.StatusServiceUnavailable {
			j.t.Errorf("reserve answered %d", status)
			return
		}
	}
}

func (j *job) deliver(list []pulled, span Span) {
	j.first.CompareAndSwap(0, span.End.UnixNano())
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, p := range list {
		f := &j.state[p.Payload.N]
		if !p.DueAt.Equal(j.due(p.Payload.N)) || span.End.Before(p.DueAt) {
			j.early++
		}
		switch {
		case uint8(span.Run) < f.run: // this answer came before that of the later run
			j.again++
			continue
		case f.ack == Done, f.run == uint8(span.Run):
			j.blame(p, "delivered in run %d, as in run %d, acknowledgement %v", span.Run, f.run, f.ack)
		case f.run != 0:
			j.again++
		}
		if f.ack == Unknown { // it was not recorded
			f.ack = 0
			j.finished.Add(-1)
		}
		f.run = uint8(span.Run)
	}
}

// ack acknowledges the deliveries of a run. It returns an error if there was no answer.
func (j *job) ack(r *run, delivered uint8, list []pulled) error {
	receipts := make([]string, len(list))
	for i, p := range list {
		receipts[i] = p.Receipt
	}
	body, err := json.Marshal(map[string]any{"receipts": receipts})
	if err != nil {
		return err
	}
	var answer settledAnswer
	status, _, err := r.call(http.MethodPost, "/v1/receipts/ack", body, &answer)
	each := answer.outcomes(outcome(status, err), len(list))
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, p := range list {
		f := &j.state[p.Payload.N]
		switch {
		case f.run != delivered && each[i].outcome == Unknown:
			continue // the next run has delivered it before this one was known to have ended
		case each[i].outcome == Refused, f.ack != 0, f.run != delivered:
			j.blame(p, "the acknowledgement in run %d was answered %v; delivered last in run %d, acknowledgement %v before", delivered, each[i].outcome, f.run, f.ack)
			continue
		case each[i].recorded:
			f.ack = Done
		default:
			f.ack = Unknown
		}
		j.finished.Add(1)
		j.seconds[int(time.Since(j.began).Seconds())]++
	}
	return err
}

// blame counts a broken promise, and logs the first ones.
func (j *job) blame(p pulled, format string, args ...any) {
	if j.wrong++; j.wrong <= 10 {
		j.t.Errorf("task %d: %s", p.Payload.N, fmt.Sprintf(format, args...))
	}
}

func (j *job) busiest() int {
	most := 0
	for _, n := range j.seconds {
		most = max(most, n)
	}
	return most
}

var residentLine = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// resident is the memory of the process in MB; 0 if the system does not report it.
func (r *run) resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Cmd.Process.Pid))
	if err != nil {
		return 0
	}
	m := residentLine.FindSubmatch(text)
	if m == nil {
		return 0
	}
	kb, _ := strconv.Atoi(string(m[1])) // digits
	return kb >> 10
}
