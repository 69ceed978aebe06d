package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// secret stands in all that is foreign, and in nothing that the limited caller sends.
const secret = "vault"

// What requests of the limited caller are made of. RECEIPT, CURSOR and ETAG are those of a foreign
// delivery, list and task.
var (
	limitedMethods = []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"}
	limitedNames   = []string{"mine", "theirs", "held", "own.a", "own.b", "foreign", "own.*", "*", "g", "local", "none", "%2e%2e", "a%2Fb", "invalid"}
	limitedQueries = []string{
		"topic=own.a", "topic=foreign", "topic=own.*", "topic=*", "group=g", "state=dead", "state=finished", "state=held", "state=delivering", "state=ready", "limit=1", "limit=1000",
		"cursor=CURSOR", "cursor=", "id_prefix=the", "id_prefix=own", "error=a", "error_like=%28none%29", "reason=buried", "due_from=2001-01-01T00:00:00Z", "due_to=2099-01-01T00:00:00Z",
		"died_from=2001-01-01T00:00:00Z", "died_to=2099-01-01T00:00:00Z", "node=local", "brief=true", "order=pending", "window=1000h", "step=1h", "force=true", "topic=own.a&topic=foreign", "type=scheduled", "x=%zz",
	}
	limitedFields = []string{
		`"id":"theirs"`, `"id":"held"`, `"id":"mine"`, `"id":"new"`, `"topic":"foreign"`, `"topic":"own.a"`, `"topic":"own.b"`, `"topic":"own.*"`, `"group":"g"`, `"payload":{"a":1}`, `"payload":null`, `"delay":"1h"`,
		`"delay":"0s"`, `"due_at":"2001-01-01T00:00:00Z"`, `"due_at":"2031-01-01T00:00:00Z"`, `"shift":"1h"`, `"headers":{"a":"b"}`, `"max_lateness":"1s"`, `"dry_run":true`, `"limit":1`, `"limit":100`, `"cursor":"CURSOR"`,
		`"ids":["theirs","mine"]`, `"ids":["held"]`, `"filter":{"topic":"foreign"}`, `"filter":{"topic":"own.a"}`, `"filter":{"group":"g"}`, `"filter":{"id_prefix":"t"}`, `"filter":{"topic":"own.*","state":"dead"}`,
		`"filter":{"state":"held"}`, `"action":"cancel"`, `"action":"move"`, `"action":"fire"`, `"action":"hold"`, `"action":"resume"`, `"action":"requeue"`, `"action":"delete"`, `"receipts":["RECEIPT"]`, `"receipts":["RECEIPT","x"]`,
		`"wait":"1ms"`, `"lease":"1s"`, `"reason":"r"`, `"token":"secret-own"`, `"token":"x"`, `"delivery":{"url":"http://127.0.0.1:1/"}`, `"retry":{"max_attempts":1}`,
	}
	limitedHeaders = []string{"", `If-Match: ETAG`, "If-Match: *", "If-None-Match: *", "Content-Type: application/x-ndjson", "Content-Type: application/merge-patch+json", "Accept: text/event-stream", "Last-Event-ID: 1"}
)

// requestsAtOnce is how many requests an input has at most.
const requestsAtOnce = 12

// A limitedCaller is a rig with a caller of the topics own.*, and foreign tasks in all states.
type limitedCaller struct {
	*rig
	routes []string // paths
	known  *strings.Replacer
}

