package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

func (r *rig) large(topic string, n, size int) {
	r.Helper()
	payload := []byte(`"` + strings.Repeat("p", size) + `"`)
	for i := range n {
		if _, err := r.scheduler.Schedule(r.Context(), tasks.Request{ID: fmt.Sprintf("%s%03d", topic, i), Topic: topic, Group: "g", Payload: payload}); err != nil {
			r.Fatal(err)
		}
	}
}

// filled takes bytes of a budget, for callers without tokens.
func filled(b *edge.Budget, bytes int64) *edge.Holding {
	h := b.For(edge.Anyone)
	h.Add(bytes)
	return h
}

// Answers that are each within their bound do not add up without end. A refused call has changed
// nothing, and succeeds once there is room.
func TestAnswersAreBoundedTogether(t *testing.T) {
	r := newRigWith(t, tasks.Config{}, Config{MaxAnswers: LeastMaxAnswers})
	r.large("t", 3, 60<<10)
	r.large("x", 1, 60<<10)
	r.do("PUT", "/v1/topics/x", `{"paused":true}`)
	for i := range 50 {
		r.want(r.do("PUT", fmt.Sprint("/v1/tasks/find-", i), `{"topic":"find","delay":"1h"}`), 201)
	}
	limit := int64(LeastMaxAnswers)
	calls := []struct {
		method, path, body string
		budget             *edge.Budget
		from               int64 // its bytes from which on a call is refused
	}{
		{"GET", "/v1/tasks", "", r.api.lists, limit / 2},
		{"GET", "/v1/groups/g", "", r.api.lists, limit / 2},
		{"GET", "/v1/search?q=find", "", r.api.lists, limit / 2},
		{"GET", "/v1/tasks/t000", "", r.api.answers, limit},
		{"PATCH", "/v1/tasks/x000", `{"delay":"1h"}`, r.api.answers, limit},
		{"POST", "/v1/tasks/x000/fire", "", r.api.answers, limit},
		{"POST", "/v1/topics/t/reserve", `{"max":3,"wait":"60s"}`, r.api.answers, limit},
	}
	for _, c := range calls {
		full := filled(c.budget, c.from-8<<10)
		a := r.do(c.method, c.path, c.body)
		r.refused(a, 429, "overloaded", "")
		if a.header.Get("Retry-After") != "1" {
			t.Errorf("%s: Retry-After is %q", c.path, a.header.Get("Retry-After"))
		}
		if used, _ := c.budget.Used(); used != full.Bytes() {
			t.Errorf("%s: %d bytes are counted, want %d", c.path, used, full.Bytes())
		}
		full.Free()
	}
	if n := r.api.Refusals()["answer"]; n != int64(len(calls)) {
		t.Errorf("%d refusals are counted, want %d", n, len(calls))
	}
	full := filled(r.api.answers, limit)
	for _, path := range []string{"/healthz", "/readyz", "/v1/stats"} {
		r.want(r.do("GET", path, ""), 200)
	}
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h"}`), 201)
	full.Free()
	for _, c := range calls {
		if a := r.do(c.method, c.path, c.body); a.status >= 300 {
			t.Errorf("%s is answered %d %s", c.path, a.status, a.body)
		}
	}
	if err := r.server.Shutdown(t.Context()); err != nil { // waits until the last one is over
		t.Fatal(err)
	}
	for _, b := range []*edge.Budget{r.api.answers, r.api.lists} {
		if used, strangers := b.Used(); used+strangers != 0 {
			t.Errorf("%d bytes are still counted", used+strangers)
		}
	}
}

// Lists of one token that are not read leave room for those of another.
func TestListsOfOneToken(t *testing.T) {
	r := guarded(t, Config{MaxAnswers: LeastMaxAnswers})
	r.large("t", 3, 60<<10)
	get := func(token string) answer { return r.do("GET", "/v1/tasks", "", bearer(token)) }
	r.want(get("read"), 200)
	const unread = LeastMaxAnswers/4 - 100<<10
	list := r.api.lists.For(r.api.callers.Find(edge.DigestOf("secret-read")))
	if !list.Take(unread) {
		t.Fatal("the first list is too much")
	}
	r.refused(get("read"), 429, "overloaded", "")
	r.want(get("admin"), 200)
	r.want(r.do("GET", "/v1/tasks?limit=1", "", bearer("read")), 200)
	list.Free()
	r.want(get("read"), 200)
	if !list.Take(LeastMaxAnswers / 2) {
		t.Error("a large list is refused though it is the only one")
	}
	list.Free()
	if err := r.server.Shutdown(t.Context()); err != nil { // waits until the last one is over
		t.Fatal(err)
	}
	if used, _ := r.api.lists.Used(); used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
}

