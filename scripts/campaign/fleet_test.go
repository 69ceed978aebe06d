package campaign

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A fleet is the nodes of one seed, and their history.
type fleet struct {
	t             *testing.T
	dir           string // of logs
	history       *crash.History
	redis         store
	nodes         []*node
	failoverAfter time.Duration
	deliver       bool      // on_outage
	started       time.Time // before anything was written
	delivered     time.Time // when nothing was owed any more
	stock         int       // tasks that are due in hours

	watching sync.WaitGroup // one for each process
	closing  chan struct{}  // closed when all goroutines are to end
	calls    atomic.Int64
	busy     atomic.Int64 // of them, answered 503
	silent   atomic.Int64 // of them, not answered
	spooled  atomic.Int64 // tasks
	stalls   atomic.Int64 // answers that came late, of nodes and of Redis

	mu        sync.Mutex // guards what follows
	log       *bufio.Writer
	file      *os.File
	wrongs    []wrong
	happened  []occurrence
	breaches  []breach
	excused   []string
	checked   int        // histories, for linearizability
	undecided int        // of them, took too long to check
	preferred []*feature // by callers, at the moment

	features []*feature // that callers use
	pulls    []string   // topics of features that are pulled
	grown    *grown     // what features note
	shares   int        // of all their acts
	matrix   *matrix
}

// A wrong is a fault that belongs to no task.
type wrong struct{ kind, text string }

// wrong records a fault.
func (f *fleet) wrong(kind, format string, args ...any) {
	w := wrong{kind, fmt.Sprintf(format, args...)}
	f.mu.Lock()
	if len(f.wrongs) < 10_000 {
		f.wrongs = append(f.wrongs, w)
	}
	f.mu.Unlock()
	f.note("WRONG %s: %s", kind, w.text)
}

// note writes a line into the file of all calls.
func (f *fleet) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(f.log, rig.Stamp(time.Now())+" "+format+"\n", args...)
}

func (f *fleet) stopping() bool {
	select {
	case <-f.closing:
		return true
	default:
		return false
	}
}

// newFleet starts the nodes. They are killed when the test is over.
func newFleet(t *testing.T, o options, seed uint64) *fleet {
	f := &fleet{
		t: t, dir: filepath.Join(o.dir, fmt.Sprintf("seed-%d", seed)), history: crash.NewHistory(),
		failoverAfter: o.failoverAfter, deliver: seed%2 == 0, closing: make(chan struct{}), started: time.Now(), matrix: newMatrix(), grown: newGrown(),
	}
	for _, name := range o.features {
		w := featureOf(name)
		f.features = append(f.features, w)
		for _, a := range w.acts {
			f.shares += a.share
		}
		if w.pulled != nil {
			f.pulls = append(f.pulls, slices.Sorted(maps.Keys(w.topics))...)
		}
	}
	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if f.file, err = os.Create(filepath.Join(f.dir, "calls.log")); err != nil {
		t.Fatal(err)
	}
	f.log = bufio.NewWriterSize(f.file, 1<<20)
	if o.sentinel(seed) {
		f.redis = newGuarded(t)
	} else {
		f.redis = newSingle(t)
	}
	t.Cleanup(f.close)
	for i := range o.nodes {
		n := &node{name: nameOf(i), fleet: f, handsOver: handsOver(i, seed)}
		url, proxies := f.redis.entry()
		n.proxies = proxies
		outage := "pause"
		if f.deliver {
			outage = "deliver"
		}
		n.args = []string{
			"serve", "--listen", "127.0.0.1:0", "--node", n.name, "--redis", url, "--redis-shards", "4",
			"--failover-after", f.failoverAfter.String(), "--on-outage", outage, "--sweep-every", "500ms",
		}
		port := redistest.FreeAddr(t)
		n.port = dial(port)
		n.args = append(n.args, "--redis-listen", port, "--resp-topics", "s:="+streamTopic, "--resp-topics", "=expired")
		if n.handsOver {
			n.args = append(n.args, "--handover")
		}
		n.spoolDir = filepath.Join(t.TempDir(), "spool")
		if n.log, err = os.Create(filepath.Join(f.dir, n.name+".log")); err != nil {
			t.Fatal(err)
		}
		f.nodes = append(f.nodes, n)
		n.life.Lock()
		n.bringUp()
		n.life.Unlock()
	}
	f.fillStock(o.stock)
	f.watchStalls()
	f.set(topic, "")
	f.each(func(w *feature) {
		for _, name := range slices.Sorted(maps.Keys(w.topics)) {
			f.set(name, w.topics[name])
		}
		if w.begin != nil {
			w.begin(f)
		}
	})
	return f
}