func newLimitedCaller(t testing.TB) *limitedCaller {
	own := tokenOf("own", edge.ScopeSchedule, edge.ScopeReceive, edge.ScopeRead)
	own.Topics = []string{"own.*"}
	r := guarded(t, Config{}, own)
	admin := bearer("admin")
	for _, topic := range []string{"foreign", secret} {
		r.want(r.do("PUT", "/v1/topics/"+topic, `{"keep_finished":"1h","lease":"24h"}`, admin), 200)
	}
	reserve := func() any {
		return r.want(r.do("POST", "/v1/topics/foreign/reserve", `{"wait":"60s"}`, admin), 200)["tasks"].([]any)[0]
	}
	// A receipt has the id in it, and answers repeat the id.
	r.want(r.do("POST", "/v1/tasks", `{"id":"lent","topic":"foreign"}`, admin), 201)
	lent, created := reserve(), answer{}
	for _, body := range []string{
		`{"id":"vault-1","topic":"vault","group":"g","delay":"1h"}`, `{"id":"held","topic":"foreign","group":"g","delay":"1h","headers":{"a":"vault"}}`,
		`{"id":"vault-2","topic":"foreign"}`, `{"id":"vault-3","topic":"foreign"}`, `{"id":"vault-5","topic":"foreign"}`, `{"id":"theirs","topic":"foreign","group":"g","payload":"vault","delay":"1h"}`,
	} {
		created = r.do("POST", "/v1/tasks", body, admin)
		r.want(created, 201)
	}
	r.want(r.do("POST", "/v1/tasks/held/hold", "", admin), 200)
	taken := []any{reserve(), reserve()}
	r.want(r.do("POST", "/v1/receipts/bury", `{"receipts":["`+receiptOf(taken[0])+`"],"reason":"vault"}`, admin), 200)
	r.want(r.do("POST", "/v1/receipts/ack", `{"receipts":["`+receiptOf(taken[1])+`"]}`, admin), 200)
	cursor := r.want(r.do("GET", "/v1/tasks?limit=1", "", admin), 200)["next_cursor"].(string)
	c := &limitedCaller{rig: r, known: strings.NewReplacer("RECEIPT", receiptOf(lent), "CURSOR", cursor, "ETAG", created.header.Get("ETag"))}
	for _, route := range r.api.engine.Routes() {
		c.routes = append(c.routes, route.Path)
	}
	slices.Sort(c.routes)
	c.routes = slices.Compact(c.routes)
	return c
}

