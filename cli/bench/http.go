package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goccy/go-json"
)

const (
	receivers   = 4
	reserveMax  = 1000
	reserveWait = 500 * time.Millisecond // also how long Close may take
	answerTime  = 30 * time.Second
)

// overHTTP calls a server with as little client code as possible, since the cost of a client would
// be measured too.
type overHTTP struct {
	url, token, topic string
	client            *http.Client
	group             sync.WaitGroup // receivers
	closing           atomic.Bool
	fault             atomic.Pointer[error] // of the first receiver that failed
}

// OpenServer measures a server that runs at a URL such as http://127.0.0.1:7480. Its
// tasks have a topic of their own, and are cancelled in the end. A token is sent
// with every request if there is one.
func OpenServer(ctx context.Context, address, token string) (System, error) {
	return openHTTP(ctx, address, token, uniqueName("bench-"))
}

func openHTTP(ctx context.Context, address, token, topic string) (*overHTTP, error) {
	h := &overHTTP{url: strings.TrimRight(address, "/"), token: token, topic: topic, client: &http.Client{
		Timeout: answerTime,
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 4096, DisableCompression: true,
			ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10,
		},
	}}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		status, _, err := h.call(ctx, http.MethodGet, "/readyz", nil)
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusOK:
			return h, nil
		case status != http.StatusServiceUnavailable: // 503: a replay that is not complete
			return nil, fmt.Errorf("%s/readyz was answered %d: that is no Lapse, or it wants another token", h.url, status)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// call makes one request. It reads the whole body, so that the connection can be used again.