// set gives a topic its settings: the usual ones, and some more.
func (f *fleet) set(name, more string) {
	settings := fmt.Appendf(nil, `{"lease":"10s","retry":{"max_attempts":1000,"min_backoff":"50ms","max_backoff":"500ms"}%s}`, more)
	if !rig.Within(20*time.Millisecond, startWithin, func() bool {
		return f.ask(f.nodes[0].latest(), http.MethodPut, "/v1/topics/"+name, settings).outcome == crash.Done
	}) {
		f.t.Fatalf("the topic %s cannot be set up", name)
	}
	for _, n := range f.nodes {
		if !rig.Within(20*time.Millisecond, startWithin, func() bool {
			return bytes.Contains(f.ask(n.latest(), http.MethodGet, "/v1/topics/"+name+"?scope=node", nil).body, []byte(`"max_backoff":"500ms"`))
		}) {
			f.t.Fatalf("%s does not learn of the topic %s", n.name, name)
		}
	}
}

// close ends all processes.
func (f *fleet) close() {
	close(f.closing)
	if f.grown.hooks != nil {
		_ = f.grown.hooks.Close()
	}
	for _, n := range f.nodes {
		n.life.Lock()
		if r := n.latest(); r != nil {
			r.expect()
			r.Kill()
		}
		n.life.Unlock()
	}
	f.watching.Wait()
	for _, n := range f.nodes {
		_ = n.port.Close()
		_ = n.log.Close()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.log.Flush()
	_ = f.file.Close()
}

// An answer is the answer of a node to a request.
type answer struct {
	crash.Span
	outcome crash.Outcome
	status  int
	body    []byte
}

// again reports whether the request may be repeated: no answer, or 503.
func (a answer) again() bool { return a.status == 0 || a.status == http.StatusServiceUnavailable }

// ask sends a request, records the answer, and checks that it is one that a node may give.
func (f *fleet) ask(r *run, method, path string, body []byte) answer {
	return f.send(r, method, path, "application/json", body)
}

// post sends a body of another type.
func (f *fleet) post(r *run, path, kind string, body []byte) answer {
	return f.send(r, http.MethodPost, path, kind, body)
}

func (f *fleet) send(r *run, method, path, kind string, body []byte) answer {
	f.calls.Add(1)
	a := answer{Span: crash.Span{Node: r.node.name, Run: r.n, Start: time.Now()}, outcome: crash.Unknown}
	var err error
	a.status, a.body, err = r.send(method, path, kind, body)
	a.End = time.Now()
	if err != nil {
		a.status = 0
		f.silent.Add(1)
		f.note("%s %s %s -> %v | %.300s", a.Span, method, path, err, body)
		return a
	}
	f.note("%s %s %s -> %d %.300s | %.300s", a.Span, method, path, a.status, a.body, body)
	a.outcome = f.meaning(method+" "+path, a.status, a.body)
	if a.status == http.StatusServiceUnavailable {
		f.busy.Add(1)
	}
	return a
}

func (r *run) send(method, path, kind string, body []byte) (int, []byte, error) {
	req, err := http.NewRequest(method, r.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, data, err
}

// meaning returns what an answer, or a problem in one, means. It notes an answer that no node
// may give.
func (f *fleet) meaning(what string, status int, body []byte) crash.Outcome {
	outcome, ok := crash.OutcomeOf(status, body)
	if !ok {
		f.wrong("strange answer", "%s answered %d: %.300s", what, status, body)
	}
	return outcome
}

func (f *fleet) decode(a answer, into any) {
	if err := json.Unmarshal(a.body, into); err != nil {
		f.wrong("strange answer", "%v: %.300s", err, a.body)
	}
}
