package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// An event as it stands on the wire.
type told struct {
	number int64
	kind   string
	data   string

	Kind, At, ID, Topic, Node, Lateness, Error string
	Attempt                                    int
	Count                                      int64
	Gap                                        bool
}

func (e told) String() string {
	return strings.TrimRight(fmt.Sprint(e.kind, " ", e.ID, " ", e.Attempt, " ", e.Error), " ")
}

// A stream is a reader's end of a stream of events.
type stream struct {
	testing.TB
	body  io.ReadCloser
	lines *bufio.Scanner
	beats int // comments so far
}

func newStream(t testing.TB, a *http.Response) *stream {
	t.Helper()
	s := &stream{t, a.Body, bufio.NewScanner(a.Body), 0}
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != mediaEvents || a.Header.Get("Cache-Control") != "no-store" {
		text, _ := io.ReadAll(a.Body)
		t.Fatalf("answered %d %v %s", a.StatusCode, a.Header, text)
	}
	if !s.lines.Scan() || s.lines.Text() != ": events" || !s.lines.Scan() || s.lines.Text() != "" {
		t.Fatalf("it begins with %q, %v", s.lines.Text(), s.lines.Err())
	}
	return s
}

// listen opens a stream of all events from now on.
func (r *rig) listen(path string, headers ...string) *stream {
	r.Helper()
	q, err := http.NewRequestWithContext(r.Context(), "GET", r.url+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		q.Header.Set(name, value)
	}
	a, err := r.client.Do(q)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { a.Body.Close() })
	return newStream(r, a)
}

// next reads an event. The error is io.EOF where the stream has come to its end.
func (s *stream) next() (e told, err error) {
	s.Helper()
	for s.lines.Scan() {
		name, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch name {
		case "":
			if e.kind != "" {
				return e, nil
			}
		case ":":
			s.beats++
		case "id":
			_, err = fmt.Sscan(value, &e.number)
		case "event":
			e.kind = value
		case "data":
			e.data = value
			if err = json.Unmarshal([]byte(value), &e); err == nil && e.Kind != e.kind {
				err = fmt.Errorf("an event of kind %q says %s", e.kind, value)
			}
		default:
			err = fmt.Errorf("a line says %q", s.lines.Text())
		}
		if err != nil {
			s.Fatal(err)
		}
	}
	if err := s.lines.Err(); err != nil {
		return e, err
	}
	return e, io.EOF
}

// wants reads events, and fails unless they are exactly these, as "kind id attempt error".
func (s *stream) wants(want ...string) (all []told) {
	s.Helper()
	for _, w := range want {
		e, err := s.next()
		if err != nil || e.String() != w {
			s.Fatalf("told %q, want %q (%v)", e, w, err)
		}
		all = append(all, e)
	}
	return all
}

// A reader gets all events of a task, in order, if it asked for them.
func TestEventsOfATask(t *testing.T) {
	r := newRig(t)
	r.want(r.do("PUT", "/v1/topics/t", `{"retry":{"max_attempts":2}}`), 200)
	all, ours := r.listen(eventsPath), r.listen(eventsPath+"?topic=t&topic=u", "Accept: text/event-stream")
	ends := r.listen(eventsPath + "?kind=delivered&kind=dead&topic=t")
	began := time.Now().Add(-time.Millisecond)
	r.want(r.do("POST", "/v1/tasks", `{"id":"other","topic":"o","delay":"1h"}`), 201)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t"}`), 201)
	receipt := receiptOf(r.reserve("t", `{"wait":"60s"}`, 1)[0])
	const why = "no\nstock: \"<\x01é\" "
	reason, _ := json.Marshal(why)
	r.want(r.do("POST", "/v1/receipts/release", `{"receipts":["`+receipt+`"],"delay":0,"reason":`+string(reason)+`}`), 200)
	receipt = receiptOf(r.reserve("t", `{"wait":"60s"}`, 1)[0])
	r.want(r.do("POST", "/v1/receipts/ack", `{"receipts":["`+receipt+`"]}`), 200)
	r.bury("t", 1)

	events := ours.wants("scheduled a 0", "started a 1", "retried a 1 "+strings.TrimRight(why, " "), "started a 2", "delivered a 2",
		"scheduled t0 0", "started t0 1", "dead t0 1 buried")
	for i, e := range events {
		at, err := time.Parse(time.RFC3339, e.At)
		if err != nil || at.Before(began) || at.After(time.Now()) || len(e.At) != len("2026-11-20T13:36:41.248Z") {
			t.Errorf("%s: at %s", e, e.At)
		}
		if e.Topic != "t" || e.Node != "local" || e.number != int64(i+1) {
			t.Errorf("%s: topic %s, number %d", e, e.Topic, e.number)
		}
	}
	if events[2].Error != why {
		t.Errorf("told %q", events[2].Error)
	}
	all.wants("scheduled other 0", "scheduled a 0", "started a 1")
	ends.wants("delivered a 2", "dead t0 1 buried")
	if v := r.want(r.do("GET", "/v1/stats", ""), 200)["events"]; fmt.Sprint(v) != "map[lost:0 streams:3]" {
		t.Errorf("/v1/stats shows %v", v)
	}
}

