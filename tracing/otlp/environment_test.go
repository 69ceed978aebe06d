package otlp

import (
	"cmp"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func readFrom(variables map[string]string) (*settings, error) {
	e := environment{getenv: func(name string) string { return variables[name] }}
	return e.read()
}

func TestOnOnlyWhereAsked(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, c := range []struct {
		variables map[string]string
		endpoint  string // empty: off
	}{
		{nil, ""},
		{map[string]string{"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"}, ""},
		{map[string]string{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, ""},
		{map[string]string{endpoint: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ""},
		{map[string]string{endpoint: "  "}, ""},
		{map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces"},
		{map[string]string{endpoint: "http://c:4318"}, "http://c:4318/v1/traces"},
		{map[string]string{endpoint: "https://c/base/"}, "https://c/base/v1/traces"},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/as/it/is"}, "http://c/as/it/is"},
		{map[string]string{endpoint: "http://all", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces"}, "http://traces"},
	} {
		s, err := readFrom(c.variables)
		got := ""
		if s != nil {
			got = s.endpoint.String()
		}
		if err != nil || got != c.endpoint {
			t.Errorf("%v: spans go to %q, %v; want %q", c.variables, got, err, c.endpoint)
		}
	}
}

func TestSettingsOfTheEnvironment(t *testing.T) {
	s, err := readFrom(map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "a=1, b = x%20y ,", "OTEL_EXPORTER_OTLP_TIMEOUT": "1500",
		"OTEL_EXPORTER_OTLP_COMPRESSION": "none", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip", "OTEL_BSP_MAX_QUEUE_SIZE": "7",
		"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5", "OTEL_BSP_SCHEDULE_DELAY": "20",
	})
	if err != nil || s.headers.Get("A") != "1" || s.headers.Get("B") != "x y" || s.timeout != 1500*time.Millisecond || !s.gzip || s.tls != nil ||
		s.queue != 7 || s.batch != 5 || s.delay != 20*time.Millisecond {
		t.Errorf("%+v, %v", s, err)
	}
	s, err = readFrom(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"})
	if err != nil || len(s.headers) != 0 || s.timeout != 10*time.Second || s.gzip || s.queue != 2048 || s.batch != 512 || s.delay != 5*time.Second {
		t.Errorf("the defaults are %+v, %v", s, err)
	}
	s, err = readFrom(map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_MAX_QUEUE_SIZE": "7"})
	if err != nil || s.batch != 7 {
		t.Errorf("a batch of %d spans in a queue of 7, %v", s.batch, err)
	}
}

func TestFaultsOfTheEnvironment(t *testing.T) {
	const secret = "top-secret"
	wrong := map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317", "OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
		"OTEL_EXPORTER_OTLP_HEADERS": secret, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "10s", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd",
		"OTEL_BSP_MAX_QUEUE_SIZE": "0", "OTEL_TRACES_SAMPLER": "jaeger_remote", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere",
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/nowhere",
	}
	_, err := readFrom(wrong)
	if err == nil || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %v", err)
	}
	for name := range wrong {
		if !strings.Contains(err.Error(), name+": ") {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
	for name, values := range map[string][]string{
		"OTEL_BSP_MAX_QUEUE_SIZE": {"-1", "1000001"}, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": {"-1", "0", "x", "65537"}, "OTEL_BSP_SCHEDULE_DELAY": {"-5", "0", "5s", "3600001"},
	} {
		for _, value := range values {
			if _, err := readFrom(map[string]string{"OTEL_TRACES_EXPORTER": "otlp", name: value}); err == nil || !strings.Contains(err.Error(), name+": ") {
				t.Errorf("%s=%s: %v", name, value, err)
			}
		}
	}
	for _, ratio := range []string{"-0.1", "1.1", "x", "NaN"} {
		if _, err := readFrom(map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio}); err == nil {
			t.Errorf("the ratio %s was accepted", ratio)
		}
	}
}

// What goes by the parent goes by the link where there is no parent.
func TestSamplers(t *testing.T) {
	span := func(flags trace.TraceFlags) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: flags})
	}
	sampled, dropped := span(trace.FlagsSampled), span(0)
	for _, c := range []struct {
		name, arg string
		root      bool // whether a span without a parent and a link is sampled
		follows   bool // whether parent and link decide
	}{
		{"", "", true, true},
		{"parentbased_always_on", "", true, true},
		{"parentbased_always_off", "", false, true},
		{"parentbased_traceidratio", "0", false, true},
		{"always_on", "", true, false},
		{"always_off", "", false, false},
		{"traceidratio", "", true, false},
		{"traceidratio", "0", false, false},
	} {
		s, err := readFrom(map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": c.name, "OTEL_TRACES_SAMPLER_ARG": c.arg})
		if err != nil {
			t.Fatal(err)
		}
		if want := cmp.Or(c.name, "parentbased_always_on"); s.samples != strings.TrimSpace(want+" "+c.arg) {
			t.Errorf("%s %s: the log says %q", c.name, c.arg, s.samples)
		}
		check := func(what string, want bool, p sdk.SamplingParameters) {
			t.Helper()
			p.TraceID = trace.TraceID{2}
			if p.ParentContext == nil {
				p.ParentContext = t.Context()
			}
			if got := s.sampler.ShouldSample(p).Decision == sdk.RecordAndSample; got != want {
				t.Errorf("%s %s: %s is sampled: %v", c.name, c.arg, what, got)
			}
		}
		check("a root", c.root, sdk.SamplingParameters{})
		for _, of := range []trace.SpanContext{sampled, dropped} {
			want := c.root
			if c.follows {
				want = of.IsSampled()
			}
			check("a child", want, sdk.SamplingParameters{ParentContext: trace.ContextWithRemoteSpanContext(t.Context(), of)})
			check("a link", want, sdk.SamplingParameters{Links: []trace.Link{{SpanContext: of}}})
		}
	}
}
