//go:build fault

package crash

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestSuspended stops the process for ten seconds, as a hypervisor does with a machine, and
// measures how soon afterwards the tasks that fell due meanwhile are delivered.
func TestSuspended(t *testing.T) {
	const n, asleep = 5000, 10 * time.Second
	s := newServer(t)
	r := s.start()
	r.ready(t)
	h := NewHistory()
	began := time.Now()
	orders := make([]order, n)
	for i := range orders {
		// All fall due while the process is stopped.
		orders[i] = order{n: i, due: began.Add(2*time.Second + time.Duration(i)*time.Millisecond).Truncate(time.Millisecond)}
	}
	status, span, err := r.call(http.MethodPost, "/v1/tasks/batch", batchBody(orders), nil)
	if outcome(status, err) != Done {
		t.Fatalf("batch answered %d, %v", status, err)
	}
	for _, o := range orders {
		h.Change(o.n, Change{Span: span, Kind: Create, Outcome: Done, Due: o.due})
	}

	r.Signal(syscall.SIGSTOP)
	<-time.After(asleep) // the test is about this time
	woken := time.Now()
	r.Signal(syscall.SIGCONT)
	pulling, stopPulling := context.WithCancel(t.Context())
	defer stopPulling()
	var pulls sync.WaitGroup
	for i := range 2 {
		w := &receiver{t: t, rng: rand.New(rand.NewPCG(1, uint64(i))), server: s, history: h, careful: true}
		pulls.Go(func() { w.work(pulling) })
	}
	drained(t, s, h, 30*time.Second)
	stopPulling()
	pulls.Wait()

	v := Judge(h)
	var first, last time.Duration
	h.mu.Lock()
	for _, task := range h.tasks {
		for _, d := range task.Deliveries {
			after := d.End.Sub(woken)
			last = max(last, after)
			if first == 0 || after < first {
				first = after
			}
		}
	}
	h.mu.Unlock()
	t.Logf("after %s asleep, the first of %d was received after %s, the last after %s: %v", asleep, n,
		first.Round(time.Millisecond), last.Round(time.Millisecond), v)
	if len(v.Faults) > 0 {
		t.Errorf("%d promises were broken", len(v.Faults))
	}
	// One sweep period, and time to deliver them on a busy machine.
	if last > 5*time.Second {
		t.Errorf("the last one was received %s after the process had woken up", last)
	}
}

// TestStopIdle: asked to stop, a server with only an open long-poll and a silent connection answers
// the poll and ends within 5 s.
func TestStopIdle(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			r := s.start()
			r.ready(t)
			silent := dial(t, r)
			defer silent.Close()
			polled := openPoll(t, r)
			asked := time.Now()
			r.Signal(sig)
			if err := <-polled; err != nil {
				t.Errorf("the long-poll was not answered well: %v", err)
			}
			<-r.Exited
			took := time.Since(asked)
			t.Logf("stopped after %s", took.Round(time.Millisecond))
			if code := r.Cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("exit code %d\n%s", code, tail(r.stderr.Bytes()))
			}
			if took > 5*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

// TestSecondProcess: a data directory and an address have one server. The second one reports that
// in a line, and the first one is not affected.
func TestSecondProcess(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r := s.start()
	r.ready(t)
	for name, args := range map[string][]string{
		"data":    {"--listen", "127.0.0.1:0", "--data", s.data},
		"address": {"--listen", strings.TrimPrefix(r.base, "http://"), "--data", t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			second := command(append([]string{"serve"}, args...)...)
			out, err := second.CombinedOutput()
			if code := second.ProcessState.ExitCode(); err == nil || code != 3 {
				t.Errorf("exit code %d, want 3", code)
			}
			if lines := strings.Count(string(out), "\n"); lines != 1 {
				t.Errorf("want one line, got %d:\n%s", lines, out)
			}
			t.Logf("%s", out)
		})
	}
	if status, _, err := r.call(http.MethodPost, "/v1/tasks", []byte(`{"topic":"crash","delay":"1h"}`), nil); outcome(status, err) != Done {
		t.Errorf("the first server answered %d, %v", status, err)
	}
	// Killed without any clean-up, it leaves nothing that prevents the next start.
	s.kill()
	s.start().ready(t)
}

// openPoll sends a reserve call and returns once its handler has begun. The channel returns the
// result.
func openPoll(t *testing.T, r *run) <-chan error {
	t.Helper()
	atWork := make(chan struct{})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		// Sent when the handler begins to read the body.
		Got100Continue: func() { close(atWork) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+"/v1/topics/"+topic+"/reserve", strings.NewReader(`{"max":1,"wait":"60s"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Expect", "100-continue")
	polled := make(chan error, 1)
	go func() {
		resp, err := (&http.Transport{ExpectContinueTimeout: time.Minute}).RoundTrip(req)
		if err != nil {
			polled <- err
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"tasks":[]`)) {
			err = fmt.Errorf("status %d, %s", resp.StatusCode, body)
		}
		polled <- err
	}()
	select {
	case <-atWork:
	case err := <-polled:
		t.Fatalf("the long-poll ended at once: %v", err)
	}
	return polled
}
