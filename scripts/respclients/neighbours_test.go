//go:build fault

package respclients

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A neighbourhood is a job whose callers have a token each. One of them is hostile.
type neighbourhood struct {
	*job
	tokens string // the file

	// The job's mu guards what follows.
	took     map[string][]took
	lost     []string // sessions
	held     []span   // the lock
	counted  map[string][]int
	unknown  map[string]int   // calls of which it is not known whether they count
	bills    map[string]*bill // by id
	attacked span
}

// A took is a call that was answered.
type took struct {
	begun time.Time
	took  time.Duration
}

// A bill is a task of HTTP callers.
type bill struct {
	// A request without an answer may have made the task. If that has come when the request is
	// repeated, there is another one: earliest is when the task of the first request is due.
	earliest, due time.Time
	came          []time.Time
}

// callers are the tokens: their topics, and their scopes.
var callers = []struct{ name, topics, scopes string }{
	{"admin", "", "schedule, receive, read, admin"},
	{"shop", "expired, jobs", "schedule"},
	{"subscriber", "expired", "receive"},
	{"worker", "jobs", "receive"},
	{"sessions", "sessions", "schedule"},
	{"locks", "locks", "schedule"},
	{"limiter", "limits", "schedule"},
	{"billing", "bills", "schedule, receive"},
	{hostile, "hostile, hostile.*", "schedule, receive, read"},
}

// writeTokens writes the file of tokens, without one of them.
func (n *neighbourhood) writeTokens(without string) {
	n.t.Helper()
	var b bytes.Buffer
	for _, c := range callers {
		if c.name == without {
			continue
		}
		fmt.Fprintf(&b, "- {name: %s, scopes: [%s], sha256: \"%x\"", c.name, c.scopes, sha256.Sum256([]byte(c.name)))
		if c.topics != "" {
			fmt.Fprintf(&b, ", topics: [%s]", c.topics)
		}
		fmt.Fprintln(&b, "}")
	}
	if err := os.WriteFile(n.tokens, b.Bytes(), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// TestNeighbours has callers of other tokens at work on three nodes while one of them does what it
// can to be in their way, a node is killed and comes back, and that token is withdrawn: an Express
// session store, locks as Laravel has them, a limiter of redis-py, writers, a subscriber, workers,
// and HTTP callers. None of them loses anything by it. How long their calls took is logged.
func TestNeighbours(t *testing.T) {
	for _, file := range []string{"node/sessions.js", "php/locks.php", "python/limiter.py"} {
		need(t, file)
	}
	n := &neighbourhood{tokens: filepath.Join(t.TempDir(), "tokens.yaml"), took: map[string][]took{}, counted: map[string][]int{}, unknown: map[string]int{}, bills: map[string]*bill{}}
	n.job = &job{t: t}
	n.writeTokens("")
	n.job, _ = newFleetJob(t, "--token-file", n.tokens, "--resp-topics", "session:=sessions", "--resp-topics", "lock:=locks", "--resp-topics", "limit:=limits", "--resp-topics", "hostile:=hostile.keys")
	n.guarded = true
	n.createGroup()
	n.subscribe(1)
	n.work("python/worker.py", "w1", 0)
	n.work("node/worker.js", "w2", 2)
	leave := n.callers()
	stop := n.bill()
	n.answered("sessions", 200)
	n.answered("limiter", 200)
	n.answered("billing", 200)
	written := n.write(12_000)
	n.attacked.from = time.Now()
	h := attack(n)
	n.answered("sessions", 800)
	h.inForce()
	n.fault("node a is killed", anyKey, func() { n.nodes[0].kill() })
	n.answered("limiter", 300)
	n.answered("sessions", 400)
	n.fault("node a comes back", anyKey, func() { n.nodes[0].start(); n.nodes[0].ready() })
	n.answered("sessions", 800)
	n.withdraw(h)
	n.answered("billing", 300)
	written()
	stop()
	leave()
	n.finish()
	n.judgeNeighbours()
}

// callers starts the programs of other tokens. end ends them, in the midst of a call.
func (n *neighbourhood) callers() (end func()) {
	var all []*script
	start := func(name, file string, note func(words []string), args ...string) {
		s := runAs(n.t, name, file, append(args, n.addresses(0)...)...)
		n.follow(s, note)
		all = append(all, s)
	}
	start("sessions", "node/sessions.js", func(words []string) {
		if words[0] == "lost" {
			n.lost = append(n.lost, strings.Join(words, " "))
			return
		}
		n.noteTook("sessions", words[1], words[2])
	}, "8")
	for i, name := range []string{"p", "q", "r"} {
		start("locks", "php/locks.php", func(words []string) { n.held = append(n.held, span{instantOf(words[1]), instantOf(words[2])}) }, name)
		if i >= limiters {
			continue
		}
		start("limiter", "python/limiter.py", func(words []string) {
			if words[0] == "unknown" {
				n.unknown[words[1]]++
				return
			}
			number, _ := strconv.Atoi(words[2]) // 0 is none that counts
			n.counted[words[1]] = append(n.counted[words[1]], number)
			n.noteTook("limiter", words[3], words[4])
		}, name)
	}
	return func() {
		for _, s := range all {
			s.kill()
		}
	}
}

// instantOf reads Unix milliseconds with a fraction.
func instantOf(text string) time.Time {
	ms, _ := strconv.ParseFloat(text, 64)
	return time.UnixMicro(int64(ms * 1000))
}

// noteTook notes a call that was answered. The job's lock is held.
func (n *neighbourhood) noteTook(name, begun, ms string) {
	d, _ := strconv.Atoi(ms)
	n.took[name] = append(n.took[name], took{instant(begun), time.Duration(d) * time.Millisecond})
}

// answered waits until so many more calls of a caller were answered.
func (n *neighbourhood) answered(name string, more int) {
	n.t.Helper()
	count := func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.took[name])
	}
	before := count()
	wait(n.t, 2*time.Minute, fmt.Sprint(more, " answers to ", name), func() bool { return count() >= before+more })
}

