package cli

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A collector takes spans as one of OpenTelemetry does.
type collector struct {
	*httptest.Server
	mu       sync.Mutex // guards the rest
	headers  []http.Header
	resource map[string]string
	spans    []*pb.Span
}

func newCollector(t *testing.T) *collector {
	c := &collector{resource: make(map[string]string)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var data pb.TracesData
		if err == nil {
			err = proto.Unmarshal(body, &data)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.headers = append(c.headers, r.Header)
		for _, from := range data.ResourceSpans {
			for _, a := range from.Resource.Attributes {
				c.resource[a.Key] = a.Value.GetStringValue()
			}
			for _, scope := range from.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// named returns the spans with a name, in the order of their starts.
func (c *collector) named(t *testing.T, name string, n int) (list []*pb.Span) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name {
			list = append(list, s)
		}
	}
	if len(list) != n {
		t.Fatalf("%d spans %q, want %d of %v", len(list), name, n, c.spans)
	}
	slices.SortFunc(list, func(a, b *pb.Span) int { return int(a.StartTimeUnixNano) - int(b.StartTimeUnixNano) })
	return list
}

// attributes returns those of a span as one text, in the order of their names.
func attributes(s *pb.Span) string {
	var list []string
	for _, a := range s.Attributes {
		value := a.Value.GetStringValue()
		if value == "" {
			value = fmt.Sprint(a.Value.GetIntValue())
		}
		if a.Key != "lapse.task.due" {
			list = append(list, strings.TrimPrefix(a.Key, "messaging.")+"="+value)
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// parentOf is the traceparent that names a span.
func parentOf(s *pb.Span) string {
	return "00-" + hex.EncodeToString(s.TraceId) + "-" + hex.EncodeToString(s.SpanId) + "-01"
}

// linked fails the test unless a span is in a trace of its own, with one link: to another.
func linked(t *testing.T, s, to *pb.Span) {
	t.Helper()
	if len(s.ParentSpanId) != 0 || string(s.TraceId) == string(to.TraceId) {
		t.Errorf("%s is in the trace %x below %x", s.Name, s.TraceId, s.ParentSpanId)
	}
	if len(s.Links) != 1 || string(s.Links[0].TraceId) != string(to.TraceId) || string(s.Links[0].SpanId) != string(to.SpanId) {
		t.Errorf("%s has the links %v; want one to %s", s.Name, s.Links, parentOf(to))
	}
}

const callersParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// noTraces takes the variables of OpenTelemetry out of the environment of a test.
func noTraces(t *testing.T) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

// send sends a request with the trace of its caller, and wants a status.
func send(t *testing.T, method, url, body string, status int, parent string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	if parent != "" {
		q.Header.Set("traceparent", parent)
		q.Header.Set("tracestate", "vendor=1")
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != status {
		t.Fatalf("%s %s: %d %v: %s", method, url, a.StatusCode, err, text)
	}
	return string(text)
}

// A hook is a receiver whose first answer is 500. It tells what each attempt had in its headers.
func newHook(t *testing.T) (url string, got chan http.Header) {
	got = make(chan http.Header, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("lapse-attempt") == "1" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		got <- r.Header
	}))
	t.Cleanup(hook.Close)
	return hook.URL, got
}

const hookTopic = `{"delivery":{"kind":"webhook","url":%q},"retry":{"min_backoff":"1ms","max_backoff":"1ms"}}`

func TestTracesGoToTheCollector(t *testing.T) {
	noTraces(t)
	c := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=top%20secret")
	t.Setenv("OTEL_SERVICE_NAME", "shop-timers")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	hook, got := newHook(t)
	url, stop := started(t, "--data", t.TempDir(), "--node", "node-1")

	send(t, "PUT", url+"/v1/topics/hook", fmt.Sprintf(hookTopic, hook), 200, "")
	send(t, "POST", url+"/v1/tasks", `{"id":"a","topic":"hook","payload":[1]}`, 201, callersParent)
	first, second := <-got, <-got
	batch := `[{"id":"b","topic":"pulled"},{"id":"c","topic":"pulled","headers":{"traceparent":"` + callersParent + `"}},{"id":"d","topic":"pulled","delay":-1}]`
	send(t, "POST", url+"/v1/tasks/batch", batch, 200, "")
	reserved := send(t, "POST", url+"/v1/topics/pulled/reserve", `{"wait":"10s","max":1}`, 200, "")
	reserved += send(t, "POST", url+"/v1/topics/pulled/reserve", `{"wait":"10s","max":1}`, 200, "")
	send(t, "PUT", url+"/v1/tasks/e", `{"topic":"later","delay":"1h"}`, 201, "")
	send(t, "POST", url+"/v1/tasks", `{"id":"e","topic":"later","delay":"1h"}`, 200, callersParent)
	send(t, "POST", url+"/v1/tasks", `{"id":"e","topic":"later","delay":"2h"}`, 409, "")
	if code := stop(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}

	s := c.named(t, "schedule hook", 1)[0]
	if hex.EncodeToString(s.TraceId) != callersParent[3:35] || hex.EncodeToString(s.ParentSpanId) != callersParent[36:52] || s.Kind != pb.Span_SPAN_KIND_PRODUCER {
		t.Errorf("the scheduling span is %v", s)
	}
	if a := attributes(s); a != "destination.name=hook message.body.size=3 message.id=a operation.name=schedule operation.type=send system=lapse" {
		t.Errorf("it has the attributes %s", a)
	}
	for i, attempt := range c.named(t, "deliver hook", 2) {
		linked(t, attempt, s)
		if h := []http.Header{first, second}[i]; h.Get("traceparent") != parentOf(attempt) || h.Get("tracestate") != "" {
			t.Errorf("attempt %d: the receiver got the traceparent %q, tracestate %q; want %s", i+1, h.Get("traceparent"), h.Get("tracestate"), parentOf(attempt))
		}
		want := "destination.name=hook %slapse.delivery.kind=webhook lapse.outcome=%s lapse.task.attempt=%d message.body.size=3 message.id=a operation.name=deliver operation.type=process system=lapse"
		failed, outcome, status := "error.type=failed ", "failed", pb.Status_STATUS_CODE_ERROR
		if i == 1 {
			failed, outcome, status = "", "delivered", pb.Status_STATUS_CODE_UNSET
		}
		if a := attributes(attempt); a != fmt.Sprintf(want, failed, outcome, i+1) || attempt.Kind != pb.Span_SPAN_KIND_CONSUMER || attempt.Status.GetCode() != status {
			t.Errorf("attempt %d has the attributes %s, kind %v, status %v", i+1, a, attempt.Kind, attempt.Status)
		}
	}

	both := c.named(t, "schedule pulled", 1)[0]
	if a := attributes(both); a != "batch.message_count=3 destination.name=pulled lapse.batch.accepted=2 operation.name=schedule operation.type=send system=lapse" {
		t.Errorf("the span of the batch has the attributes %s", a)
	}
	for _, attempt := range c.named(t, "reserve pulled", 2) {
		if !strings.Contains(reserved, parentOf(attempt)) {
			t.Errorf("the receiver has not got %s: %s", parentOf(attempt), reserved)
		}
		if strings.Contains(attributes(attempt), "message.id=c ") {
			if l := attempt.Links[0]; hex.EncodeToString(l.SpanId) != callersParent[36:52] {
				t.Errorf("a task with a trace of its own has a link to %v", l)
			}
		} else {
			linked(t, attempt, both)
		}
	}
	refused := c.named(t, "schedule later", 3)[2]
	if a := attributes(refused); !strings.HasPrefix(a, "destination.name=later error.type=id_taken ") || refused.Status.GetCode() != pb.Status_STATUS_CODE_ERROR {
		t.Errorf("a refused request has the attributes %s, status %v", a, refused.Status)
	}

	want := map[string]string{"service.name": "shop-timers", "service.instance.id": "node-1", "deployment.environment.name": "test", "telemetry.sdk.language": "go"}
	for name, value := range want {
		if c.resource[name] != value {
			t.Errorf("%s is %q, want %q", name, c.resource[name], value)
		}
	}
	if h := c.headers[0]; h.Get("Api-Key") != "top secret" || h.Get("Content-Type") != "application/x-protobuf" {
		t.Errorf("the collector got the headers %v", h)
	}
}

// Without a collector the trace of the caller goes to the receiver as it is.
func TestTracesWithoutCollector(t *testing.T) {
	noTraces(t)
	hook, got := newHook(t)
	url, stop := started(t, "--data", t.TempDir())
	send(t, "PUT", url+"/v1/topics/hook", fmt.Sprintf(hookTopic, hook), 200, "")
	send(t, "POST", url+"/v1/tasks", `{"id":"a","topic":"hook"}`, 201, callersParent)
	send(t, "POST", url+"/v1/tasks", `{"id":"b","topic":"hook"}`, 201, "")
	for range 4 {
		h := <-got
		want, state := callersParent, "vendor=1"
		if h.Get("ce-id") == "b" {
			want, state = "", ""
		}
		if h.Get("traceparent") != want || h.Get("tracestate") != state {
			t.Errorf("the receiver of %s got the traceparent %q, tracestate %q", h.Get("ce-id"), h.Get("traceparent"), h.Get("tracestate"))
		}
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// A collector that is away, or variables that are wrong, keep nothing from working.
func TestTracesThatGoNowhere(t *testing.T) {
	for name, test := range map[string]struct{ variable, value, log string }{
		"no collector":    {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", `msg="spans were lost"`},
		"wrong variables": {"OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER: must be otlp or none"},
	} {
		t.Run(name, func(t *testing.T) {
			noTraces(t)
			t.Setenv(test.variable, test.value)
			urls, log, stop := startedAt(t, 1, nil, "--data", t.TempDir())
			send(t, "POST", urls[0]+"/v1/tasks", `{"id":"a","topic":"pulled"}`, 201, callersParent)
			send(t, "POST", urls[0]+"/v1/topics/pulled/reserve", `{"wait":"10s"}`, 200, "")
			if code := stop(); code != exitOK || !strings.Contains(log.String(), test.log) {
				t.Errorf("exit code %d, log %s", code, log)
			}
		})
	}
}
