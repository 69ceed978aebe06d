package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/client"
)

var (
	refusedDial = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	brokenPipe  = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
)

// A script fails one way after the other, and then succeeds.
func script(steps ...any) (wire, *[]string) {
	seen := &[]string{}
	return func(_ *http.Request, body string) (*http.Response, error) {
		*seen = append(*seen, body)
		n := len(*seen) - 1
		if n >= len(steps) {
			return answer(200, `{"id":"x"}`), nil
		}
		switch step := steps[n].(type) {
		case error:
			return nil, step
		case string:
			status := http.StatusServiceUnavailable
			switch step {
			case "overloaded":
				status = http.StatusTooManyRequests
			case "delivering", "precondition_failed":
				status = http.StatusConflict
			}
			return problem(status, step), nil
		}
		panic("an unknown step")
	}, seen
}

// What is repeated, how often, and what it comes to.
func TestRepetition(t *testing.T) {
	schedule := func(c *client.Client) error {
		_, err := c.Schedule(context.Background(), client.Request{Topic: "a"})
		return err
	}
	fire := func(c *client.Client) error { _, err := c.Fire(context.Background(), "x"); return err }
	get := func(c *client.Client) error { _, err := c.Get(context.Background(), "x"); return err }
	cancel := func(c *client.Client) error { return c.Cancel(context.Background(), "x") }
	setIf := func(c *client.Client) error {
		_, err := c.SetTopic(context.Background(), "x", client.Settings{}, 3)
		return err
	}
	purge := func(c *client.Client) error { _, err := c.Purge(context.Background(), "x"); return err }
	cancelGroup := func(c *client.Client) error { _, err := c.CancelGroup(context.Background(), "g"); return err }
	deleteAll := func(c *client.Client) error { return c.DeleteAllDead(context.Background(), "x") }
	deleteOne := func(c *client.Client) error { return c.DeleteDead(context.Background(), "x", "a") }
	down := "ledger_unavailable"
	for _, test := range []struct {
		name     string
		call     func(*client.Client) error
		steps    []any
		attempts int
		is, not  error
	}{
		{"unavailable", schedule, []any{down, down}, 3, nil, nil},
		{"unavailable, a fire", fire, []any{down, "replaying", "shutting_down"}, 4, nil, nil},
		{"overloaded, a purge", purge, []any{"overloaded"}, 2, nil, nil},
		{"unavailable for good", fire, []any{down, down, down, down}, 4, client.ErrUnavailable, client.ErrUnknown},
		{"no connection", fire, []any{refusedDial}, 2, nil, nil},
		{"no connection for good", schedule, []any{refusedDial, refusedDial, refusedDial, refusedDial}, 4, client.ErrUnreachable, client.ErrUnknown},
		{"broken", schedule, []any{brokenPipe}, 2, nil, nil},
		{"broken, a cancel", cancel, []any{io.ErrUnexpectedEOF}, 2, nil, nil},
		{"broken, a fire", fire, []any{brokenPipe}, 1, client.ErrUnknown, client.ErrUnreachable},
		{"broken, a purge", purge, []any{brokenPipe}, 1, client.ErrUnknown, client.ErrUnreachable},
		{"unavailable, a group", cancelGroup, []any{down}, 2, nil, nil},
		{"broken, a group", cancelGroup, []any{brokenPipe}, 1, client.ErrUnknown, client.ErrUnreachable},
		{"broken, all the dead", deleteAll, []any{brokenPipe}, 1, client.ErrUnknown, client.ErrUnreachable},
		{"broken, some of the dead", deleteOne, []any{brokenPipe}, 2, nil, nil},
		{"broken, a guarded change", setIf, []any{brokenPipe}, 1, client.ErrUnknown, client.ErrUnreachable},
		{"broken, a read", get, []any{brokenPipe, brokenPipe, brokenPipe, brokenPipe}, 4, client.ErrUnreachable, client.ErrUnknown},
		{"unknown", schedule, []any{"outcome_unknown"}, 2, nil, nil},
		{"unknown, a fire", fire, []any{"outcome_unknown"}, 1, client.ErrUnknown, nil},
		{"refused", cancel, []any{"delivering"}, 1, client.ErrDelivering, client.ErrUnknown},
		// Once an attempt may have been carried out, a later one that says that nothing has
		// happened cannot say so for all of them.
		{"unknown, then unavailable", schedule, []any{"outcome_unknown", down, down, down}, 4, client.ErrUnknown, nil},
		{"broken, then no connection", cancel, []any{brokenPipe, refusedDial, refusedDial, refusedDial}, 4, client.ErrUnknown, nil},
		{"unavailable, then unknown, a fire", fire, []any{down, "outcome_unknown"}, 2, client.ErrUnknown, nil},
		// A definite answer to a later one counts.
		{"broken, then refused", cancel, []any{brokenPipe, "delivering"}, 2, client.ErrDelivering, client.ErrUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, seen := script(test.steps...)
				err := test.call(over(t, client.Options{}, w))
				if len(*seen) != test.attempts {
					t.Errorf("%d attempts, want %d", len(*seen), test.attempts)
				}
				if !errors.Is(err, test.is) {
					t.Errorf("got %v, want %v", err, test.is)
				}
				if test.not != nil && errors.Is(err, test.not) {
					t.Errorf("%v is also %v", err, test.not)
				}
				for _, body := range *seen {
					if body != (*seen)[0] {
						t.Errorf("repeated with another body: %s, first %s", body, (*seen)[0])
					}
				}
			})
		})
	}
}