// The events of a stream have the form that the document describes.
func TestEventsAreAsDescribed(t *testing.T) {
	at := time.Date(2026, 11, 20, 13, 36, 41, 248_999_999, time.FixedZone("", 3600))
	for _, c := range []struct {
		event tasks.Event
		want  string
	}{
		{tasks.Event{Kind: tasks.EventStarted, At: at, ID: "a", Topic: "t", Attempt: 1, Lateness: 1234567 * time.Nanosecond},
			`{"kind":"started","at":"2026-11-20T12:36:41.248Z","id":"a","topic":"t","node":"n1","attempt":1,"lateness":"1.23ms"}`},
		{tasks.Event{Kind: tasks.EventStarted, At: at, ID: "a", Topic: "t", Attempt: 1},
			`{"kind":"started","at":"2026-11-20T12:36:41.248Z","id":"a","topic":"t","node":"n1","attempt":1,"lateness":"0s"}`},
		{tasks.Event{Kind: tasks.EventStarted, At: at, ID: "a", Topic: "t", Attempt: 2},
			`{"kind":"started","at":"2026-11-20T12:36:41.248Z","id":"a","topic":"t","node":"n1","attempt":2}`},
		{tasks.Event{Kind: tasks.EventDue, At: at, ID: "a", Topic: "t", Lateness: time.Millisecond},
			`{"kind":"due","at":"2026-11-20T12:36:41.248Z","id":"a","topic":"t","node":"n1","lateness":"1ms"}`},
		{tasks.Event{Kind: tasks.EventDied, At: at, ID: "a", Topic: "t", Attempt: 3, Err: "bad\r\n\xff"},
			`{"kind":"dead","at":"2026-11-20T12:36:41.248Z","id":"a","topic":"t","node":"n1","attempt":3,"error":"bad\r\n\ufffd"}`},
	} {
		e := eventStream{number: 41, node: []byte(`"n1"`)}
		e.encode(&c.event)
		if got, want := string(e.text), "id: 42\nevent: "+string(c.event.Kind)+"\ndata: "+c.want+"\n\n"; got != want {
			t.Errorf("told\n%s\nwant\n%s", got, want)
		}
	}
	kinds := make([]string, len(tasks.EventKinds))
	for i, k := range tasks.EventKinds {
		kinds[i] = string(k)
	}
	r := newRig(t)
	schemas := document(t, r)["components"].(map[string]any)["schemas"].(map[string]any)
	enum := schemas["Event"].(map[string]any)["properties"].(map[string]any)["kind"].(map[string]any)["enum"]
	if fmt.Sprint(enum) != fmt.Sprint(kinds) {
		t.Errorf("the document knows %v, the scheduler %v", enum, kinds)
	}
	for _, k := range kinds {
		r.listen(eventsPath + "?kind=" + k)
	}
}

func TestBadEventStreams(t *testing.T) {
	r := newRig(t)
	for query, field := range map[string]string{
		"topic=": "topic", "topic=a&topic=b%20c": "topic", "topic=a%0a": "topic", "topic=" + strings.Repeat("x", 129): "topic",
		strings.Repeat("topic=a&", tasks.MaxEventTopics+1): "topic", "kind=dead&kind=died": "kind", "kind=": "kind", "kind=dead,started": "kind",
		"topics=a": "topics", "limit=1": "limit",
	} {
		r.refused(r.do("GET", eventsPath+"?"+query, ""), 422, "invalid", field)
	}
	r.refused(r.do("GET", eventsPath, "", "Accept: text/html"), 406, "not_acceptable", "")
	r.refused(r.do("GET", eventsPath, "", "Accept: text/event-stream;q=0"), 406, "not_acceptable", "")
	r.refused(r.do("GET", "/v1/stats", "", "Accept: text/event-stream"), 406, "not_acceptable", "")
	if a := r.do("HEAD", eventsPath, ""); a.status != 200 || a.header.Get("Content-Type") != mediaEvents {
		t.Errorf("HEAD is answered %d %v", a.status, a.header)
	}
	r.streams(0)
}

// openStreams returns how many streams are open.
func (s *Server) openStreams() int64 {
	n, _ := s.streams.Count()
	return int64(n)
}

// streams waits until so many are open.
func (r *rig) streams(want int) {
	r.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(time.Minute); r.scheduler.Stats().Subscriptions != want || r.api.openStreams() != int64(want); {
		select {
		case <-tick.C:
		case <-limit:
			r.Fatalf("%d streams are open, want %d", r.api.openStreams(), want)
		}
	}
}