// post sends a request of the caller billing to the nodes, beginning with one, until one has
// answered it with 2xx.
func (n *neighbourhood) post(ctx context.Context, at int, path, body string, answer any) (next int, begun time.Time) {
	client := &http.Client{Timeout: 5 * time.Second}
	for ; ctx.Err() == nil; at++ {
		begun = time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.nodes[at%len(n.nodes)].http+path, strings.NewReader(body))
		if err != nil {
			n.t.Error(err)
			return at, begun
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer billing")
		resp, err := client.Do(req)
		if err != nil {
			continue
		}
		err = json.NewDecoder(resp.Body).Decode(answer)
		resp.Body.Close()
		switch code := resp.StatusCode; {
		case err == nil && code < 300:
			return at, begun
		case code == http.StatusForbidden || code == http.StatusUnauthorized || code == http.StatusUnprocessableEntity:
			n.t.Errorf("POST %s %s is answered %d", path, body, code)
			return at, begun
		}
	}
	return at, begun
}

// bill has HTTP callers schedule tasks and receive them. stop ends that once all have come.
func (n *neighbourhood) bill() (stop func()) {
	scheduling, ended := context.WithCancel(n.t.Context())
	receiving, received := context.WithCancel(n.t.Context())
	var creating, working sync.WaitGroup
	creating.Go(func() {
		at := 0
		pause := time.NewTicker(5 * time.Millisecond)
		defer pause.Stop()
		for i := 0; scheduling.Err() == nil; i++ {
			<-pause.C
			var task struct {
				ID  string    `json:"id"`
				Due time.Time `json:"due_at"`
			}
			delay := time.Duration(1000+i%50*100) * time.Millisecond
			earliest := time.Now().Add(delay)
			var begun time.Time
			at, begun = n.post(receiving, at, "/v1/tasks", fmt.Sprintf(`{"id":"bill-%d","topic":"bills","delay":"%s"}`, i, delay), &task)
			n.mu.Lock()
			n.took["billing"] = append(n.took["billing"], took{begun, time.Since(begun)})
			b := n.billLocked(task.ID)
			b.earliest, b.due = earliest, task.Due
			n.mu.Unlock()
		}
	})
	for first := range n.nodes {
		working.Go(func() {
			for at := first; receiving.Err() == nil; {
				var got struct {
					Tasks []struct {
						ID      string `json:"id"`
						Receipt string `json:"receipt"`
					} `json:"tasks"`
				}
				at, _ = n.post(receiving, at, "/v1/topics/bills/reserve", `{"max":100,"wait":"1s"}`, &got)
				came := time.Now()
				var receipts []string
				n.mu.Lock()
				for _, t := range got.Tasks {
					b := n.billLocked(t.ID)
					b.came, receipts = append(b.came, came), append(receipts, strconv.Quote(t.Receipt))
				}
				n.mu.Unlock()
				at = n.ack(receiving, at, receipts)
			}
		})
	}
	n.t.Cleanup(func() { ended(); received(); creating.Wait(); working.Wait() })
	return func() {
		ended()
		creating.Wait()
		wait(n.t, 2*time.Minute, "bills that have all come", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, b := range n.bills {
				if len(b.came) == 0 {
					return false
				}
			}
			return true
		})
	}
}