// A task without an id gets one that all attempts share, and the caller learns it.
func TestMadeID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, seen := script(brokenPipe, brokenPipe, brokenPipe, brokenPipe)
		task, err := over(t, client.Options{}, w).Schedule(t.Context(), client.Request{Topic: "a"})
		check(t, "Schedule", err, client.ErrUnknown)
		if task == nil || len(task.ID) != 36 || !strings.Contains((*seen)[3], task.ID) {
			t.Errorf("got %+v after %s", task, (*seen)[3])
		}
		w, seen = script(brokenPipe)
		_, err = over(t, client.Options{Retries: -1}, w).Schedule(t.Context(), client.Request{Topic: "a"})
		check(t, "Schedule", err, client.ErrUnknown)
		if len(*seen) != 1 || strings.Contains((*seen)[0], `"id"`) {
			t.Errorf("without retries: %q", *seen)
		}
		// The caller also learns an id that the server has made.
		w = func(*http.Request, string) (*http.Response, error) {
			return answer(503, `{"type":"/problems/outcome_unknown","title":"T","id":"made"}`), nil
		}
		task, err = over(t, client.Options{Retries: -1}, w).Schedule(t.Context(), client.Request{Topic: "a"})
		if check(t, "Schedule", err, client.ErrUnknown); task.ID != "made" {
			t.Errorf("got %+v", task)
		}
		w = func(*http.Request, string) (*http.Response, error) {
			return answer(503, `{"type":"/problems/outcome_unknown","title":"T","ids":["p","q"]}`), nil
		}
		results, err := over(t, client.Options{Retries: -1}, w).ScheduleBatch(t.Context(), make([]client.Request, 2))
		if check(t, "ScheduleBatch", err, client.ErrUnknown); results[0].ID != "p" || results[1].ID != "q" {
			t.Errorf("got %+v", results)
		}
	})
}