// anew returns the rig for another test, with the tasks that the caller has at first.
func (c *limitedCaller) anew(t *testing.T) *limitedCaller {
	r := *c.rig
	r.TB = t
	if _, err := r.scheduler.Admin().Purge(t.Context(), "own.*"); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"own.a", "own.b"} {
		if _, err := r.scheduler.Admin().DeleteDead(t.Context(), topic, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, body := range []string{`{"id":"mine","topic":"own.a","group":"g","delay":"1h"}`, `{"topic":"own.a"}`} {
		r.do("POST", "/v1/tasks", body, bearer("admin"))
	}
	return &limitedCaller{&r, c.routes, c.known}
}

// foreign returns all that there is of the foreign topics.
func (c *limitedCaller) foreign() string {
	c.Helper()
	var all []any
	for _, topic := range []string{"foreign", secret} {
		for _, state := range []tasks.State{0, tasks.Held, tasks.Dead, tasks.Finished} {
			page, err := c.scheduler.List(c.Context(), tasks.Query{Topic: topic, State: state})
			if err != nil || page.Cursor != "" {
				c.Fatal(page.Cursor, err)
			}
			all = append(all, page.Tasks)
		}
		t, err := c.scheduler.Topic(topic)
		if err != nil {
			c.Fatal(err)
		}
		all = append(all, t.Settings, t.Revision, t.Counts.Pending, t.Counts.Delivering, t.Counts.Dead)
	}
	text, err := json.Marshal(all)
	if err != nil {
		c.Fatal(err)
	}
	return string(text)
}

// requestOf makes a request of bytes, and returns the rest.
func (c *limitedCaller) requestOf(data []byte) (q *http.Request, rest []byte) {
	next := func() (n int) {
		if len(data) > 0 {
			n, data = int(data[0]), data[1:]
		}
		return n
	}
	pick := func(list []string) string { return list[next()%len(list)] }
	several := func(list []string) (all []string) {
		for range next() % 6 {
			all = append(all, pick(list))
		}
		return all
	}
	method, route, name, path := pick(limitedMethods), pick(c.routes), pick(limitedNames), ""
	for part := range strings.SplitSeq(strings.TrimPrefix(route, "/"), "/") {
		if strings.HasPrefix(part, ":") || strings.HasPrefix(part, "*") {
			part = name
		}
		path += "/" + part
	}
	if query := several(limitedQueries); query != nil {
		path += "?" + strings.Join(query, "&")
	}
	header := pick(limitedHeaders)
	body := ""
	switch form := next() % 8; form {
	case 0:
	case 1: // bytes
		n := min(next(), len(data))
		body, data = string(data[:n]), data[n:]
	case 2, 3:
		body = "[{" + strings.Join(several(limitedFields), ",") + "},{" + strings.Join(several(limitedFields), ",") + "}]"
		if form == 3 {
			body = strings.NewReplacer("[{", "{", "},{", "}\n{", "}]", "}").Replace(body)
		}
	default:
		body = "{" + strings.Join(several(limitedFields), ",") + "}"
	}
	q, err := http.NewRequest(method, c.url+c.known.Replace(path), strings.NewReader(c.known.Replace(body)))
	if err != nil {
		return nil, data
	}
	q.Header.Set("Authorization", "Bearer secret-own")
	q.Header.Set("Content-Type", mediaJSON)
	if name, value, ok := strings.Cut(header, ": "); ok {
		q.Header.Set(name, c.known.Replace(value))
	}
	return q, data
}

// judge checks an answer.
func (c *limitedCaller) judge(a *http.Response, body []byte) {
	media, _, _ := strings.Cut(a.Header.Get("Content-Type"), ";")
	switch {
	case strings.Contains(string(body), secret):
		c.Fatalf("it is told %s", body)
	case a.StatusCode == 500:
		c.Fatalf("it fails: %s", body)
	case a.Request.Method == "HEAD":
	case a.StatusCode >= 400 && media != problemMedia && media != "text/html" && !strings.HasPrefix(a.Request.URL.Path, "/assets"):
		c.Fatalf("status %d with %s: %s", a.StatusCode, media, body)
	case (media == mediaJSON || media == problemMedia) && !json.Valid(body):
		c.Fatalf("no JSON: %s", body)
	}
	for name, values := range a.Header {
		if strings.Contains(strings.Join(values, " "), secret) {
			c.Fatalf("the header %s tells %q", name, values)
		}
	}
}

// Whatever a limited token sends, nothing foreign comes back or changes.
func FuzzLimitedCaller(f *testing.F) {
	all := newLimitedCaller(f) // one for all inputs: making one takes 40 ms
	for route := range all.routes {
		var input []byte
		for method := range limitedMethods {
			for _, name := range []byte{1, 5} { // theirs, foreign
				input = append(input, byte(method), byte(route), name, 0, 0, 0)
			}
		}
		f.Add(input)
		f.Add([]byte{1, byte(route), 1, 0, 0, 4, 1, byte(slices.Index(limitedFields, `"receipts":["RECEIPT"]`))})
		for fields := range slices.Chunk(limitedFields, requestsAtOnce) { // of POST
			input = nil
			for _, field := range fields {
				input = append(input, 1, byte(route), 1, 0, 0, 4, 3, byte(slices.Index(limitedFields, field)), 30, 4)
			}
			f.Add(input)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte(secret)) || len(data) > 400 {
			t.Skip()
		}
		c := all.anew(t)
		before := c.foreign()
		for n := 0; len(data) > 0 && n < requestsAtOnce; n++ {
			var q *http.Request
			if q, data = c.requestOf(data); q == nil {
				continue
			}
			c.sendAsLimited(q)
		}
		if now := c.foreign(); now != before {
			t.Fatalf("what was\n%s\nhas become\n%s", before, now)
		}
	})
}

// sendAsLimited sends a request and judges the answer. A stream of events is read for a moment.
func (c *limitedCaller) sendAsLimited(q *http.Request) {
	stream := strings.HasSuffix(q.URL.Path, eventsPath)
	if stream {
		ctx, cancel := context.WithTimeout(c.Context(), 20*time.Millisecond)
		defer cancel()
		q = q.WithContext(ctx)
	}
	sent, _ := q.GetBody()
	text, _ := io.ReadAll(sent)
	c.Logf("%s %s %s %s", q.Method, q.URL, q.Header, text)
	a, err := c.client.Do(q)
	if err != nil {
		if !stream {
			c.Fatal(err)
		}
		return
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil && !stream {
		c.Fatal(err)
	}
	c.judge(a, body)
}