// ack acknowledges deliveries. Those whose node does not answer are repeated, as all may be.
func (n *neighbourhood) ack(ctx context.Context, at int, receipts []string) int {
	for again := len(receipts) > 0; again && ctx.Err() == nil; {
		var answer struct {
			Errors []struct {
				Problem struct {
					Status int `json:"status"`
				} `json:"problem"`
			} `json:"errors"`
		}
		at, _ = n.post(ctx, at, "/v1/receipts/ack", `{"receipts":[`+strings.Join(receipts, ",")+`]}`, &answer)
		again = false
		for _, e := range answer.Errors {
			again = again || e.Problem.Status == http.StatusServiceUnavailable
		}
	}
	return at
}

// billLocked returns what is known of a bill.
func (n *neighbourhood) billLocked(id string) *bill {
	if n.bills[id] == nil {
		n.bills[id] = &bill{}
	}
	return n.bills[id]
}

// withdraw takes the token of the hostile caller away, and waits until all that it has under way
// has ended.
func (n *neighbourhood) withdraw(h *hostility) {
	n.t.Helper()
	n.t.Logf("what it has done until now: %s", h)
	n.writeTokens(hostile)
	for _, node := range n.nodes {
		node.signal(syscall.SIGHUP)
	}
	wait(n.t, time.Minute, "end of what the hostile caller has under way", func() bool { return h.open.Load() == 0 })
	h.stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attacked.to = time.Now()
	// A worker whose acknowledgement takes two seconds loses its entry to another one.
	n.faults = append(n.faults, fault{n.attacked, isJob})
}

// judgeNeighbours compares what the callers of other tokens were told.
func (n *neighbourhood) judgeNeighbours() {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.lost) > 0 {
		n.t.Errorf("sessions were lost: %q", n.lost)
	}
	slices.SortFunc(n.held, func(a, b span) int { return a.from.Compare(b.from) })
	for i := 1; i < len(n.held); i++ {
		if n.held[i].from.Before(n.held[i-1].to) {
			n.t.Errorf("the lock was held from %s to %s, and from %s", rig.Stamp(n.held[i-1].from), rig.Stamp(n.held[i-1].to), rig.Stamp(n.held[i].from))
		}
	}
	n.judgeLimits()
	twice, early := 0, 0
	var late []time.Duration
	for id, b := range n.bills {
		if b.due.IsZero() {
			continue // the answer did not arrive before the end
		}
		if b.came[0].Before(b.earliest.Add(-time.Millisecond)) {
			early++
		}
		if len(b.came) > 1 && !n.troubled(id, b.due) && !n.troubled(id, b.came[0]) {
			twice++
		}
		if !n.troubled(id, b.due) {
			late = append(late, b.came[0].Sub(b.due))
		}
	}
	if early+twice > 0 {
		n.t.Errorf("of %d bills %d came early, %d twice without a reason", len(n.bills), early, twice)
	}
	n.t.Logf("%d bills; of those outside of faults: %s", len(n.bills), figures(late))
	for name, all := range n.took {
		var before, during, after []time.Duration
		for _, one := range all {
			switch {
			case n.troubled("", one.begun):
			case one.begun.Before(n.attacked.from):
				before = append(before, one.took)
			case one.begun.Before(n.attacked.to):
				during = append(during, one.took)
			default:
				after = append(after, one.took)
			}
		}
		n.t.Logf("calls of %s before the hostile one: %s; beside it: %s; after it: %s", name, figures(before), figures(during), figures(after))
	}
	n.t.Logf("the lock was held %d times, %d windows of the limiter", len(n.held), len(n.counted))
}

// limiters is how many processes call the limiter. Each may have ended in a call.
const limiters = 2

// judgeLimits compares the counters of the limiter with the calls that they have counted.
func (n *neighbourhood) judgeLimits() {
	c := n.dial("admin", n.nodes[1].redis)
	defer c.Close()
	for key, numbers := range n.counted {
		slices.Sort(numbers)
		if again := slices.Compact(slices.Clone(numbers)); len(again) != len(numbers) {
			n.t.Errorf("%s has counted two calls as one: %v", key, numbers)
		}
		total, err := c.Get(n.t.Context(), key).Int()
		if least := len(numbers); err != nil || total < least || total > least+n.unknown[key]+limiters {
			n.t.Errorf("%s is %d, %v; %d calls were counted, and of %d it is not known", key, total, err, least, n.unknown[key])
		}
		if ttl, err := c.PTTL(n.t.Context(), key).Result(); err != nil || ttl <= 0 {
			n.t.Errorf("%s has the TTL %s, %v", key, ttl, err)
		}
	}
}

// figures are how long calls took, or how late something was.
func figures(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	return fmt.Sprintf("%d, p50 %s, p99 %s, at most %s", len(all), all[len(all)/2].Round(time.Millisecond/10), all[len(all)*99/100].Round(time.Millisecond/10), all[len(all)-1].Round(time.Millisecond/10))
}