// The server says how long to wait; it is obeyed, unless that is too long.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seconds := "7"
		w := func(*http.Request, string) (*http.Response, error) {
			return answer(429, `{"type":"/problems/overloaded","title":"T"}`, "Retry-After: "+seconds), nil
		}
		c := over(t, client.Options{Retries: 1}, w)
		from := time.Now()
		_, err := c.Get(t.Context(), "x")
		check(t, "Get", err, client.ErrOverloaded)
		if took := time.Since(from); took < 7*time.Second || took > 9*time.Second {
			t.Errorf("waited %s", took)
		}
		seconds, from = "60", time.Now()
		_, err = c.Get(t.Context(), "x")
		check(t, "Get", err, client.ErrOverloaded)
		if time.Since(from) != 0 {
			t.Errorf("waited %s", time.Since(from))
		}
		if p := (*client.Problem)(nil); !errors.As(err, &p) || p.RetryAfter != time.Minute {
			t.Errorf("got %+v", p)
		}
		// A date instead.
		seconds = time.Now().Add(5 * time.Second).UTC().Format(http.TimeFormat)
		from = time.Now()
		_, err = c.Get(t.Context(), "x")
		if check(t, "Get", err, client.ErrOverloaded); time.Since(from) < 4*time.Second {
			t.Errorf("waited %s", time.Since(from))
		}
	})
}

// The application is told of each repetition, and of no more.
func TestOnRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := script("overloaded", "overloaded", "overloaded")
		var told []client.Repetition
		o := client.Options{Retries: 2, OnRepeat: func(_ context.Context, r client.Repetition) { told = append(told, r) }}
		from := time.Now()
		_, err := over(t, o, w).Get(t.Context(), "x")
		check(t, "Get", err, client.ErrOverloaded)
		if len(told) != 2 || told[0].Method != "GET" || told[0].Path != "/v1/tasks/x" || told[0].Failed != 1 || told[1].Failed != 2 ||
			!errors.Is(told[1].Err, client.ErrOverloaded) || told[0].Pause+told[1].Pause != time.Since(from) {
			t.Errorf("told %+v in %s", told, time.Since(from))
		}
	})
}

// The context bounds the call with all its pauses, and the error keeps what was known.
func TestContextEndsRepetition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, seen := script("overloaded", "overloaded", "overloaded")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := over(t, client.Options{}, w).Get(ctx, "x")
		check(t, "Get", err, context.DeadlineExceeded)
		check(t, "Get", err, client.ErrOverloaded)
		if len(*seen) != 1 {
			t.Errorf("%d attempts", len(*seen))
		}
	})
}

// silent answers when the request has been given up.
func silent(r *http.Request, _ string) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := over(t, client.Options{Timeout: time.Second, Retries: 1}, silent)
		for _, test := range []struct {
			name string
			call func(context.Context) error
			is   error
			took time.Duration // at least, and less than a second more
		}{
			{"a read", func(ctx context.Context) error { _, err := c.Get(ctx, "x"); return err }, client.ErrUnreachable, 2 * time.Second},
			{"a write", func(ctx context.Context) error { return c.Cancel(ctx, "x") }, client.ErrUnknown, 2 * time.Second},
			{"a write that is not repeated", func(ctx context.Context) error { _, err := c.Fire(ctx, "x"); return err }, client.ErrUnknown, time.Second},
			{"a long poll", func(ctx context.Context) error {
				_, err := c.Reserve(ctx, "x", client.Reservation{Wait: 30 * time.Second})
				return err
			}, client.ErrUnknown, 31 * time.Second},
		} {
			from := time.Now()
			err := test.call(t.Context())
			check(t, test.name, err, test.is)
			if took := time.Since(from); took < test.took || took >= test.took+time.Second {
				t.Errorf("%s took %s, want %s", test.name, took, test.took)
			}
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v looks like the caller's deadline", test.name, err)
			}
		}
		// The caller's own deadline looks like a timeout, and the outcome of a write stays unknown.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err := c.Cancel(ctx, "x")
		check(t, "a write", err, context.DeadlineExceeded)
		check(t, "a write", err, client.ErrUnknown)
		_, err = c.Get(ctx, "x")
		if check(t, "a read", err, context.DeadlineExceeded); errors.Is(err, client.ErrUnknown) {
			t.Error(err)
		}
	})
}
