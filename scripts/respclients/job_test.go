//go:build fault

package respclients

import (
	"fmt"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

const (
	// failoverAfter is short, so that a node's death is noticed within a test.
	failoverAfter = 1500 * time.Millisecond
	// onTime is how late an event may be where nothing has happened. It is generous: the machine of
	// the test is busy. The figures are logged.
	onTime = 3 * time.Second
	// noticed is how long the effects of a fault last at most after its end: nodes take over from
	// others, and clients connect again.
	noticed = 8 * time.Second
)

// A job is a test: programs that set keys, hear of their expiry and acknowledge it.
type job struct {
	t       *testing.T
	nodes   []*node
	guarded bool // callers have tokens, whose texts are their names

	mu     sync.Mutex // guards what follows
	due    map[string]span
	gone   map[string]bool // deleted
	heard  map[string][]time.Time
	got    map[string][]time.Time // by workers
	acked  map[string]int         // acknowledgements that were counted
	tried  map[string]time.Time   // when a worker began to acknowledge last
	faults []fault
	failed []string // lines that make no sense
}

// A span is two instants.
type span struct{ from, to time.Time }

// A fault is what has happened to a program.
type fault struct {
	span
	of func(key string) bool // the keys that it can be noticed of
}

func newJob(t *testing.T, nodes ...*node) *job {
	return &job{
		t: t, nodes: nodes, due: map[string]span{}, gone: map[string]bool{}, heard: map[string][]time.Time{},
		got: map[string][]time.Time{}, acked: map[string]int{}, tried: map[string]time.Time{},
	}
}

// as returns the password of a caller; "" where none is asked for.
func (j *job) as(name string) string {
	if !j.guarded {
		return ""
	}
	return name
}

// dial returns a client of a node for a caller.
func (j *job) dial(name, addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, Password: j.as(name), ReadTimeout: 3 * time.Second, MaxRetries: -1, DialTimeout: time.Second})
}

// newFleetJob starts three nodes on one Redis, with more arguments.
func newFleetJob(t *testing.T, more ...string) (*job, *redistest.Server) {
	ledger := redistest.Start(t, "appendonly yes")
	var nodes []*node
	for _, name := range []string{"a", "b", "c"} {
		nodes = append(nodes, newNode(t, name, slices.Concat(more, []string{"--redis", ledger.URL(), "--failover-after", failoverAfter.String()})...))
	}
	return newJob(t, nodes...), ledger
}

// addresses returns the addresses of all nodes, beginning with one of them.
func (j *job) addresses(first int) (list []string) {
	for i := range j.nodes {
		list = append(list, j.nodes[(first+i)%len(j.nodes)].redis)
	}
	return list
}

// createGroup makes the topic of jobs a stream that is read.
func (j *job) createGroup() {
	j.t.Helper()
	c := j.dial("admin", j.nodes[0].redis)
	defer c.Close()
	if err := c.XGroupCreateMkStream(j.t.Context(), "expired:jobs", "workers", "$").Err(); err != nil {
		j.t.Fatal(err)
	}
	// Entries of a node that has died are there again after the lease of the topic.
	req, _ := http.NewRequest(http.MethodPatch, "http://"+j.nodes[0].http+"/v1/topics/jobs", strings.NewReader(`{"lease":"5s"}`))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+j.as("admin"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		j.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		j.t.Fatalf("PATCH answered %d", resp.StatusCode)
	}
}

// read has the lines of a program noted until it ends.
func (j *job) read(s *script, note func(words []string)) {
	for line := range s.lines {
		words := strings.Fields(line)
		j.mu.Lock()
		if len(words) < 2 {
			j.failed = append(j.failed, line)
		} else {
			note(words)
		}
		j.mu.Unlock()
	}
}

// noteSet notes a line of a writer.
func (j *job) noteSet(words []string) {
	if words[0] == "del" {
		j.gone[words[1]] = true
		return
	}
	j.due[words[1]] = span{instant(words[2]), instant(words[3])}
}

// instant reads Unix milliseconds.
func instant(text string) time.Time {
	ms, _ := strconv.ParseInt(text, 10, 64) // 0 is early, which the judge finds
	return time.UnixMilli(ms)
}

// noteWork notes a line of a worker.
func (j *job) noteWork(words []string) {
	switch key := words[1]; {
	case words[0] == "got":
		j.got[key] = append(j.got[key], instant(words[2]))
	case words[0] == "ack":
		j.acked[key]++
	default:
		j.tried[key] = time.Now()
	}
}

// write starts the writers, three with a client library each. wait waits until all keys are set.
func (j *job) write(keys int) (wait func()) {
	var working sync.WaitGroup
	for i, file := range []string{"python/writer.py", "node/writer.js"} {
		s := runAs(j.t, j.as("shop"), file, append([]string{path.Dir(file), strconv.Itoa(keys / 3), strconv.Itoa(i)}, j.addresses(i)...)...)
		working.Go(func() {
			j.read(s, j.noteSet)
			if <-s.ended; s.result != nil {
				j.t.Errorf("%s: %v: %s", file, s.result, &s.errs)
			}
		})
	}
	working.Go(func() { j.writeGo(keys/3, j.addresses(2)) })
	return working.Wait
}

// subscribe runs a subscriber at a node.
func (j *job) subscribe(at int) *script {
	j.t.Helper()
	s := runAs(j.t, j.as("subscriber"), "node/subscriber.js", j.nodes[at].redis)
	if line := <-s.lines; line != "subscribed 0" {
		j.t.Fatalf("the subscriber: %q: %s", line, &s.errs)
	}
	j.follow(s, func(words []string) {
		if words[0] != "subscribed" {
			j.heard[words[0]] = append(j.heard[words[0]], instant(words[1]))
		}
	})
	return s
}