func (h *overHTTP) call(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
	q, err := http.NewRequestWithContext(ctx, method, h.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	if h.token != "" {
		q.Header.Set("Authorization", "Bearer "+h.token)
	}
	a, err := h.client.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer a.Body.Close()
	var text bytes.Buffer
	if a.ContentLength > 0 {
		text.Grow(int(min(a.ContentLength, 64<<20)) + bytes.MinRead)
	}
	_, err = text.ReadFrom(a.Body)
	return a.StatusCode, text.Bytes(), err
}

// expect makes one request and returns an error for any status but the wanted one.
func (h *overHTTP) expect(ctx context.Context, want int, method, path string, body []byte, into any) error {
	status, text, err := h.call(ctx, method, path, body)
	if err != nil {
		return err
	}
	if status != want {
		return fmt.Errorf("%s %s was answered %d: %s", method, path, status, bytes.TrimSpace(text[:min(len(text), 500)]))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

const wireTime = "2006-01-02T15:04:05.000Z07:00"

func (h *overHTTP) appendTask(dst []byte, t Task) []byte {
	dst = append(dst, `{"topic":"`...)
	dst = append(dst, h.topic...)
	dst = append(dst, `","due_at":"`...)
	dst = t.Due.UTC().AppendFormat(dst, wireTime)
	dst = append(dst, `","payload":`...)
	dst = append(dst, t.Payload...)
	return append(dst, '}')
}

// Schedule lets the request end when ctx ends: a task that is accepted after Close has looked would
// stay.
func (h *overHTTP) Schedule(ctx context.Context, t Task) error {
	return h.expect(context.WithoutCancel(ctx), http.StatusCreated, http.MethodPost, "/v1/tasks", h.appendTask(nil, t), nil)
}

// ScheduleBatch does the same, see Schedule.
func (h *overHTTP) ScheduleBatch(ctx context.Context, ts []Task) error {
	if len(ts) == 0 {
		return nil
	}
	body := make([]byte, 0, len(ts)*(len(ts[0].Payload)+128))
	for i, t := range ts {
		body = append(body, "[,"[min(i, 1)])
		body = h.appendTask(body, t)
	}
	var answer struct {
		Accepted int             `json:"accepted"`
		Errors   json.RawMessage `json:"errors"`
	}
	err := h.expect(context.WithoutCancel(ctx), http.StatusOK, http.MethodPost, "/v1/tasks/batch", append(body, ']'), &answer)
	if err == nil && answer.Accepted != len(ts) {
		err = fmt.Errorf("of a batch of %d only %d were accepted: %s", len(ts), answer.Accepted, answer.Errors[:min(len(answer.Errors), 500)])
	}
	return err
}

// Receive lets receivers reserve and acknowledge, many tasks a request.
func (h *overHTTP) Receive(ctx context.Context, got func([]byte)) error {
	ctx = context.WithoutCancel(ctx) // reserved tasks are acknowledged: Close ends it
	for range receivers {
		h.group.Go(func() {
			for !h.closing.Load() {
				if err := h.receive(ctx, got); err != nil {
					err = fmt.Errorf("a receiver: %w", err)
					h.fault.CompareAndSwap(nil, &err)
					return
				}
			}
		})
	}
	return nil
}

func (h *overHTTP) receive(ctx context.Context, got func([]byte)) error {
	var reserved struct {
		Tasks []struct {
			Payload json.RawMessage `json:"payload"`
			Receipt string          `json:"receipt"`
		} `json:"tasks"`
	}
	ask := fmt.Appendf(nil, `{"max":%d,"wait":%q}`, reserveMax, reserveWait)
	if err := h.expect(ctx, http.StatusOK, http.MethodPost, "/v1/topics/"+h.topic+"/reserve", ask, &reserved); err != nil {
		return err
	}
	if len(reserved.Tasks) == 0 {
		return nil
	}
	body := []byte(`{"receipts":`)
	for i := range reserved.Tasks {
		got(reserved.Tasks[i].Payload)
		body = append(append(append(body, "[,"[min(i, 1)], '"'), reserved.Tasks[i].Receipt...), '"')
	}
	// A receipt that came too late is no error here: the server counts the end of the lease, and
	// the tally sees the task again.
	return h.expect(ctx, http.StatusOK, http.MethodPost, "/v1/receipts/ack", append(body, "]}"...), nil)
}

func (h *overHTTP) Standing(ctx context.Context) (Standing, error) {
	if fault := h.fault.Load(); fault != nil {
		return Standing{}, *fault
	}
	status, text, err := h.call(ctx, http.MethodGet, "/v1/topics/"+url.PathEscape(h.topic), nil)
	if err != nil || status == http.StatusNotFound {
		return Standing{}, err
	}
	var t struct {
		Counts struct{ Pending, Ready, Delivering, Dead, Failed int }
	}
	if status != http.StatusOK {
		return Standing{}, fmt.Errorf("the topic's counts were answered %d", status)
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return Standing{}, err
	}
	c := t.Counts
	return Standing{Left: c.Pending + c.Ready + c.Delivering + c.Dead, Explained: c.Failed}, nil
}

// Close cancels the remaining tasks: the server may have other users.
func (h *overHTTP) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeWithin)
	defer cancel()
	h.stopReceivers()
	err := h.clear(ctx)
	h.client.CloseIdleConnections()
	if err != nil {
		err = fmt.Errorf("cancelling the tasks of topic %s: %w", h.topic, err)
	}
	return err
}

func (h *overHTTP) stopReceivers() {
	h.closing.Store(true)
	h.group.Wait()
}

// clear purges the topic, or cancels one by one where the server cannot purge.
func (h *overHTTP) clear(ctx context.Context) error {
	st, err := h.Standing(ctx)
	if err != nil || st.Left == 0 {
		return err
	}
	status, _, err := h.call(ctx, http.MethodDelete, "/v1/topics/"+h.topic+"/tasks", nil)
	if err != nil || status == http.StatusOK {
		return err
	}
	for {
		var page struct{ Tasks []struct{ ID string } }
		if err := h.expect(ctx, http.StatusOK, http.MethodGet, "/v1/tasks?limit=1000&topic="+h.topic, nil, &page); err != nil {
			return err
		}
		if len(page.Tasks) == 0 {
			return nil
		}
		var cancelled atomic.Int64
		if err := share(ctx, len(page.Tasks), 1, 16, func(ctx context.Context, _, i, _ int) error {
			status, _, err := h.call(ctx, http.MethodDelete, "/v1/tasks/"+page.Tasks[i].ID, nil)
			if status == http.StatusNoContent {
				cancelled.Add(1)
			}
			return err
		}); err != nil {
			return err
		}
		if cancelled.Load() == 0 {
			return errors.New("none of the tasks that are left can be cancelled")
		}
	}
}

// serverVersion is the version that a server reports, or "".
func serverVersion(ctx context.Context, s System) string {
	h, ok := s.(*overHTTP)
	if !ok {
		return ""
	}
	var stats struct{ Version string }
	if h.expect(ctx, http.StatusOK, http.MethodGet, "/v1/stats", nil, &stats) != nil {
		return ""
	}
	return stats.Version
}
