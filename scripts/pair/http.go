package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

const (
	singles = 5_000 // of 64 callers
	batches = 25_000
	pulled  = 50_000
	hooks   = 10_000
	batch   = 1_000
	senders = 4 // also receivers

	moment = 30 * time.Millisecond // for the clocks to be read
)

// caller keeps as many connections as there are callers.
var caller = &http.Client{
	Timeout:   time.Minute,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
}

// overHTTP measures a server by single requests, batches, receivers that pull, and a webhook.
func overHTTP(ctx context.Context, l life) ([]measure.Sample, error) {
	v, err := serve(ctx, l)
	if err != nil {
		return nil, err
	}
	defer v.server.stop()
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer hook.Close()
	far := time.Now().Add(24 * time.Hour)
	for _, part := range []func() error{
		func() error {
			return v.measured(measure.Path{Name: "single/http", Rounds: 8, Round: func(int) (int, error) {
				return singles, v.schedule(ctx, "far", singles, 1, 64, far)
			}})
		},
		func() error {
			return v.measured(measure.Path{Name: "batch/http", Rounds: 4, Round: func(int) (int, error) {
				return batches, v.schedule(ctx, "far", batches, batch, senders, far)
			}})
		},
		func() error { return v.pull(ctx) },
		func() error {
			settings := fmt.Sprintf(`{"delivery":{"kind":"webhook","url":%q}}`, hook.URL)
			if _, err := v.call(ctx, http.MethodPut, "/v1/topics/hook", []byte(settings)); err != nil {
				return err
			}
			return v.burst(ctx, "webhook/http", "hook", hooks, func() error { return v.gone(ctx, "hook") })
		},
	} {
		if err := part(); err != nil {
			return v.samples, err
		}
	}
	return v.samples, nil
}

// pull measures a burst that receivers reserve and acknowledge.
func (v *served) pull(ctx context.Context) error {
	return v.burst(ctx, "pull/http", "pull", pulled, func() error {
		var taken atomic.Int64
		group, receiving := errgroup.WithContext(ctx)
		for range senders {
			group.Go(func() error {
				for taken.Load() < pulled {
					n, err := v.receive(receiving)
					if err != nil {
						return err
					}
					taken.Add(int64(n))
				}
				return nil
			})
		}
		return errors.Join(group.Wait(), v.gone(ctx, "pull"))
	})
}

// burst measures from the instant at which n tasks are due until f returns.
func (v *served) burst(ctx context.Context, path, topic string, n int, f func() error) error {
	return v.measured(measure.Path{
		Name: path, Rounds: 2,
		Prepare: func() error { return v.arm(ctx, topic, n) },
		Round:   func(int) (int, error) { return n, f() },
	})
}

// arm schedules n tasks, and returns a moment before they are due.
func (v *served) arm(ctx context.Context, topic string, n int) error {
	for ahead := time.Second / 2; ahead < time.Minute; ahead *= 2 {
		due := time.Now().Add(ahead).Truncate(time.Millisecond)
		if err := v.schedule(ctx, topic, n, batch, senders, due); err != nil {
			return err
		}
		if rest := time.Until(due) - moment; rest > 0 {
			time.Sleep(rest)
			return nil
		}
		if _, err := v.call(ctx, http.MethodDelete, "/v1/topics/"+topic+"/tasks", nil); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d tasks cannot be scheduled before they are due", n)
}

// schedule schedules n tasks, some a request, by callers at the same time.
func (v *served) schedule(ctx context.Context, topic string, n, each, callers int, due time.Time) error {
	var body bytes.Buffer
	for i := range each {
		fmt.Fprintf(&body, `%c{"topic":%q,"due_at":%q,"payload":"%0200d"}`, "[,"[min(i, 1)], topic, due.UTC().Format(time.RFC3339Nano), 0)
	}
	path, text := "/v1/tasks/batch", append(body.Bytes(), ']')
	if each == 1 {
		path, text = "/v1/tasks", body.Bytes()[1:]
	}
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range callers {
		group.Go(func() error {
			for int(next.Add(int64(each))) <= n {
				answer, err := v.call(ctx, http.MethodPost, path, text)
				if err != nil {
					return err
				}
				if each > 1 && !bytes.Contains(answer, fmt.Appendf(nil, `"accepted":%d`, each)) {
					return fmt.Errorf("not all of a batch are accepted: %.200s", answer)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// receive reserves some tasks and acknowledges them.
func (v *served) receive(ctx context.Context) (int, error) {
	text, err := v.call(ctx, http.MethodPost, "/v1/topics/pull/reserve", []byte(`{"max":1000,"wait":"100ms"}`))
	if err != nil {
		return 0, err
	}
	var reserved struct{ Tasks []struct{ Receipt string } }
	if err := json.Unmarshal(text, &reserved); err != nil || len(reserved.Tasks) == 0 {
		return 0, err
	}
	var ask struct {
		Receipts []string `json:"receipts"`
	}
	for _, t := range reserved.Tasks {
		ask.Receipts = append(ask.Receipts, t.Receipt)
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return 0, err
	}
	_, err = v.call(ctx, http.MethodPost, "/v1/receipts/ack", body)
	return len(ask.Receipts), err
}

// gone returns when all tasks of a topic are off the ledger.
func (v *served) gone(ctx context.Context, topic string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := v.call(ctx, http.MethodGet, "/v1/topics/"+topic, nil)
		if err != nil {
			return err
		}
		var t struct {
			Counts struct{ Pending, Ready, Delivering int }
		}
		if err := json.Unmarshal(text, &t); err != nil || t.Counts.Pending+t.Counts.Ready+t.Counts.Delivering == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s has %+v: %w", topic, t.Counts, context.Cause(ctx))
		}
	}
}

// call makes a request and returns the body of a good answer.
func (v *served) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	q, err := http.NewRequestWithContext(ctx, method, v.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	a, err := caller.Do(q)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, 64<<20))
	if err == nil && a.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, a.Status, text)
	}
	return text, err
}
