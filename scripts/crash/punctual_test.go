//go:build fault

package crash

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-json"
)

// A punctual measures how late tasks of a topic of its own reach receivers that wait.
type punctual struct {
	t     *testing.T
	run   *run
	token string
}

func newPunctual(t *testing.T, r *run) *punctual { return &punctual{t: t, run: r} }

// measure returns the 99th percentile of 400 tasks over eight seconds.
func (l *punctual) measure() time.Duration {
	l.t.Helper()
	const number, receivers, apart = 400, 4, 20 * time.Millisecond
	began := time.Now()
	var body bytes.Buffer
	for i := range number {
		due := began.Add(time.Second + time.Duration(i)*apart)
		fmt.Fprintf(&body, "%c{\"topic\":\"probe\",\"due_at\":%q}", "[,"[min(i, 1)], wire(due))
	}
	body.WriteByte(']')
	if status, err := l.ask("/v1/tasks/batch", body.Bytes(), nil); outcome(status, err) != Done {
		l.t.Errorf("answered %d, %v", status, err)
		return 0
	}
	var mu sync.Mutex
	var late []time.Duration
	var working sync.WaitGroup
	for range receivers {
		working.Go(func() {
			for time.Since(began) < 40*time.Second {
				mu.Lock()
				over := len(late) == number
				mu.Unlock()
				if over {
					return
				}
				var got struct {
					Tasks []struct {
						Receipt string    `json:"receipt"`
						Due     time.Time `json:"due_at"`
					} `json:"tasks"`
				}
				if status, err := l.ask("/v1/topics/probe/reserve", []byte(`{"max":10,"wait":"1s"}`), &got); outcome(status, err) != Done {
					<-time.After(50 * time.Millisecond)
					continue
				}
				now := time.Now()
				var receipts []string
				for _, task := range got.Tasks {
					receipts = append(receipts, task.Receipt)
					mu.Lock()
					late = append(late, now.Sub(task.Due))
					mu.Unlock()
				}
				if len(receipts) > 0 {
					ack, _ := json.Marshal(map[string]any{"receipts": receipts}) // strings
					_, _ = l.ask("/v1/receipts/ack", ack, nil)                   // one that is missing is delivered again
				}
			}
		})
	}
	working.Wait()
	if len(late) < number {
		l.t.Errorf("%d of %d tasks were delivered", len(late), number)
	}
	slices.Sort(late)
	return late[max(0, len(late)*99/100-1)].Round(10 * time.Microsecond)
}

func (l *punctual) ask(path string, body []byte, answer any) (int, error) {
	req, err := http.NewRequest(http.MethodPost, l.run.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if l.token != "" {
		req.Header.Set("Authorization", "Bearer "+l.token)
	}
	resp, err := l.run.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if answer != nil && resp.StatusCode < 300 {
		err = json.NewDecoder(resp.Body).Decode(answer)
	}
	return resp.StatusCode, err
}
