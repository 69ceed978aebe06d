package webhook

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// The outcome of each answer, and the text that a reader of the task sees.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		status        int
		body, outcome string
		said          string // "": the task is settled
	}{
		{200, "fine", "2xx", ""},
		{202, "", "2xx", ""},
		{204, "", "2xx", ""},
		{299, "", "2xx", ""},
		{300, "", "3xx", "answered 300 Multiple Choices"},
		{304, "", "3xx", "answered 304 Not Modified"},
		{400, "no such\r\n\torder\x00\x1b[31m \xff\u202e", "4xx", "answered 400 Bad Request: no such order [31m"},
		{404, "", "4xx", "answered 404 Not Found"},
		{408, "", "4xx", "answered 408 Request Timeout"},
		{410, "left", "gone", "answered 410 Gone: left"},
		{429, "", "throttled", "answered 429 Too Many Requests"},
		{500, strings.Repeat("ü", 101) + "-", "5xx", "answered 500 Internal Server Error: " + strings.Repeat("ü", 100)},
		{502, strings.Repeat("long ", 50_000), "5xx", "answered 502 Bad Gateway: long"},
		{503, "", "throttled", "answered 503 Service Unavailable"},
		{599, "", "5xx", "answered 599"},
		{600, "", "odd_status", "answered 600"},
		{999, "", "odd_status", "answered 999"},
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		w := newWay(t, here)
		err := to(t, w, s.URL).Deliver(t.Context(), order("{}"))
		w.counted(t, c.outcome)
		if (err == nil) != (c.said == "") || err != nil && !strings.HasPrefix(err.Error(), c.said) || err != nil && len(err.Error()) > 300 {
			t.Errorf("%d: %v", c.status, err)
		}
	}
}

// No protocol but HTTP is spoken.
func TestSwitchingProtocols(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
	})
	w := newWay(t, here)
	if err := to(t, w, s.URL).Deliver(t.Context(), order("{}")); err == nil {
		t.Error("it is delivered")
	}
	w.counted(t, "odd_status")
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"":                               0,
		"0":                              0,
		"-5":                             0,
		"soon":                           0,
		"1.5":                            0,
		"1":                              time.Second,
		"120":                            2 * time.Minute,
		"86400":                          24 * time.Hour,
		"31536000":                       24 * time.Hour,
		"99999999999999999999":           24 * time.Hour,
		"Fri, 20 Nov 2026 14:05:00 GMT":  5 * time.Minute,
		"Friday, 20-Nov-26 14:05:00 GMT": 5 * time.Minute,
		"Fri, 20 Nov 2026 13:05:00 GMT":  0,
		"Fri, 20 Nov 2099 14:05:00 GMT":  24 * time.Hour,
		"2026-11-20T14:05:00Z":           0,
	} {
		got, ok := retryAfter(header, now)
		if ok != (want > 0) || got != want {
			t.Errorf("%q: %s, %t, want %s", header, got, ok, want)
		}
	}
}

// The effect of the answers on the task.
func TestAnswersSettle(t *testing.T) {
	at := time.Now().Add(time.Hour)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.Header.Get("Status"))
		if r.Header.Get("When") != "" {
			w.Header().Set("Retry-After", r.Header.Get("When"))
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "because")
	})
	scheduler := open(t, newWay(t, here))
	topic(t, scheduler, "x", tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: 2 * time.Hour, MaxBackoff: 2 * time.Hour}}, map[string]any{"url": s.URL})
	for name, c := range map[string]struct {
		status int
		when   string
		state  tasks.State
		next   time.Duration // from now
	}{
		"gone":           {410, "", tasks.Dead, 0},
		"failed":         {500, "5", tasks.Pending, 2 * time.Hour},
		"throttled":      {429, "1800", tasks.Pending, 30 * time.Minute},
		"throttled till": {503, at.UTC().Format(http.TimeFormat), tasks.Pending, time.Hour},
		"just throttled": {503, "", tasks.Pending, 2 * time.Hour},
	} {
		id := schedule(t, scheduler, tasks.Request{Topic: "x", Headers: map[string]string{"status": strconv.Itoa(c.status), "when": c.when}})
		var task tasks.Task
		until(t, name, func() bool {
			task, _ = scheduler.Get(t.Context(), id)
			return task.LastError != ""
		})
		if task.State != c.state || !strings.HasSuffix(task.LastError, ": because") {
			t.Errorf("%s: it is %s, %s", name, task.State, task.LastError)
		}
		if in := time.Until(task.Next); c.next > 0 && (in < c.next-time.Minute || in > c.next+time.Minute) {
			t.Errorf("%s: again in %s, want %s", name, in, c.next)
		}
	}
}

// An asynchronous receiver has the receipt, and settles by it when it is done.
func TestAsync(t *testing.T) {
	got := make(chan http.Header, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("lapse-attempt") == "2" {
			w.WriteHeader(http.StatusAccepted)
		} else {
			w.WriteHeader(http.StatusInternalServerError)
		}
		got <- r.Header
	})
	w := newWay(t, here)
	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Ways: []tasks.Way{w}})
	if err != nil {
		t.Fatal(err)
	}
	defer scheduler.Close(t.Context())
	topic(t, scheduler, "x", tasks.TopicSettings{Lease: time.Hour, Retry: tasks.Retry{MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}},
		map[string]any{"url": s.URL, "mode": "async"})
	id := schedule(t, scheduler, tasks.Request{Topic: "x"})
	first, second := <-got, <-got
	if _, err := time.Parse(time.RFC3339, second.Get("lapse-lease-until")); err != nil {
		t.Error(err)
	}
	until(t, "the answer has been read", func() bool { return w.Tally()["2xx"] == 1 })
	if task, err := scheduler.Get(t.Context(), id); err != nil || task.State != tasks.Delivering || task.Attempt != 2 {
		t.Errorf("before it is settled: %+v, %v", task, err)
	}
	receipts := []string{first.Get("lapse-receipt"), second.Get("lapse-receipt"), second.Get("lapse-receipt")}
	settled, err := scheduler.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, receipts)
	if err != nil || !errors.Is(settled[0].Err, tasks.ErrStale) || settled[1].Err != nil || settled[2].Err != nil {
		t.Fatalf("%+v, %v", settled, err)
	}
	if _, err := scheduler.Get(t.Context(), id); !errors.Is(err, tasks.ErrNotFound) {
		t.Errorf("after it is settled: %v", err)
	}
}