// The number of streams is bounded. A reader that leaves makes room.
func TestTooManyEventStreams(t *testing.T) {
	r := newRig(t)
	open := make([]*stream, maxEventStreams)
	for i := range open {
		open[i] = r.listen(eventsPath)
	}
	a := r.do("GET", eventsPath, "")
	r.refused(a, 429, "overloaded", "")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	r.refused(r.do("GET", eventsPath+"?topic=%21", ""), 429, "overloaded", "")
	for _, s := range open[1:] {
		s.body.Close()
	}
	r.streams(1)
	r.refused(r.do("GET", eventsPath+"?topic=%21", ""), 422, "invalid", "topic")
	r.listen(eventsPath)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h"}`), 201)
	open[0].wants("scheduled a 0")
}

// One token has half of the streams.
func TestEventStreamsOfOneToken(t *testing.T) {
	r := guarded(t, Config{})
	for range maxEventStreams / 2 {
		r.listen(eventsPath, bearer("read"))
	}
	r.refused(r.do("GET", eventsPath, "", bearer("read")), 429, "overloaded", "")
	r.listen(eventsPath, bearer("admin"))
}

// A server that ends ends its streams, in order, and begins no others.
func TestCloseEndsEventStreams(t *testing.T) {
	r := newRig(t)
	streams := []*stream{r.listen(eventsPath), r.listen(eventsPath)}
	r.api.Close()
	for _, s := range streams {
		if e, err := s.next(); !errors.Is(err, io.EOF) {
			t.Errorf("told %v, %v", e, err)
		}
	}
	r.streams(0)
	r.refused(r.do("GET", eventsPath, ""), 503, "shutting_down", "")
	// The same holds for a scheduler that ends by itself.
	r = newRig(t)
	s := r.listen(eventsPath)
	if err := r.scheduler.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if e, err := s.next(); !errors.Is(err, io.EOF) {
		t.Errorf("told %v, %v", e, err)
	}
	r.streams(0)
	r.refused(r.do("GET", eventsPath, ""), 503, "shutting_down", "")
}

// Events go through HTTP/2 as well, and the time that an answer may take does not end them.
func TestEventsOverHTTP2(t *testing.T) {
	r := newRig(t)
	server := httptest.NewUnstartedServer(nil)
	server.Config = r.api.HTTPServer()
	server.Config.WriteTimeout = 100 * time.Millisecond
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	r.url, r.client = server.URL, server.Client()
	s := r.listen(eventsPath + "?kind=started&topic=h")
	if err := r.scheduler.Handle("h", func(context.Context, *tasks.Delivery) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		id := fmt.Sprint("t", i)
		if _, err := r.scheduler.Schedule(t.Context(), tasks.Request{ID: id, Topic: "h", Delay: 200 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		s.wants("started " + id + " 1")
	}
	s.body.Close()
	r.streams(0)
	s = r.listen(eventsPath)
	r.api.Close()
	if e, err := s.next(); !errors.Is(err, io.EOF) {
		t.Errorf("told %v, %v", e, err)
	}
}

// A reader whose token is revoked is cut off, with or without events. The others go on.
func TestRevokedTokenEndsEventStreams(t *testing.T) {
	r := guarded(t, Config{})
	gone, stays := r.listen(eventsPath, bearer("read")), r.listen(eventsPath, bearer("admin"))
	asked := r.listen(eventsPath+"?topic=other", password("read"))
	tokens := slices.DeleteFunc(r.tokens(), func(t edge.Token) bool { return t.Name == "read" })
	if err := r.api.callers.Set(tokens); err != nil {
		t.Fatal(err)
	}
	r.streams(1) // at once: the heartbeat is 15 s away
	for _, s := range []*stream{gone, asked} {
		if e, err := s.next(); !errors.Is(err, io.EOF) {
			t.Errorf("told %v, %v", e, err)
		}
	}
	if _, err := r.scheduler.Schedule(t.Context(), tasks.Request{ID: "a", Topic: "t", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	stays.wants("scheduled a 0")
	r.refused(r.do("GET", eventsPath, "", bearer("read")), 401, "unauthorized", "")
	r.streams(1)
}

// tokens are those of guarded.
func (r *rig) tokens() (all []edge.Token) {
	for _, s := range edge.Scopes {
		all = append(all, tokenOf(string(s), s))
	}
	return all
}

// A page of another site cannot read events, and so must not take up streams either.
func TestForeignPagesOpenNoEventStreams(t *testing.T) {
	r := newRig(t)
	for site, status := range map[string]int{"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodHead, r.url+eventsPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Sec-Fetch-Site", site)
		if a := r.send(q); a.status != status {
			t.Errorf("%s: answered %d, want %d", site, a.status, status)
		}
	}
	r.streams(0)
}
