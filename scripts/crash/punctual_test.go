//go:build fault

package crash

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A punctual measures how late tasks of a topic of its own reach receivers that wait.
type punctual struct {
	t     *testing.T
	run   *run
	token string
}

func newPunctual(t *testing.T, r *run) *punctual { return &punctual{t: t, run: r} }

const (
	punctualTasks = 400
	punctualApart = 20 * time.Millisecond
	// punctualAhead is how long the server has to accept the tasks before the first one is due.
	punctualAhead = 2 * time.Second
	// punctualLimit is how long the receivers go on. It bounds the test, and is no promise: a busy
	// machine delivers late.
	punctualLimit = 2 * time.Minute
)

// punctualTopics counts the topics that were measured.
var punctualTopics atomic.Int64

// measure returns the 99th percentile of 400 tasks over eight seconds. It may be called by any
// goroutine; a failure is an error of the test.
func (l *punctual) measure() time.Duration {
	l.t.Helper()
	topic, began, err := l.schedule()
	if err != nil {
		l.t.Errorf("the tasks of a measurement: %v", err)
		return 0
	}
	const receivers = 4
	var (
		mu   sync.Mutex // guards the following
		late = map[string]time.Duration{}
		// Deliveries of tasks that had come before, as an acknowledgement was not recorded.
		again   int
		failed  int   // failed calls
		failure error // the last of them
	)
	over := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(late) == punctualTasks
	}
	fails := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed, failure = failed+1, err
	}
	var working sync.WaitGroup
	for range receivers {
		working.Go(func() {
			for !over() && time.Since(began) < punctualLimit {
				var got struct {
					Tasks []struct {
						ID      string    `json:"id"`
						Receipt string    `json:"receipt"`
						Due     time.Time `json:"due_at"`
					} `json:"tasks"`
				}
				if err := l.ask("/v1/topics/"+topic+"/reserve", []byte(`{"max":10,"wait":"1s"}`), &got); err != nil {
					fails(err)
					<-time.After(50 * time.Millisecond)
					continue
				}
				now := time.Now()
				var receipts []string
				mu.Lock()
				for _, task := range got.Tasks {
					receipts = append(receipts, task.Receipt)
					if _, before := late[task.ID]; before {
						again++
						continue
					}
					late[task.ID] = now.Sub(task.Due)
				}
				mu.Unlock()
				if len(receipts) > 0 {
					ack, _ := json.Marshal(map[string]any{"receipts": receipts}) // strings
					if err := l.ask("/v1/receipts/ack", ack, nil); err != nil {
						fails(err) // it is delivered again
					}
				}
			}
		})
	}
	working.Wait()
	all := make([]time.Duration, 0, len(late))
	for _, d := range late {
		all = append(all, d)
	}
	slices.Sort(all)
	if len(all) < punctualTasks || failed > 0 || again > 0 {
		l.t.Logf("%d of %d tasks came in %v, %d came again, %d calls failed, the last one so: %v",
			len(all), punctualTasks, time.Since(began).Round(time.Millisecond), again, failed, failure)
	}
	if len(all) < punctualTasks {
		l.t.Errorf("%d of %d tasks were delivered within %v", len(all), punctualTasks, punctualLimit)
	}
	if len(all) == 0 {
		return 0
	}
	return all[max(0, len(all)*99/100-1)].Round(10 * time.Microsecond)
}

// schedule schedules the tasks of a measurement in a topic of their own, and returns when that
// began. If only a part was accepted, or some tasks were due already, it leaves them and schedules
// others: on a slow disk an answer may be 503, or late.
func (l *punctual) schedule() (topic string, began time.Time, err error) {
	began = time.Now()
	for wait := punctualAhead; time.Since(began) < punctualLimit; wait += punctualAhead {
		topic = fmt.Sprintf("probe-%d", punctualTopics.Add(1))
		first := time.Now().Add(wait)
		var body bytes.Buffer
		for i := range punctualTasks {
			fmt.Fprintf(&body, "%c{\"topic\":%q,\"due_at\":%q}", "[,"[min(i, 1)], topic, rig.Wire(first.Add(time.Duration(i)*punctualApart)))
		}
		body.WriteByte(']')
		var answer batchAnswer
		if err = l.ask("/v1/tasks/batch", body.Bytes(), &answer); err == nil {
			err = answer.taken(punctualTasks)
		}
		if took := time.Since(first) + wait; err == nil && took >= wait {
			err = fmt.Errorf("they were accepted after %v, when some were due", took)
		}
		if err == nil {
			return topic, first.Add(-wait), nil
		}
		l.t.Logf("the tasks of a measurement: %v", err)
		<-time.After(100 * time.Millisecond)
	}
	return "", began, err
}

// A batchAnswer is the answer to a batch.
type batchAnswer struct {
	Accepted int             `json:"accepted"`
	Errors   json.RawMessage `json:"errors"`
}

// taken returns an error unless n tasks were accepted.
func (a *batchAnswer) taken(n int) error {
	if a.Accepted == n {
		return nil
	}
	return fmt.Errorf("%d of %d tasks were accepted: %.500s", a.Accepted, n, a.Errors)
}

// ask sends a request and decodes the answer into answer, unless that is nil. The error describes
// any other answer.
func (l *punctual) ask(path string, body []byte, answer any) error {
	req, err := http.NewRequest(http.MethodPost, l.run.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if l.token != "" {
		req.Header.Set("Authorization", "Bearer "+l.token)
	}
	began := time.Now()
	resp, err := l.run.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s was answered %d after %v: %.500s", path, resp.StatusCode, time.Since(began).Round(time.Millisecond), text)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}
