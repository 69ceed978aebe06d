package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/client"
)

func batcher(t testing.TB, c *client.Client, o client.BatcherOptions) *client.Batcher {
	t.Helper()
	b, err := client.NewBatcher(c, o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sizes records how many tasks each call carried, and has calls take a second each.
func sizes(taken *[]int) fault {
	var mu sync.Mutex
	return func(r *http.Request, serve through) (*http.Response, error) {
		if !to(r, "/batch") {
			return serve(r)
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		mu.Lock()
		*taken = append(*taken, bytes.Count(body, []byte(`"topic"`)))
		mu.Unlock()
		pause(r.Context(), time.Second)
		return serve(r)
	}
}

// A single task is sent at once. Tasks that come while calls are under way go together.
func TestBatcherGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		var calls []int
		set(faults, sizes(&calls))
		b := batcher(t, c, client.BatcherOptions{Calls: 2, MaxBatch: 60})
		from := time.Now()
		var all sync.WaitGroup
		schedule := func(i int) {
			id, err := b.Schedule(t.Context(), client.Request{ID: name(i), Topic: "x", Delay: time.Hour})
			if err != nil || id != name(i) {
				t.Errorf("got %s, %v", id, err)
			}
		}
		all.Go(func() { schedule(0) })
		synctest.Wait() // its call is under way
		for i := range 99 {
			all.Go(func() { schedule(1 + i) })
		}
		all.Wait()
		// The second call begins at once, with what has gathered by then: 1 to 60 tasks.
		if took := time.Since(from); took != 2*time.Second || len(calls) < 3 || len(calls) > 4 {
			t.Errorf("calls of %v took %s", calls, took)
		}
		if s, err := c.Stats(t.Context()); err != nil || s.Total.Pending != 100 {
			t.Errorf("got %+v, %v", s, err)
		}
		check(t, "Close", b.Close(t.Context()), nil)
		check(t, "Close again", b.Close(t.Context()), nil)
		_, err := b.Schedule(t.Context(), client.Request{Topic: "x"})
		check(t, "Schedule", err, client.ErrClosed)
	})
}

// A call is no larger than servers accept, however large its tasks are.
func TestBatcherBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		var calls []int
		set(faults, sizes(&calls))
		b := batcher(t, c, client.BatcherOptions{Calls: 1})
		payload := []byte(`"` + strings.Repeat("x", 60_000) + `"`)
		var all sync.WaitGroup
		schedule := func() {
			check(t, "Schedule", second(b.Schedule(t.Context(), client.Request{Topic: "x", Delay: time.Hour, Payload: payload})), nil)
		}
		all.Go(schedule)
		synctest.Wait() // its call is under way, and the others gather
		for range 149 {
			all.Go(schedule)
		}
		all.Wait()
		if len(calls) != 4 || calls[1] < 65 || calls[1] > 70 {
			t.Errorf("calls of %v", calls)
		}
		check(t, "Close", b.Close(t.Context()), nil)
	})
}

// Each caller gets the outcome of its own task, also where one task spoils the call for
// all, and where two ask for the same id.
func TestBatcherOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		var calls []int
		set(faults, sizes(&calls))
		b := batcher(t, c, client.BatcherOptions{Calls: 1})
		deep := []byte(strings.Repeat("[", 300) + strings.Repeat("]", 300))
		large := []byte(`"` + strings.Repeat("x", 1<<17) + `"`)
		var all sync.WaitGroup
		for _, test := range []struct {
			r    client.Request
			want error
		}{
			{client.Request{ID: "first", Topic: "x", Delay: time.Hour}, nil},
			{client.Request{ID: "good", Topic: "x", Delay: time.Hour}, nil},
			{client.Request{ID: "good", Topic: "x", Delay: time.Hour}, nil},
			{client.Request{ID: "good", Topic: "x", Delay: time.Minute}, client.ErrExists},
			{client.Request{ID: "?", Topic: "x"}, client.ErrInvalid},
			{client.Request{ID: "large", Topic: "x", Payload: large}, client.ErrTooLarge},
			{client.Request{ID: "deep", Topic: "x", Payload: deep}, client.ErrInvalid},
			{client.Request{ID: "broken", Topic: "x", Payload: []byte("{")}, client.ErrInvalid},
			{client.Request{Topic: "x", Delay: time.Hour}, nil},
		} {
			all.Go(func() {
				id, err := b.Schedule(t.Context(), test.r)
				if !errors.Is(err, test.want) || test.r.ID != "" && id != test.r.ID || id == "" {
					t.Errorf("%s: got %s, %v", test.r.ID, id, err)
				}
			})
			synctest.Wait() // so that they come in this order
		}
		all.Wait()
		if s, err := c.Stats(t.Context()); err != nil || s.Total.Pending != 3 {
			t.Errorf("got %+v, %v", s.Total, err)
		}
		check(t, "Close", b.Close(t.Context()), nil)
	})
}