// work runs a worker, whose first address is that of a node.
func (j *job) work(file, name string, at int) *script {
	j.t.Helper()
	s := runAs(j.t, j.as("worker"), file, append([]string{name}, j.addresses(at)...)...)
	j.follow(s, j.noteWork)
	return s
}

// follow has the lines of a program noted until it ends, which it must not do by itself.
func (j *job) follow(s *script, note func(words []string)) {
	var reading sync.WaitGroup
	reading.Go(func() {
		j.read(s, note)
		if <-s.ended; s.cmd.ProcessState.Exited() { // not by a signal
			j.t.Errorf("%s has ended: %s", s.cmd, &s.errs)
		}
	})
	j.t.Cleanup(func() { s.kill(); reading.Wait() })
}

// fault notes what happens, for as long as f runs, and to which keys.
func (j *job) fault(what string, of func(key string) bool, f func()) {
	from := time.Now()
	f()
	to := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faults = append(j.faults, fault{span{from, to}, of})
	j.t.Logf("%s: %s to %s; %d keys are set, %d events came", what, rig.Stamp(from), rig.Stamp(to), len(j.due), len(j.heard))
}

// troubled reports whether what happened to a key at an instant may come from a fault.
func (j *job) troubled(key string, at time.Time) bool {
	return slices.ContainsFunc(j.faults, func(f fault) bool {
		return f.of(key) && at.After(f.from.Add(-time.Second)) && at.Before(f.to.Add(noticed))
	})
}

// finish waits until every key has come, judges, and demands that nothing is left.
func (j *job) finish() {
	j.t.Helper()
	whole := func() (missing []string) {
		j.mu.Lock()
		defer j.mu.Unlock()
		for key := range j.due {
			switch {
			case isJob(key) && j.acked[key] == 0 && !j.troubled(key, j.tried[key]), !isJob(key) && len(j.heard[key]) == 0:
				missing = append(missing, fmt.Sprint(key, j.got[key]))
			}
		}
		return missing
	}
	if !rig.Within(100*time.Millisecond, 90*time.Second, func() bool { return len(whole()) == 0 }) {
		missing := whole()
		slices.Sort(missing)
		j.t.Errorf("%d keys never came: %.2000q", len(missing), missing)
	}
	c := j.dial("admin", j.nodes[len(j.nodes)-1].redis)
	defer c.Close()
	if !rig.Within(100*time.Millisecond, 30*time.Second, func() bool {
		n, err := c.XLen(j.t.Context(), "expired:jobs").Result()
		return err == nil && n == 0
	}) {
		n, err := c.XLen(j.t.Context(), "expired:jobs").Result()
		j.t.Errorf("XLEN is %d, %v", n, err)
	}
	j.judge()
}

// The keys that something happens to.
func anyKey(string) bool      { return true }
func isJob(key string) bool   { return strings.HasPrefix(key, "job:") }
func isOrder(key string) bool { return !isJob(key) }

// judge compares what came with what was to come.
func (j *job) judge() {
	j.t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.failed) > 0 {
		j.t.Errorf("lines that make no sense: %.500q", j.failed)
	}
	early, twice, excused, unreasonable := 0, 0, 0, 0
	var late []time.Duration
	for key, d := range j.due {
		came := j.heard[key]
		if isJob(key) {
			came = j.got[key]
			if j.acked[key] > 1 {
				j.t.Errorf("%s was acknowledged %d times", key, j.acked[key])
			}
		}
		if len(came) == 0 {
			continue // finish has said so
		}
		if slices.MinFunc(came, time.Time.Compare).Before(d.from.Add(-time.Millisecond)) {
			early++
		}
		switch {
		case len(came) == 1:
		case j.troubled(key, d.to) || j.troubled(key, came[0]):
			excused++
		default:
			twice++
		}
		if j.troubled(key, d.to) {
			continue
		}
		l := came[0].Sub(d.to)
		if late = append(late, l); l > onTime {
			unreasonable++
		}
	}
	for key := range j.gone {
		if len(j.heard[key]) > 0 {
			j.t.Errorf("%s was deleted", key)
		}
	}
	for key := range j.heard {
		if _, ok := j.due[key]; !ok && !j.gone[key] {
			j.t.Errorf("%s was not set", key)
		}
	}
	if early+twice+unreasonable > 0 {
		j.t.Errorf("%d came early, %d twice without a reason, %d late without a reason", early, twice, unreasonable)
	}
	slices.Sort(late)
	text := "none was due outside of faults"
	if n := len(late); n > 0 {
		text = fmt.Sprintf("of %d outside of faults: late p50 %s, p99 %s, at most %s", n, late[n/2], late[n*99/100], late[n-1])
	}
	j.t.Logf("%d keys, %d deleted ones; %d came twice because of a fault; %s", len(j.due), len(j.gone), excused, text)
}

// keysOf is the size of a test; LAPSE_TASKS is that of TestMainJob.
func keysOf(t *testing.T, otherwise int) int {
	text := os.Getenv("LAPSE_TASKS")
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 300 {
		t.Fatalf("LAPSE_TASKS must be a number from 300: %q", text)
	}
	return n
}

// settled waits until so many keys are set.
func (j *job) settled(n int) {
	j.t.Helper()
	wait(j.t, 3*time.Minute, fmt.Sprint(n, " keys"), func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return len(j.due) >= n
	})
}

// expired waits until so many events have come.
func (j *job) expired(n int) {
	j.t.Helper()
	wait(j.t, 3*time.Minute, fmt.Sprint(n, " events"), func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return len(j.heard) >= n
	})
}