// While as many pages are being made as may be, a list waits, but not for long.
func TestPagesAtOnce(t *testing.T) {
	slowly(t, func(w *wire, _ *tasks.Scheduler) {
		for range pagesAtOnce {
			w.api.pages <- struct{}{}
		}
		for _, path := range []string{"/v1/tasks", "/v1/search?q=a"} {
			began := time.Now()
			w.say("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if status, v := w.answer(); status != 429 || time.Since(began) != pagePatience {
				t.Errorf("after %v it is answered %d %v", time.Since(began), status, v)
			}
		}
		<-w.api.pages
		for _, path := range []string{"/v1/tasks", "/v1/search?q=a"} {
			w.say("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if status, v := w.answer(); status != 200 {
				t.Errorf("answered %d %v", status, v)
			}
		}
	})
}

// largeTask schedules a task of 60 KiB and asks for it.
func (w *wire) largeTask(s *tasks.Scheduler) {
	payload := []byte(`"` + strings.Repeat("x", 60<<10) + `"`)
	if _, err := s.Schedule(context.Background(), tasks.Request{ID: "a", Topic: "t", Delay: time.Hour, Payload: payload}); err != nil {
		w.t.Error(err)
	}
	w.say("GET /v1/tasks/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

// An answer that its caller does not read is given up soon, and its memory is freed.
func TestAnswerWithoutProgress(t *testing.T) {
	slowly(t, func(w *wire, s *tasks.Scheduler) {
		w.largeTask(s)
		time.Sleep(answerProgress - time.Second) // fake
		if used, _ := w.api.answers.Used(); used == 0 {
			t.Error("the answer is not counted")
		}
		time.Sleep(2 * time.Second) // fake
		if used, _ := w.api.answers.Used(); used != 0 {
			t.Errorf("%d bytes are still counted", used)
		}
		w.Close()
	})
}

// The same holds for a small answer, and for one without a body. It does not hold for an answer
// that takes long to make.
func TestSmallAnswerWithoutProgress(t *testing.T) {
	for _, path := range []string{"/problems/overloaded", "/empty"} {
		slowly(t, func(w *wire, _ *tasks.Scheduler) {
			// The time is fake.
			w.api.engine.GET("/empty", func(*gin.Context) { time.Sleep(2 * answerProgress) })
			w.say("GET /empty HTTP/1.1\r\nHost: localhost\r\n\r\n")
			a, err := http.ReadResponse(w.answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			a.Body.Close()
			w.say("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
			time.Sleep(4 * answerProgress) // fake
			w.closedAfter(0)
		})
	}
}

// An answer that is read slowly is not cut off.
func TestAnswerWithProgress(t *testing.T) {
	slowly(t, func(w *wire, s *tasks.Scheduler) {
		began := time.Now()
		w.largeTask(s)
		piece := make([]byte, 8<<10)
		total := 0
		for total < 60<<10 {
			n, err := w.Read(piece)
			if err != nil {
				t.Fatalf("after %d bytes and %v: %v", total, time.Since(began), err)
			}
			total += n
			time.Sleep(answerProgress / 5) // fake
		}
		if took := time.Since(began); took < answerProgress {
			t.Errorf("it took %v", took)
		}
		w.Close()
	})
}

// There is a limit: an answer that is read very slowly ends with the time for any answer.
func TestAnswerEndsAtLast(t *testing.T) {
	slowly(t, func(w *wire, s *tasks.Scheduler) {
		payload := []byte(`"` + strings.Repeat("x", 60<<10) + `"`)
		for range 30 {
			if _, err := s.Schedule(context.Background(), tasks.Request{Topic: "t", Delay: time.Hour, Payload: payload}); err != nil {
				t.Error(err)
			}
		}
		began := time.Now()
		w.say("GET /v1/tasks HTTP/1.1\r\nHost: localhost\r\n\r\n")
		for {
			if _, err := io.CopyN(io.Discard, w.answers, 8<<10); err != nil {
				break
			}
			time.Sleep(answerProgress / 5) // fake
		}
		if took := time.Since(began); took < writeTimeout-answerProgress || took > writeTimeout+answerProgress {
			t.Errorf("it took %v, want %v", took, writeTimeout)
		}
		w.Close()
	})
}