// Calls are repeated with the same ids, so that no task is there twice.
func TestBatcherRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		n := 0
		set(faults, func(r *http.Request, serve through) (*http.Response, error) {
			if n++; n%3 != 0 {
				_, _ = serve(r)
				return nil, brokenPipe
			}
			return serve(r)
		})
		b := batcher(t, c, client.BatcherOptions{Calls: 1})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				check(t, "Schedule", second(b.Schedule(t.Context(), client.Request{Topic: "x", Delay: time.Hour})), nil)
			})
		}
		all.Wait()
		set(faults, nil)
		if s, err := c.Stats(t.Context()); err != nil || s.Total.Pending != 50 {
			t.Errorf("got %+v, %v", s.Total, err)
		}
		// Each caller gets the error of a call that cannot be sent at all.
		set(faults, func(*http.Request, through) (*http.Response, error) { return nil, refusedDial })
		for range 50 {
			all.Go(func() {
				check(t, "Schedule", second(b.Schedule(t.Context(), client.Request{Topic: "x"})), client.ErrUnreachable)
			})
		}
		all.Wait()
		check(t, "Close", b.Close(t.Context()), nil)
	})
}

// The queue is bounded, and a context is obeyed wherever a caller waits. A caller that gives up
// leaves no gap.
func TestBatcherBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{Timeout: time.Hour})
		release, calls := make(chan struct{}), 0
		set(faults, func(r *http.Request, serve through) (*http.Response, error) {
			if to(r, "/batch") {
				calls++
				<-release
			}
			return serve(r)
		})
		b := batcher(t, c, client.BatcherOptions{Calls: 1, MaxWaiting: 3})
		results := make(chan error, 4)
		start := func(id string) context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { results <- second(b.Schedule(ctx, client.Request{ID: id, Topic: "x", Delay: time.Hour})) }()
			synctest.Wait()
			return cancel
		}
		for range 3 {
			sent, queued, another, outside := start("sent"), start("queued"), start("another"), start("outside")
			for _, test := range []struct {
				give    context.CancelFunc
				unknown bool
			}{{outside, false}, {another, false}, {queued, false}, {sent, true}} {
				test.give()
				err := <-results
				if check(t, "Schedule", err, context.Canceled); errors.Is(err, client.ErrUnknown) != test.unknown {
					t.Errorf("got %v, unknown should be %v", err, test.unknown)
				}
			}
			release <- struct{}{}
			synctest.Wait()
		}
		// All places are free again: of three tasks, two go together.
		for _, id := range []string{"a", "b", "c"} {
			defer start(id)()
		}
		calls = 0
		close(release)
		for range 3 {
			check(t, "Schedule", <-results, nil)
		}
		if calls != 1 {
			t.Errorf("%d more calls", calls)
		}
		check(t, "Close", b.Close(t.Context()), nil)
		for id, want := range map[string]error{"sent": nil, "queued": client.ErrNotFound, "outside": client.ErrNotFound, "a": nil, "c": nil} {
			_, err := c.Get(t.Context(), id)
			check(t, id, err, want)
		}
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(io.ErrNoProgress)
		check(t, "Schedule", second(b.Schedule(ended, client.Request{Topic: "x"})), io.ErrNoProgress)
	})
}

// Close waits for accepted tasks. When it gives up, callers learn what may have happened.
func TestBatcherCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		var calls []int
		set(faults, sizes(&calls))
		b := batcher(t, c, client.BatcherOptions{Calls: 1})
		results := make(chan error, 2)
		for range 2 {
			go func() { results <- second(b.Schedule(context.Background(), client.Request{Topic: "x"})) }()
			synctest.Wait()
		}
		check(t, "Close", b.Close(t.Context()), nil)
		for range 2 {
			check(t, "Schedule", <-results, nil)
		}
		set(faults, hang)
		b = batcher(t, c, client.BatcherOptions{Calls: 1, MaxWaiting: 2})
		results = make(chan error, 3)
		for range 3 {
			go func() { results <- second(b.Schedule(context.Background(), client.Request{Topic: "x"})) }()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		check(t, "Close", b.Close(ctx), context.DeadlineExceeded)
		unknown := 0
		for range 3 {
			err := <-results
			if errors.Is(err, client.ErrUnknown) {
				unknown++
			} else {
				check(t, "Schedule", err, client.ErrClosed)
			}
		}
		if unknown != 1 {
			t.Errorf("%d are unknown", unknown)
		}
		check(t, "Close", b.Close(t.Context()), nil)
	})
}
